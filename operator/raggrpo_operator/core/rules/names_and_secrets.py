"""Rules about names that must be unique and secrets that must not be written into the job."""

import posixpath
from collections import Counter
from collections.abc import Iterator
from urllib.parse import parse_qsl, urlsplit

from raggrpo_api import names
from raggrpo_api.spec.secret_names import looks_secret
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
        "spec.volumes (mountPath)": [volume.mount_path for volume in spec.volumes],
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


def mount_paths_are_free(given: RuleInput) -> Iterator[Violation]:
    """Reject volumes that hide a folder every pod needs; a local run has no pods."""
    if names.ANNOTATION_MOUNTED in given.job.metadata.annotations:
        return
    for index, volume in enumerate(given.spec.volumes):
        if posixpath.normpath(volume.mount_path) in names.RESERVED_MOUNTS:
            path = f"spec.volumes[{index}].mountPath"
            message = f"{volume.mount_path} belongs to the image or to the pod"
            remedy = "mount it elsewhere, such as /mnt/data"
            yield Violation(path, Reason.RESERVED_NAME, message, remedy)


def values_have_one_source(given: RuleInput) -> Iterator[Violation]:
    """Reject a value that is both written out and a reference; a header needs one of the two."""
    for index, variable in enumerate(given.spec.env):
        if variable.value and variable.secret_key_ref:
            yield _one_source(f"spec.env[{index}]", f"{variable.name} has both")
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        for position, header in enumerate(endpoint.headers):
            if bool(header.value) == bool(header.secret_key_ref):
                state = "has both" if header.value else "has neither"
                path = f"spec.retrieval.endpoints[{index}].headers[{position}]"
                yield _one_source(path, f"{header.name} {state}")


def secrets_come_by_reference(given: RuleInput) -> Iterator[Violation]:
    """Reject secrets in plain text: whoever can read the job could read them."""
    for place, name, value in _literals(given):
        if value and looks_secret(name):
            message = f"{name} looks like a secret and is written in plain text"
            remedy = "put the value into a Secret; give secretKeyRef: {name, key}"
            yield Violation(place, Reason.SECRET_IN_PLAIN_TEXT, message, remedy)


def _literals(given: RuleInput) -> Iterator[Literal]:
    for index, variable in enumerate(given.spec.env):
        yield f"spec.env[{index}].value", variable.name, variable.value
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        path = f"spec.retrieval.endpoints[{index}]"
        for position, header in enumerate(endpoint.headers):
            yield f"{path}.headers[{position}].value", header.name, header.value
        for key, value in endpoint.extra_body.items():
            yield f"{path}.extraBody.{key}", key, value
        for key, value in parse_qsl(urlsplit(endpoint.url).query):
            yield f"{path}.url", key, value
    for index, term in enumerate(given.spec.reward.functions):
        for key, value in parse_qsl(urlsplit(term.url).query):
            yield f"spec.reward.functions[{index}].url", key, value


def _one_source(path: str, problem: str) -> Violation:
    remedy = "give exactly one of value and secretKeyRef"
    return Violation(path, Reason.ONE_SOURCE_OF_VALUE, f"{problem} value and secretKeyRef", remedy)
