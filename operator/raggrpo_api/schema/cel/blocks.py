"""CEL rules about a single block, or a single item of a list."""

from collections.abc import Mapping

from raggrpo_api.names import RESERVED_HEADERS
from raggrpo_api.spec.resources import MEMORY_RANGE

from .pods import OF_PODS
from .rule import CelRule, either, if_given, is_one_of, within
from .secrets import NO_SECRET_IN_URL, NO_SECRET_IN_VALUE, NO_SECRET_NAME

_READS_PASSAGES = is_one_of("mode", "Prompt", "Search")

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
            "!(self.name in ['Http', 'Judge']) || (has(self.url) && size(self.url) > 0)",
            "rewards Http and Judge need url",
        ),
        CelRule("self.name != 'Judge' || has(self.judge)", "reward Judge needs judge: {model}"),
        *NO_SECRET_IN_URL,
    ),
}

_HEADER: tuple[CelRule, ...] = (
    CelRule(
        "(has(self.value) && size(self.value) > 0) != has(self.secretKeyRef)",
        "give exactly one of value and secretKeyRef",
    ),
    NO_SECRET_NAME,
    *NO_SECRET_IN_VALUE,
    CelRule(
        f"!(self.name.lowerAscii() in {sorted(RESERVED_HEADERS)})",
        "name: this header is set by the HTTP client, remove it",
        ".name",
    ),
)

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
            f"{either('protocol', repr('SearchR1'))} == 'Http' || "
            f"({either('role', repr('Retriever'))} == 'Retriever') == "
            f"({either('protocol', repr('SearchR1'))} == 'SearchR1')",
            "protocol: role Retriever speaks SearchR1 or Http, roles Actor and Reference speak "
            "RagChat or Http",
            ".protocol",
        ),
        CelRule(
            f"{either('protocol', repr('SearchR1'))} != 'Http' || "
            "(has(self.url) && size(self.url) > 0)",
            "protocol Http needs url; the operator runs SearchR1 and RagChat",
            ".protocol",
        ),
        *NO_SECRET_IN_URL,
    ),
    "spec.retrieval.endpoints[].managed": (
        CelRule(
            f"{either('index', repr('BM25'))} == 'BM25' || has(self.embedding)",
            "indexes Dense and Hybrid need embedding: {path}",
        ),
        CelRule(
            f"{either('index', repr('BM25'))} != 'BM25' || !(has(self.embedding) || "
            "(has(self.vectors) && size(self.vectors) > 0) || "
            "(has(self.indexPath) && size(self.indexPath) > 0))",
            "index BM25 uses neither embedding nor vectors nor indexPath; write index: Dense or "
            "Hybrid",
        ),
        within("memory", MEMORY_RANGE),
    ),
    "spec.reward.functions[].judge": (
        CelRule(
            f"double({either('lowest', '0.0')}) < double({either('highest', '10.0')})",
            "judge.lowest must be below highest",
            ".highest",
        ),
    ),
    "spec.retrieval.endpoints[].headers[]": _HEADER,
    "spec.reward.functions[].judge.headers[]": _HEADER,
}

_SAVING: Mapping[str, tuple[CelRule, ...]] = {
    "spec.checkpoint": (
        CelRule(
            if_given(("keepLast",), "self.keepLast >= 2"),
            "keepLast must be 2 or more: a damaged newest checkpoint needs one to fall back to",
            ".keepLast",
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
}

IN_ONE_BLOCK: Mapping[str, tuple[CelRule, ...]] = {**_OBJECTIVE, **_RETRIEVAL, **_SAVING, **OF_PODS}
"""Place in the schema → its rules."""
