"""Rules on the URLs of servers that the pods call."""

from collections.abc import Iterator

from raggrpo_api.fields.addresses import OTHER_PATH_PATTERN, has_other_path, url_problem
from raggrpo_api.fields.reach import Server
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_operator.core.spec.marked_fields import marked_places, marked_values
from raggrpo_operator.core.spec.servers import AGENT, agent_servers, servers, variable_address
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import matches
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule, values_at


@spec_rule(
    *(place for place, server in marked_places(JobSpec, Server) if not server.url),
    reason=Reason.INVALID_URL,
    message="clients or servers may read the URL as the URL of another path",
    remedy="remove the segments . and .., backslashes, invalid escapes, and escaped dots, slashes, "
    "backslashes, percent signs and control characters from the path",
    cel=f"!{matches('self', OTHER_PATH_PATTERN)}",
)
def urls_have_one_path(url: str) -> bool:
    """Reject a URL that leads to another path than the one that it starts with."""
    return not has_other_path(url)


def servers_of_variables_are_listed(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if a variable names a server that the pods' NetworkPolicy does not admit."""
    for place, admitted in (("spec", servers(inputs.spec)), (AGENT, agent_servers(inputs.spec))):
        listed = set(admitted)
        for path, variable in values_at(inputs.spec, f"{place}.env[]"):
            address = variable_address(variable)
            if address and inputs.in_pods and address not in listed:
                message = f"no field of the job opens the network to the server in {variable.name}"
                remedy = (
                    f"add its URL to {place}.egress, unless networkPolicy.egress of the chart "
                    "opens it"
                )
                yield warning(f"{path}.value", Reason.SERVER_NOT_LISTED, message, remedy)


def urls_are_valid(inputs: RuleInput) -> Iterator[Violation]:
    """Reject URLs that match the pattern of their field but that clients reject."""
    for path, server, url in marked_values(inputs.spec, Server):
        if not server.url and (problem := url_problem(url)):
            remedy = "specify a full URL such as http://host:8000/retrieve"
            yield Violation(path, Reason.INVALID_URL, f"invalid URL: {problem}", remedy)
