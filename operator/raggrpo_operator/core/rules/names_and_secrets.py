"""Rules about names that must be unique and secrets that must not be written into the job."""

from collections import Counter
from collections.abc import Iterator

from raggrpo_api import names
from raggrpo_api.fields.addresses import url_problem
from raggrpo_api.fields.base import SecretKeyRef
from raggrpo_api.fields.json_values import iter_texts
from raggrpo_api.spec.retrieval import Header
from raggrpo_api.spec.secret_names import is_secret_name
from raggrpo_api.spec.secret_values import has_secret
from raggrpo_operator.core.spec.path_fields import is_within
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput

Literal = tuple[str, str, str]
"""(place, name, value) of a value written into the job in plain text."""


def names_are_unique(given: RuleInput) -> Iterator[Violation]:
    """Require names that are unique within their list."""
    spec = given.spec
    lists = {
        "spec.retrieval.endpoints": [endpoint.name for endpoint in spec.retrieval.endpoints],
        "spec.volumes": [volume.name for volume in spec.volumes],
        "spec.volumes (mountPath)": [v.mount_path.rstrip("/") for v in spec.volumes],
        "spec.imagePullSecrets": spec.image_pull_secrets,
        "spec.env": [variable.name for variable in spec.env],
        "spec.retrieval.actorOutput.fields": spec.retrieval.actor_output.fields,
    }
    for path, found in lists.items():
        for name, count in Counter(found).items():
            if count > 1:
                message = f"{name} is given {count} times"
                yield Violation(path, Reason.NAME_NOT_UNIQUE, message, "give each its own name")


def env_is_not_reserved(given: RuleInput) -> Iterator[Violation]:
    """Reject variables that the operator sets itself."""
    for index, variable in enumerate(given.spec.env):
        if variable.name in names.RESERVED_ENV or variable.name.startswith(names.SECRET_ENV_PREFIX):
            message = f"{variable.name} is set by the operator"
            yield Violation(f"spec.env[{index}].name", Reason.RESERVED_NAME, message, "remove it")


def headers_are_not_reserved(given: RuleInput) -> Iterator[Violation]:
    """Reject headers that say how a message is sent: a wrong one breaks every call."""
    for path, header in _headers(given):
        if header.name.lower() in names.RESERVED_HEADERS:
            message = f"{header.name} is set by the HTTP client"
            yield Violation(f"{path}.name", Reason.RESERVED_NAME, message, "remove it")


def secrets_have_variables_of_their_own(given: RuleInput) -> Iterator[Violation]:
    """Reject references that would share a variable, and so the value of one of them."""
    seen: dict[str, SecretKeyRef] = {}
    for path, ref in _references(given):
        known = seen.setdefault(names.secret_env(ref.name, ref.key), ref)
        if known != ref:
            message = f"{ref.name}/{ref.key} and {known.name}/{known.key} differ in signs only"
            remedy = "rename the Secret or the key of one of them"
            yield Violation(f"{path}.secretKeyRef", Reason.NAME_NOT_UNIQUE, message, remedy)


def mount_paths_are_free(given: RuleInput) -> Iterator[Violation]:
    """Reject volumes that hide a folder every pod needs; a local run has no pods."""
    for index, volume in enumerate(given.spec.volumes if given.in_pods else []):
        path, remedy = f"spec.volumes[{index}].mountPath", "mount it elsewhere, such as /mnt/data"
        mount = volume.mount_path
        if any(is_within(mount, each) or is_within(each, mount) for each in names.RESERVED_MOUNTS):
            message = f"{mount} belongs to the image or to the pod"
            yield Violation(path, Reason.RESERVED_NAME, message, remedy)
        elif ":" in mount:
            message = f"{mount} has a colon, which no mount may have"
            yield Violation(path, Reason.RESERVED_NAME, message, remedy)


def values_have_one_source(given: RuleInput) -> Iterator[Violation]:
    """Reject a value that is both written out and a reference; a header needs one of the two."""
    for index, variable in enumerate(given.spec.env):
        if variable.value and variable.secret_key_ref:
            yield _one_source(f"spec.env[{index}]", f"{variable.name} has both")
    for path, header in _headers(given):
        if bool(header.value) == bool(header.secret_key_ref):
            state = "has both" if header.value else "has neither"
            yield _one_source(path, f"{header.name} {state}")


def secrets_come_by_reference(given: RuleInput) -> Iterator[Violation]:
    """Reject secrets in plain text: whoever can read the job could read them."""
    by_reference = "put the value into a Secret; give secretKeyRef: {name, key}"
    by_header = "take it out; give a header with secretKeyRef"  # requests have no references
    found = [(literal, by_reference) for literal in _literals(given)]
    found += [(literal, by_header) for literal in _free_json(given)]
    for (place, name, value), remedy in found:
        if value and is_secret_name(name):
            message = f"{name} looks like a secret and is written in plain text"
            yield Violation(place, Reason.SECRET_IN_PLAIN_TEXT, message, remedy)
        elif has_secret(value):
            message = f"{name} holds what looks like a secret, in plain text"
            yield Violation(place, Reason.SECRET_IN_PLAIN_TEXT, message, remedy)
    for place, url in _urls(given):
        if has_secret(url):
            message = "the URL holds what looks like a secret, in plain text"
            yield Violation(place, Reason.SECRET_IN_PLAIN_TEXT, message, by_header)


def urls_can_be_called(given: RuleInput) -> Iterator[Violation]:
    """Reject addresses that look like URLs and that no client takes."""
    for place, url in _urls(given):
        if problem := url_problem(url):
            remedy = "give a full URL such as http://host:8000/retrieve"
            yield Violation(place, Reason.INVALID_URL, f"of the URL, {problem}", remedy)


def _literals(given: RuleInput) -> Iterator[Literal]:
    for index, variable in enumerate(given.spec.env):
        yield f"spec.env[{index}].value", variable.name, variable.value
    for path, header in _headers(given):
        yield f"{path}.value", header.name, header.value


def _free_json(given: RuleInput) -> Iterator[Literal]:
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        path = f"spec.retrieval.endpoints[{index}]"
        yield from iter_texts(endpoint.extra_body, f"{path}.extraBody")
        yield from iter_texts(endpoint.body, f"{path}.body")
    for index, judge in given.spec.reward.judges:
        yield from iter_texts(judge.extra_body, f"spec.reward.functions[{index}].judge.extraBody")


def _urls(given: RuleInput) -> Iterator[tuple[str, str]]:
    """Yield (place, URL) of every address that is given."""
    spec = given.spec
    found = {
        f"spec.retrieval.endpoints[{i}].url": each.url
        for i, each in enumerate(spec.retrieval.endpoints)
    }
    found |= {
        f"spec.reward.functions[{i}].url": each.url for i, each in enumerate(spec.reward.functions)
    }
    found["spec.checkpoint.backup.url"] = spec.checkpoint.backup.url
    yield from ((place, url) for place, url in found.items() if url)


def _headers(given: RuleInput) -> Iterator[tuple[str, Header]]:
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        for position, header in enumerate(endpoint.headers):
            yield f"spec.retrieval.endpoints[{index}].headers[{position}]", header
    for index, judge in given.spec.reward.judges:
        for position, header in enumerate(judge.headers):
            yield f"spec.reward.functions[{index}].judge.headers[{position}]", header


def _references(given: RuleInput) -> Iterator[tuple[str, SecretKeyRef]]:
    """Yield the references that become variables named after Secret and key."""
    for path, header in _headers(given):
        if header.secret_key_ref is not None:
            yield path, header.secret_key_ref


def _one_source(path: str, problem: str) -> Violation:
    remedy = "give exactly one of value and secretKeyRef"
    return Violation(path, Reason.ONE_SOURCE_OF_VALUE, f"{problem} value and secretKeyRef", remedy)
