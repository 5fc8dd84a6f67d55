"""Rules on unique and reserved names, and on secrets in plain text."""

from collections import Counter
from collections.abc import Iterator
from typing import Any

from raggrpo_api import names
from raggrpo_api.fields.base import SecretKeyRef
from raggrpo_api.fields.reach import Server
from raggrpo_api.secrets.detection import has_secret, secret_texts
from raggrpo_api.secrets.names import SECRET_NAME_PATTERN, SECRET_QUERY_PATTERN, is_secret_name
from raggrpo_api.secrets.values import SECRET_VALUE_PATTERNS, has_known_secret
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import CaBundle, EnvVar, Volume
from raggrpo_api.spec.retrieval import Header, RetrievalEndpoint
from raggrpo_api.spec.reward import RewardFunction
from raggrpo_operator.core.spec.called_secrets import called_secrets
from raggrpo_operator.core.spec.marked_fields import marked_values
from raggrpo_operator.core.spec.path_fields import is_within
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import is_filled, matches
from .base.rule_input import RuleInput
from .base.spec_rule import spec_rule, values_at

_AGENT = "spec.rollout.agent"
_CONTAINER = f"{_AGENT}.container"
ENV = ("spec.env[]", f"{_CONTAINER}.env[]")
OTHER_TEXTS = (
    "spec.checkpoint.backup.url",
    "spec.egress[]",
    *(f"{_CONTAINER}.{name}[]" for name in ("command", "args", "egress")),
)
"""Texts outside the CEL rules on secrets."""
HEADERS = ("spec.retrieval.endpoints[].headers[]", "spec.reward.functions[].judge.headers[]")
URLS = ("spec.retrieval.endpoints[]", "spec.reward.functions[]")
_FOLDERS = "|".join(sorted(path.removeprefix("/") for path in names.RESERVED_MOUNTS))
_PARENTS = {path.rpartition("/")[0].removeprefix("/") for path in names.RESERVED_MOUNTS}
_MOUNTS = f"^/(({_FOLDERS})(/.*)?|({'|'.join(sorted(_PARENTS))})/?)$"
"""Pattern of mount paths that overlap reserved folders: the folders, their contents and parents."""
_OPT_OUT = "if it is not a secret, set notSecret: true"
_USE_SECRET = f"store the value in a Secret and specify secretKeyRef: {{name, key}}; {_OPT_OUT}"
_USE_HEADER = f"remove the secret; use a header with secretKeyRef; {_OPT_OUT}"
_USE_ENV = (
    "remove the secret; pass it to the application in a variable with secretKeyRef; " + _OPT_OUT
)
_IS_NOT_SECRET = "(has(self.notSecret) && self.notSecret)"


def names_are_unique(inputs: RuleInput) -> Iterator[Violation]:
    """Require unique names within each list, which the API server enforces by list map keys."""
    spec = inputs.spec
    lists = {
        "spec.retrieval.endpoints": [endpoint.name for endpoint in spec.retrieval.endpoints],
        "spec.volumes": [volume.name for volume in spec.volumes],
        "spec.env": [variable.name for variable in spec.env],
    }
    if (agent := spec.rollout.agent) is not None and agent.container is not None:
        lists["spec.rollout.agent.container.env"] = [each.name for each in agent.container.env]
    for path, listed in lists.items():
        for name, count in Counter(listed).items():
            if count > 1:
                message = f"{name} is used {count} times"
                yield Violation(path, Reason.NAME_NOT_UNIQUE, message, "use unique names")


@spec_rule(
    "spec",
    field="imagePullSecrets",
    reason=Reason.NAME_NOT_UNIQUE,
    message="a name is listed twice",
    remedy="list each name once",
    cel="!has(self.imagePullSecrets) || "
    "self.imagePullSecrets.all(s, self.imagePullSecrets.exists_one(t, t == s))",
)
def pull_secrets_are_unique(spec: JobSpec) -> bool:
    """Require unique pull secrets."""
    return len(set(spec.image_pull_secrets)) == len(spec.image_pull_secrets)


@spec_rule(
    "spec.volumes",
    reason=Reason.NAME_NOT_UNIQUE,
    message="two volumes have the same mountPath",
    remedy="mount each volume at its own path",
    cel="self.all(v, self.exists_one(w, w.mountPath == v.mountPath || "
    "w.mountPath == v.mountPath + '/' || w.mountPath + '/' == v.mountPath))",
)
def mount_paths_are_unique(volumes: list[Volume]) -> bool:
    """Require unique mount paths."""
    return len({volume.mount_path.rstrip("/") for volume in volumes}) == len(volumes)


@spec_rule(
    "spec.retrieval.actorOutput.fields",
    reason=Reason.NAME_NOT_UNIQUE,
    message="a name is listed twice",
    remedy="list each name once",
    cel="self.all(f, self.exists_one(g, g == f))",
)
def actor_fields_are_unique(fields: list[str]) -> bool:
    """Require unique fields of the actor."""
    return len(set(fields)) == len(fields)


@spec_rule(
    *ENV,
    field="name",
    reason=Reason.RESERVED_NAME,
    message="the variable is set by the operator",
    values=lambda variable: variable.name,
    remedy="remove it",
    cel=f"!(self.name in {sorted(names.RESERVED_ENV)}) && !self.name.startsWith("
    f"'{names.SECRET_ENV_PREFIX}')",
)
def env_is_not_reserved(variable: EnvVar) -> bool:
    """Reject variables that the operator sets itself."""
    is_reserved = variable.name in names.RESERVED_ENV
    return not is_reserved and not variable.name.startswith(names.SECRET_ENV_PREFIX)


@spec_rule(
    *HEADERS,
    field="name",
    reason=Reason.RESERVED_NAME,
    message="the header is set by the HTTP client",
    values=lambda header: header.name,
    remedy="remove it",
    cel=f"!(self.name.lowerAscii() in {sorted(names.RESERVED_HEADERS)})",
)
def headers_are_not_reserved(header: Header) -> bool:
    """Reject headers that the HTTP client sets, because a wrong value would break every call."""
    return header.name.lower() not in names.RESERVED_HEADERS


def secret_variables_are_unique(inputs: RuleInput) -> Iterator[Violation]:
    """Reject Secret references that map to the same environment variable."""
    known: dict[str, SecretKeyRef] = {}
    for path, ref in called_secrets(inputs.spec):
        other = known.setdefault(names.secret_env(ref.name, ref.key), ref)
        if other != ref:
            message = (
                f"{ref.name}/{ref.key} and {other.name}/{other.key} differ only in case or "
                "punctuation, so they map to the same environment variable"
            )
            remedy = "rename one of the Secrets or keys"
            yield Violation(path, Reason.NAME_NOT_UNIQUE, message, remedy)


@spec_rule(
    "spec.volumes[]",
    field="mountPath",
    reason=Reason.RESERVED_NAME,
    message="the path overlaps a folder that belongs to the image or the pod",
    values=lambda volume: volume.mount_path,
    remedy="use another path, such as /mnt/data",
    cel=f"!{matches('self.mountPath', _MOUNTS)}",
    applies=lambda inputs: inputs.in_pods,
)
def mount_path_is_not_reserved(volume: Volume) -> bool:
    """Reject mount paths that would hide a folder that every pod needs."""
    mount = volume.mount_path
    return not any(
        is_within(mount, each) or is_within(each, mount) for each in names.RESERVED_MOUNTS
    )


@spec_rule(
    "spec.volumes[]",
    field="mountPath",
    reason=Reason.RESERVED_NAME,
    message="Kubernetes rejects a mountPath with a colon",
    values=lambda volume: volume.mount_path,
    remedy="use a path without colons",
    cel="!self.mountPath.contains(':')",
    applies=lambda inputs: inputs.in_pods,
)
def mount_path_has_no_colon(volume: Volume) -> bool:
    """Reject mount paths that Kubernetes rejects."""
    return ":" not in volume.mount_path


@spec_rule(
    *ENV,
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="value and secretKeyRef are both specified",
    values=lambda variable: variable.name,
    remedy="remove one of the two",
    cel="!(has(self.value) && size(self.value) > 0 && has(self.secretKeyRef))",
)
def variable_has_one_source(variable: EnvVar) -> bool:
    """Reject a variable with both a value and a Secret reference."""
    return not (variable.value and variable.secret_key_ref)


@spec_rule(
    "spec.caBundle",
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="exactly one of secret and configMap is required",
    remedy="specify one of the two",
    cel=f"{is_filled('secret')} != {is_filled('configMap')}",
)
def ca_bundle_has_one_source(bundle: CaBundle) -> bool:
    """Require either a Secret or a ConfigMap."""
    return bool(bundle.secret) != bool(bundle.config_map)


@spec_rule(
    *HEADERS,
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="exactly one of value and secretKeyRef is required",
    values=lambda header: header.name,
    remedy="specify one of the two",
    cel="(has(self.value) && size(self.value) > 0) != has(self.secretKeyRef)",
)
def header_has_one_source(header: Header) -> bool:
    """Require either a value or a Secret reference."""
    return bool(header.value) != (header.secret_key_ref is not None)


@spec_rule(
    *ENV,
    *HEADERS,
    field="value",
    reason=Reason.SECRET_IN_PLAIN_TEXT,
    message="the name looks like a secret, but the value is in plain text",
    values=lambda literal: literal.name,
    remedy=_USE_SECRET,
    cel=f"{_IS_NOT_SECRET} || !has(self.value) || size(self.value) == 0 || "
    f"!{matches('self.name', SECRET_NAME_PATTERN)}",
)
def secret_names_have_no_value(literal: EnvVar | Header) -> bool:
    """Reject a literal value whose name looks like a secret, because job readers could see it."""
    return literal.not_secret or not literal.value or not is_secret_name(literal.name)


@spec_rule(
    *ENV,
    *HEADERS,
    field="value",
    reason=Reason.SECRET_IN_PLAIN_TEXT,
    message="the value looks like a secret in plain text",
    values=lambda literal: literal.name,
    remedy=_USE_SECRET,
    cel=tuple(
        f"{_IS_NOT_SECRET} || !has(self.value) || !{matches('self.value', pattern)}"
        for pattern in SECRET_VALUE_PATTERNS
    ),
)
def values_contain_no_secret(literal: EnvVar | Header) -> bool:
    """Reject a value in a known format of secrets, regardless of its name."""
    return literal.not_secret or not has_known_secret(literal.value)


@spec_rule(
    *URLS,
    field="url",
    reason=Reason.SECRET_IN_PLAIN_TEXT,
    message="the URL contains a value that looks like a secret",
    remedy=_USE_HEADER,
    cel=tuple(
        f"{_IS_NOT_SECRET} || !has(self.url) || !{matches('self.url', pattern)}"
        for pattern in (SECRET_QUERY_PATTERN, *SECRET_VALUE_PATTERNS)
    ),
)
def urls_contain_no_secret(service: RetrievalEndpoint | RewardFunction) -> bool:
    """Reject a secret in a known format in a URL."""
    return service.not_secret or not has_known_secret(service.url)


def other_strings_contain_no_secret(inputs: RuleInput) -> Iterator[Violation]:
    """Reject what CEL cannot recognize: secrets in other formats, free-form JSON, other URLs."""
    yield from _other_literals(inputs)
    yield from _agent_urls(inputs)
    for path, value, remedy in _free_json(inputs):
        for finding in secret_texts(value, path):
            rule = secret_names_have_no_value if finding.by_name else values_contain_no_secret
            message = f"{rule.message} ({finding.name})"
            yield Violation(finding.path, Reason.SECRET_IN_PLAIN_TEXT, message, remedy)
    for place in OTHER_TEXTS:
        for path, text in values_at(inputs.spec, place):
            if has_known_secret(text):
                message = "the text contains a value that looks like a secret"
                remedy = f"remove the secret; specify it in {_env_of(place)} with secretKeyRef"
                yield Violation(path, Reason.SECRET_IN_PLAIN_TEXT, message, remedy)


def _env_of(place: str) -> str:
    """Return the environment of the pods that read the field."""
    return ENV[place.startswith(_CONTAINER)].removesuffix("[]")


def _other_literals(inputs: RuleInput) -> Iterator[Violation]:
    for rule in (values_contain_no_secret, urls_contain_no_secret):
        for place in rule.places:
            for path, literal in values_at(inputs.spec, place):
                text = getattr(literal, rule.field)
                if rule.is_met(literal) and not literal.not_secret and has_secret(text):
                    name = f" ({rule.values(literal)})" if rule.values else ""
                    message = rule.message + name
                    yield Violation(f"{path}.{rule.field}", rule.reason, message, rule.remedy)


def _agent_urls(inputs: RuleInput) -> Iterator[Violation]:
    """Reject what `agent_urls_contain_no_secret` cannot recognize, unless the agent accepts it."""
    agent = inputs.spec.rollout.agent
    if agent is None or agent.not_secret:
        return
    for path, _, url in marked_values(agent, Server, _AGENT):
        is_checked = path.startswith(_CONTAINER) or has_known_secret(url)
        if not is_checked and has_secret(url):
            message = "the URL contains a value that looks like a secret"
            remedy = f"remove the secret; pass it in a variable with secretKeyRef; {_OPT_OUT}"
            yield Violation(path, Reason.SECRET_IN_PLAIN_TEXT, message, remedy)


def _free_json(inputs: RuleInput) -> Iterator[tuple[str, Any, str]]:
    """Yield (path, value, remedy) of each free-form JSON value that may not contain a secret."""
    for index, endpoint in enumerate(inputs.spec.retrieval.endpoints):
        if not endpoint.not_secret:
            path = f"spec.retrieval.endpoints[{index}]"
            yield f"{path}.extraBody", endpoint.extra_body, _USE_HEADER
            yield f"{path}.body", endpoint.body, _USE_HEADER
    for index, judge in inputs.spec.reward.judges:
        if not inputs.spec.reward.functions[index].not_secret:
            path = f"spec.reward.functions[{index}].judge.extraBody"
            yield path, judge.extra_body, _USE_HEADER
    agent = inputs.spec.rollout.agent
    if agent is not None and not agent.not_secret:
        yield f"{_AGENT}.request", agent.request, _USE_ENV
