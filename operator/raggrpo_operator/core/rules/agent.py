"""Rules on agents: where the application runs, and how its calls are assigned to samples."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from raggrpo_api import names
from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.secrets.names import SECRET_QUERY_PATTERN
from raggrpo_api.secrets.values import SECRET_VALUE_PATTERNS, has_known_secret
from raggrpo_api.spec.agent import AgentSpec, AgentType, ForwardedModels, Identification
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.placeholders import GATEWAY_PLACEHOLDERS
from raggrpo_api.spec.resources import EnvVar
from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import is_filled, matches, specified, value_or
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

_TYPE = value_or("type", repr("Python"))
_IDENTIFY = value_or("identify", repr("Slot"))
_NOT_A_BASE_URL: Final = "[?#]|/((chat/)?completions|embeddings)/*$"


@spec_rule(
    "spec",
    field="retrieval.mode",
    reason=Reason.AGENT_MODE,
    message="an agent retrieves by itself, so only mode None is supported",
    values=lambda spec: spec.retrieval.mode,
    remedy="set retrieval.mode: None, or remove rollout.agent",
    cel=f"!({specified('rollout.agent')}) || {value_or('retrieval.mode', repr('None'))} == 'None'",
)
def agent_has_no_retrieval_mode(spec: JobSpec) -> bool:
    """Require retrieval mode None for agents."""
    return spec.rollout.agent is None or spec.retrieval.mode is RetrievalMode.NONE


@spec_rule(
    "spec.rollout.agent",
    field="python",
    reason=Reason.AGENT_INCOMPLETE,
    message="type Python needs a function, which other types do not have",
    values=lambda agent: agent.type,
    remedy="set type: Python and python: package.module:function, or remove python",
    cel=f"({_TYPE} == 'Python') == {is_filled('python')}",
)
def python_agent_has_function(agent: AgentSpec) -> bool:
    """Require a function for type Python only."""
    return (agent.type is AgentType.PYTHON) == bool(agent.python)


@spec_rule(
    "spec.rollout.agent",
    field="interpreter",
    reason=Reason.AGENT_INCOMPLETE,
    message="only type Python has an interpreter",
    values=lambda agent: agent.type,
    remedy="remove interpreter, or set type: Python",
    cel=f"{_TYPE} == 'Python' || !{is_filled('interpreter')}",
)
def only_python_agent_has_interpreter(agent: AgentSpec) -> bool:
    """Require an interpreter to be omitted for types other than Python."""
    return agent.type is AgentType.PYTHON or not agent.interpreter


@spec_rule(
    "spec.rollout.agent",
    field="url",
    reason=Reason.AGENT_INCOMPLETE,
    message="type Http needs a URL, which other types do not have",
    values=lambda agent: agent.type,
    remedy="set type: Http and url: http://agent:8000/answer, or remove url",
    cel=f"({_TYPE} == 'Http') == {is_filled('url')}",
)
def http_agent_has_url(agent: AgentSpec) -> bool:
    """Require a URL for type Http only."""
    return (agent.type is AgentType.HTTP) == bool(agent.url)


@spec_rule(
    "spec.rollout.agent",
    field="identify",
    reason=Reason.AGENT_IDENTIFICATION,
    message="calls of type Python are identified by Slot, those of other types by Trace or Request",
    values=lambda agent: f"{agent.type}, {agent.identify}",
    remedy="set identify: Request if the application uses the API key of its request, Trace if it "
    "passes on the header traceparent; omit it for type Python",
    cel=f"({_TYPE} == 'Python') == ({_IDENTIFY} == 'Slot')",
)
def identification_fits_type(agent: AgentSpec) -> bool:
    """Require identification by Slot for type Python only, whose processes have own keys."""
    return (agent.type is AgentType.PYTHON) == (agent.identify is Identification.SLOT)


@spec_rule(
    "spec.rollout.agent",
    field="container",
    reason=Reason.AGENT_INCOMPLETE,
    message="type Container needs an image, which other types do not have",
    values=lambda agent: agent.type,
    remedy="set type: Container and container: {image: ...}, or remove container",
    cel=f"({_TYPE} == 'Container') == has(self.container)",
)
def container_agent_has_image(agent: AgentSpec) -> bool:
    """Require an image for type Container only."""
    return (agent.type is AgentType.CONTAINER) == (agent.container is not None)


@spec_rule(
    "spec.rollout.agent",
    field="allowFrom",
    reason=Reason.AGENT_INCOMPLETE,
    message="the pods of an application of type Http must be named, so that they reach the gateway",
    values=lambda agent: agent.type,
    remedy="add allowFrom: {namespace: apps, podSelector: app=support}",
    cel=f"{_TYPE} != 'Http' || has(self.allowFrom)",
    applies=lambda inputs: inputs.in_pods,
)
def http_agent_reaches_gateway(agent: AgentSpec) -> bool:
    """Require the pods of type Http, from which the NetworkPolicy admits calls of the gateway."""
    return agent.type is not AgentType.HTTP or agent.allow_from is not None


@spec_rule(
    "spec.rollout.agent",
    field="allowFrom",
    reason=Reason.AGENT_INCOMPLETE,
    message="only type Http has pods that are not part of the job",
    values=lambda agent: agent.type,
    remedy="remove allowFrom, or set type: Http",
    cel=f"{_TYPE} == 'Http' || !has(self.allowFrom)",
)
def only_http_agents_admit_pods(agent: AgentSpec) -> bool:
    """Reject other pods for types whose application the job runs."""
    return agent.type is AgentType.HTTP or agent.allow_from is None


@spec_rule(
    "spec.rollout.agent",
    field="processMemory",
    reason=Reason.AGENT_INCOMPLETE,
    message="processes and processMemory belong to type Python",
    values=lambda agent: agent.type,
    remedy="remove them, or set type: Python; the memory of a container is container.memory",
    cel=f"{_TYPE} == 'Python' || ({value_or('processes', '0')} == 0 && "
    f"!{is_filled('processMemory')})",
)
def processes_are_used(agent: AgentSpec) -> bool:
    """Reject processes of types that have none."""
    return agent.type is AgentType.PYTHON or not (agent.processes or agent.process_memory)


@spec_rule(
    "spec.rollout.agent.container.env[]",
    field="name",
    reason=Reason.RESERVED_NAME,
    message="the variable is set by the operator to the gateway",
    values=lambda variable: variable.name,
    remedy="remove it; for a client of another server, use a variable with another name",
    cel=f"!(self.name in {sorted(names.GATEWAY_ENV)})",
)
def gateway_variables_are_not_set(variable: EnvVar) -> bool:
    """Reject variables that lead the application to the gateway."""
    return variable.name not in names.GATEWAY_ENV


@spec_rule(
    "spec.rollout.agent",
    field="forward",
    reason=Reason.NAME_NOT_UNIQUE,
    message="a model name is listed twice, in forward or in policyModels and forward",
    values=lambda agent: ", ".join(_repeated_models(agent)),
    remedy="list each name once; a name with * applies to the models that no longer name matches",
    # Without `orValue`, whose length is unknown, so that the API server accepts the cost.
    cel=(
        "!has(self.forward) || self.forward.all(f, f.models.all(m, f.models.exists_one(n, n == m) "
        "&& self.forward.exists_one(g, m in g.models)))",
        "!has(self.forward) || (has(self.policyModels) "
        "? self.forward.all(f, f.models.all(m, !(m in self.policyModels))) "
        ": self.forward.all(f, !('*' in f.models)))",
    ),
)
def model_names_are_unique(agent: AgentSpec) -> bool:
    """Require that a name means either the policy or the models of one endpoint."""
    return not _repeated_models(agent)


@spec_rule(
    "spec.rollout.agent.forward[]",
    field="url",
    reason=Reason.INVALID_URL,
    message="the URL is not a base URL, to which the path of each call is added",
    remedy="specify the URL up to /v1, without a query, such as http://judge:8000/v1",
    cel=f"!{matches('self.url', _NOT_A_BASE_URL)}",
)
def forward_url_is_a_base_url(forwarded: ForwardedModels) -> bool:
    """Reject URLs of a single endpoint, and queries, which clients would have to repeat."""
    return re.search(_NOT_A_BASE_URL, forwarded.url) is None


@spec_rule(
    "spec.rollout.agent",
    "spec.rollout.agent.forward[]",
    field="url",
    reason=Reason.SECRET_IN_PLAIN_TEXT,
    message="the URL contains a value that looks like a secret",
    remedy="remove the secret; specify the key of an endpoint in forward with apiKeySecret",
    cel=tuple(
        f"!has(self.url) || !{matches('self.url', pattern)}"
        for pattern in (SECRET_QUERY_PATTERN, *SECRET_VALUE_PATTERNS)
    ),
)
def agent_urls_contain_no_secret(service: AgentSpec | ForwardedModels) -> bool:
    """Reject a secret in a known format in a URL."""
    return not has_known_secret(service.url)


def _repeated_models(agent: AgentSpec) -> list[str]:
    """Return the names in `forward` that also have another meaning."""
    counts = Counter(name for each in agent.forward for name in each.models)
    return [name for name, n in counts.items() if n > 1 or name in agent.policy_models]


def container_agent_has_command(inputs: RuleInput) -> Iterator[Violation]:
    """Require a command in local runs, which run no images."""
    agent = inputs.spec.rollout.agent
    if not inputs.in_pods and agent and agent.container and not agent.container.command:
        message = "a local run does not run images, only the command"
        remedy = "specify the command, such as [python, -m, app], or run the job in a cluster"
        path = "spec.rollout.agent.container.command"
        yield Violation(path, Reason.AGENT_INCOMPLETE, message, remedy)


def request_depends_on_sample(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if the application gets the same request for all samples."""
    agent = inputs.spec.rollout.agent
    if agent is not None and not placeholders(agent.request) - GATEWAY_PLACEHOLDERS:
        message = "the request has no placeholder of a sample, so all samples get the same request"
        remedy = 'add a placeholder such as {question: "{question}"}, or a column of the data'
        yield warning("spec.rollout.agent.request", Reason.AGENT_INCOMPLETE, message, remedy)


def request_identifies_calls(inputs: RuleInput) -> Iterator[Violation]:
    """Require {apiKey} in the request if, and only if, calls are identified by it.

    Not a CEL rule, because CEL cannot read free-form JSON.
    """
    agent = inputs.spec.rollout.agent
    if agent is None:
        return
    used = placeholders(agent.request) & GATEWAY_PLACEHOLDERS
    by_request = agent.identify is Identification.REQUEST
    if by_request and "apiKey" not in used:
        message = "calls are identified by Request, but the request has no placeholder {apiKey}"
        remedy = "add {baseUrl} and {apiKey}, with which the application calls the model"
        yield Violation("spec.rollout.agent.request", Reason.AGENT_IDENTIFICATION, message, remedy)
    elif used and not by_request:
        listed = ", ".join(f"{{{name}}}" for name in sorted(used))
        message = f"{listed} is only available if calls are identified by Request"
        remedy = "remove it, or set identify: Request for type Http or Container"
        yield Violation("spec.rollout.agent.request", Reason.AGENT_IDENTIFICATION, message, remedy)
