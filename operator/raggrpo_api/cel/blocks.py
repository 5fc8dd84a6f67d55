"""CEL rules about a single block, or a single item of a list."""

from collections.abc import Mapping

from raggrpo_api.kubernetes_names import (
    NATIVE_RESOURCES,
    QUALIFIED_NAME,
    QUOTA_RESOURCES,
    SYSTEM_PRIORITY,
)
from raggrpo_api.names import RESERVED_ENV, RESERVED_HEADERS, RESERVED_MOUNTS, SECRET_ENV_PREFIX
from raggrpo_api.spec.resources import CPU_RANGE, MEMORY_RANGE, SHM_RANGE
from raggrpo_api.spec.retrieval import BODY_FIELD
from raggrpo_api.spec.secret_names import SECRET_NAME_PATTERN, SECRET_QUERY_PATTERN
from raggrpo_api.spec.secret_values import SECRET_VALUE_PATTERN

from .rule import CelRule, either, if_given, is_one_of, matches

_NOT_LITERAL = CelRule(
    f"!has(self.value) || size(self.value) == 0 || !{matches('self.name', SECRET_NAME_PATTERN)}",
    "value: the name looks like a secret, give secretKeyRef instead of value",
)
_NO_SECRET_IN_VALUE = CelRule(
    f"!has(self.value) || !{matches('self.value', SECRET_VALUE_PATTERN)}",
    "value: it looks like a secret, give secretKeyRef instead of value",
)
_OF_A_POD = "|".join(sorted(path.removeprefix("/") for path in RESERVED_MOUNTS))
_ABOVE = {path.rpartition("/")[0].removeprefix("/") for path in RESERVED_MOUNTS}
_MOUNTS = f"^/(({_OF_A_POD})(/.*)?|({'|'.join(sorted(_ABOVE))})/?)$"
"""Folders of a pod, what lies in them, and folders that would hide them."""
_ON_CPU = is_one_of("device", "CPU")
_APART = is_one_of("placement", "Disaggregated")
_READS_PASSAGES = is_one_of("mode", "Prompt", "Search")
_NO_SECRET_IN_URL = (
    CelRule(
        f"!has(self.url) || !{matches('self.url', SECRET_QUERY_PATTERN)}",
        "url: its query holds what looks like a secret; take it out, use a header with "
        "secretKeyRef",
        ".url",
    ),
    CelRule(
        f"!has(self.url) || !{matches('self.url', SECRET_VALUE_PATTERN)}",
        "url: it holds what looks like a secret; take it out, use a header with secretKeyRef",
        ".url",
    ),
)


def _within(field: str, limits: tuple[str, str], *, of: str = "") -> CelRule:
    """Return a rule that an amount which is given lies within its limits."""
    least, most = limits
    amount = f"quantity(self.{field})"
    condition = (
        f"size(self.{field}) == 0 || ({amount}.compareTo(quantity('{least}')) >= 0 && "
        f"{amount}.compareTo(quantity('{most}')) <= 0)"
    )
    message = f"{of}{field} is not within {least} to {most}; leave it out to have it sized"
    return CelRule(if_given((field,), condition), message, f".{field}")


_OBJECTIVE: Mapping[str, tuple[CelRule, ...]] = {
    "spec.data.columns": (
        CelRule(
            "!has(self.prompt) || size(self.prompt) > 0",
            "data.columns.prompt: name the column that holds the prompts",
            ".prompt",
        ),
    ),
    "spec.algorithm": (
        CelRule(
            if_given(("groupSize",), "self.groupSize >= 2"),
            "algorithm.groupSize: a group of one completion has no advantage, give 2 or more",
            ".groupSize",
        ),
        CelRule(
            if_given(
                ("clipRatioLow", "clipRatioHigh"),
                "double(self.clipRatioLow) <= double(self.clipRatioHigh)",
            ),
            "algorithm.clipRatioHigh must not be below clipRatioLow; 0.2 and 0.28 are usual",
            ".clipRatioHigh",
        ),
        CelRule(
            if_given(("clipRatioHigh",), "double(self.clipRatioHigh) > 0.0"),
            "algorithm.clipRatioHigh must be above 0; 0.28 is usual",
            ".clipRatioHigh",
        ),
    ),
    "spec.rollout": (
        CelRule(
            "!has(self.__false__)",
            'rollout.n: YAML 1.1, which kubectl reads, takes a bare n for false; write "n": 3, '
            "or give algorithm.groupSize instead",
        ),
        CelRule(
            if_given(("n",), "self.n >= 2"),
            "rollout.n: a group of one completion has no advantage, give 2 or more",
            ".n",
        ),
        CelRule(  # for a value written as an integer, the API server truncates the bound to 0
            if_given(("gpuMemoryUtilization",), "double(self.gpuMemoryUtilization) >= 0.05"),
            "rollout.gpuMemoryUtilization must be at least 0.05; 0.6 is usual",
            ".gpuMemoryUtilization",
        ),
        CelRule(
            if_given(("temperature",), "double(self.temperature) > 0.0"),
            "rollout.temperature must be above 0: equal completions carry no advantage",
            ".temperature",
        ),
    ),
    "spec.training": (
        CelRule(
            if_given(("totalSteps", "epochs"), "self.totalSteps == 0 || self.epochs == 0"),
            "give either training.totalSteps or training.epochs, not both",
            ".epochs",
        ),
    ),
    "spec.reward": (
        CelRule(
            if_given(
                ("functions",),
                "self.functions.exists(f, !has(f.weight) || double(f.weight) != 0.0)",
            ),
            "reward.functions: every weight is 0, give at least one function a weight",
            ".functions",
        ),
    ),
    "spec.reward.functions[]": (
        CelRule(
            "self.name != 'Python' || (has(self.python) && size(self.python) > 0)",
            "reward Python needs python: package.module:function",
        ),
        CelRule(
            "self.name != 'Http' || (has(self.url) && size(self.url) > 0)", "reward Http needs url"
        ),
        *_NO_SECRET_IN_URL,
    ),
}

_RETRIEVAL: Mapping[str, tuple[CelRule, ...]] = {
    "spec.retrieval": (
        CelRule(
            f"!{_READS_PASSAGES} || (has(self.endpoints) && self.endpoints.exists_one(e, "
            "!has(e.role) || e.role == 'Retriever'))",
            "modes Prompt and Search need in retrieval.endpoints exactly one endpoint with role "
            "Retriever",
            ".endpoints",
        ),
        CelRule(
            f"!{is_one_of('mode', 'Prompt')} || !has(self.promptTemplate) || "
            "(self.promptTemplate.contains('{passages') && "
            "self.promptTemplate.contains('{prompt'))",
            "retrieval.promptTemplate: write {passages} and {prompt} where they belong",
            ".promptTemplate",
        ),
        CelRule(
            f"!{_READS_PASSAGES} || !has(self.passageTemplate) || "
            "self.passageTemplate.contains('{text')",
            "retrieval.passageTemplate: write {text} where a passage belongs",
            ".passageTemplate",
        ),
    ),
    "spec.retrieval.actorOutput.fields": (
        CelRule(
            "self.all(f, self.exists_one(g, g == f))",
            "retrieval.actorOutput.fields: a name is given twice, give each its own",
        ),
    ),
    "spec.retrieval.endpoints[]": (
        CelRule(
            "(has(self.url) && size(self.url) > 0) != has(self.managed)",
            "give exactly one of url and managed",
        ),
        CelRule(
            f"({either('role', repr('Retriever'))} == 'Retriever') == "
            f"({either('protocol', repr('SearchR1'))} == 'SearchR1')",
            "protocol: role Retriever speaks SearchR1, roles Actor and Reference speak RagChat",
            ".protocol",
        ),
        CelRule(
            "!has(self.extraBody) || self.extraBody.all(k, size(self.extraBody[k]) == 0 || "
            f"!{matches('k', SECRET_NAME_PATTERN)})",
            "extraBody: a name looks like a secret; use a header with secretKeyRef",
            ".extraBody",
        ),
        CelRule(
            "!has(self.extraBody) || self.extraBody.all(k, "
            f"!{matches('self.extraBody[k]', SECRET_VALUE_PATTERN)})",
            "extraBody: a value looks like a secret; use a header with secretKeyRef",
            ".extraBody",
        ),
        CelRule(
            "!has(self.extraBody) || self.extraBody.all(k, size(k) <= 64 && "
            f"{matches('k', BODY_FIELD)})",
            "extraBody: names are printable ASCII, at most 64 characters",
            ".extraBody",
        ),
        *_NO_SECRET_IN_URL,
    ),
    "spec.retrieval.endpoints[].managed": (
        CelRule(
            "!has(self.index) || self.index != 'Dense' || "
            "(has(self.vectors) && size(self.vectors) > 0)",
            "index Dense needs vectors",
        ),
        _within("memory", MEMORY_RANGE),
    ),
    "spec.retrieval.endpoints[].headers[]": (
        CelRule(
            "(has(self.value) && size(self.value) > 0) != has(self.secretKeyRef)",
            "give exactly one of value and secretKeyRef",
        ),
        _NOT_LITERAL,
        _NO_SECRET_IN_VALUE,
        CelRule(
            f"!(self.name.lowerAscii() in {sorted(RESERVED_HEADERS)})",
            "name: this header is set by the HTTP client, remove it",
            ".name",
        ),
    ),
}

_RUNNING: Mapping[str, tuple[CelRule, ...]] = {
    "spec.checkpoint": (
        CelRule(
            if_given(("keepLast",), "self.keepLast >= 2"),
            "keepLast must be 2 or more: a damaged newest checkpoint needs one to fall back to",
            ".keepLast",
        ),
    ),
    "spec.resources": (
        CelRule(
            f"!has(self.gpusPerNode) || self.gpusPerNode > 0 || {_ON_CPU}",
            "resources.gpusPerNode: 1 or more, or resources.device: CPU",
            ".gpusPerNode",
        ),
        CelRule(
            f"{_ON_CPU} || !has(self.rolloutGpus) || self.rolloutGpus == 0 || {_APART}",
            "resources.rolloutGpus needs placement Disaggregated",
            ".rolloutGpus",
        ),
        CelRule(
            f"{_ON_CPU} || !{_APART} || (has(self.rolloutGpus) && self.rolloutGpus > 0)",
            "placement Disaggregated needs resources.rolloutGpus: 1 or more",
            ".rolloutGpus",
        ),
        CelRule(
            if_given(
                ("shmSize", "memory"),
                "size(self.shmSize) == 0 || size(self.memory) == 0 || "
                "quantity(self.shmSize).isLessThan(quantity(self.memory))",
            ),
            "resources.shmSize must be below resources.memory, to which it is charged; "
            "empty values are sized",
            ".shmSize",
        ),
        _within("cpu", CPU_RANGE, of="resources."),
        _within("memory", MEMORY_RANGE, of="resources."),
        _within("shmSize", SHM_RANGE, of="resources."),
        CelRule(
            f"!has(self.gpuResourceName) || !(self.gpuResourceName.contains('{NATIVE_RESOURCES}')"
            f" || self.gpuResourceName.startsWith('{QUOTA_RESOURCES}'))",
            "resources.gpuResourceName: give an extended resource such as nvidia.com/gpu",
            ".gpuResourceName",
        ),
    ),
    "spec.scheduling": (
        CelRule(
            "!has(self.nodeSelector) || self.nodeSelector.all(k, size(k) <= 253 && "
            f"{matches('k', QUALIFIED_NAME)})",
            "nodeSelector: write keys of labels such as nvidia.com/gpu.product",
            ".nodeSelector",
        ),
        CelRule(
            "!has(self.priorityClassName) || "
            f"!self.priorityClassName.startsWith('{SYSTEM_PRIORITY}')",
            "priorityClassName: this class belongs to the cluster, give one for jobs",
            ".priorityClassName",
        ),
    ),
    "spec.scheduling.tolerations[]": (
        CelRule(
            "!has(self.operator) || self.operator != 'Equal' || "
            "(has(self.key) && size(self.key) > 0)",
            "tolerations: Equal compares a key, give key, or operator: Exists",
        ),
        CelRule(
            "(has(self.operator) && self.operator == 'Equal') || !has(self.value) || "
            "size(self.value) == 0",
            "tolerations: Exists takes no value, remove it, or give operator: Equal",
        ),
    ),
    "spec.recovery": (
        CelRule(
            if_given(
                ("backoffSeconds", "maxBackoffSeconds"),
                "self.maxBackoffSeconds >= self.backoffSeconds",
            ),
            "recovery.maxBackoffSeconds must not be below backoffSeconds",
            ".maxBackoffSeconds",
        ),
    ),
    "spec.volumes": (
        CelRule(
            "self.all(v, self.exists_one(w, w.mountPath == v.mountPath || "
            "w.mountPath == v.mountPath + '/' || w.mountPath + '/' == v.mountPath))",
            "volumes: a mountPath is given twice, give each volume its own",
        ),
    ),
    "spec.volumes[]": (
        CelRule(
            f"!{matches('self.mountPath', _MOUNTS)}",
            "mountPath: this folder belongs to the image or the pod, mount it elsewhere, "
            "such as /mnt/data",
            ".mountPath",
        ),
        CelRule(
            "!self.mountPath.contains(':')",
            "mountPath: no mount may have a colon, take it out",
            ".mountPath",
        ),
    ),
    "spec.env[]": (
        CelRule(
            "!(has(self.value) && size(self.value) > 0 && has(self.secretKeyRef))",
            "give value or secretKeyRef, not both",
        ),
        _NOT_LITERAL,
        _NO_SECRET_IN_VALUE,
        CelRule(
            f"!(self.name in {sorted(RESERVED_ENV)}) && !self.name.startsWith("
            f"'{SECRET_ENV_PREFIX}')",
            "name: this variable is set by the operator, remove it",
            ".name",
        ),
    ),
}

IN_ONE_BLOCK: Mapping[str, tuple[CelRule, ...]] = {**_OBJECTIVE, **_RETRIEVAL, **_RUNNING}
"""Place in the schema → its rules."""
