"""Rules that the API server itself checks, also while the operator is down (B2).

Only comparisons of values that are given: defaults and presets are unknown here, so every
optional field is guarded by has(). The operator's rules repeat and complete them.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from .secret_names import SECRET_NAME_PATTERN


@dataclass(frozen=True)
class CelRule:
    """One entry of x-kubernetes-validations."""

    rule: str
    message: str
    field_path: str = ""

    def manifest(self) -> dict[str, str]:
        """Return the entry."""
        entry = {"rule": self.rule, "message": self.message, "reason": "FieldValueInvalid"}
        return entry | ({"fieldPath": self.field_path} if self.field_path else {})


def _given(*fields: str) -> str:
    """Return the guard that every field exists, its parents included."""
    paths = [field.split(".") for field in fields]
    prefixes = [".".join(path[:end]) for path in paths for end in range(1, len(path) + 1)]
    return " && ".join(f"has(self.{prefix})" for prefix in dict.fromkeys(prefixes))


def _if_given(fields: tuple[str, ...], condition: str) -> str:
    return f"!({_given(*fields)}) || {condition}"


def _frozen(path: str) -> str:
    return f"{_UNTRIED} || self.{path} == oldSelf.{path}"


_UNTRIED = "!has(oldSelf.status) || !has(oldSelf.status.attempt) || oldSelf.status.attempt == 0"
_FROZEN_MESSAGE = "cannot change once an attempt was made: a checkpoint depends on it"
_NOT_LITERAL = (
    f"!has(self.value) || size(self.value) == 0 || !self.name.matches('{SECRET_NAME_PATTERN}')"
)
_LITERAL_MESSAGE = "the name looks like a secret: give secretKeyRef instead of value"
_STEPS = "has(self.training.totalSteps) && self.training.totalSteps > 0"
_EPOCHS = "has(self.training.epochs) && self.training.epochs > 0"

VALIDATIONS: Mapping[str, tuple[CelRule, ...]] = {
    "": (
        CelRule("size(self.metadata.name) <= 44", "metadata.name: at most 44 characters"),
        CelRule(
            "self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
            "metadata.name: lower-case letters, digits and '-', beginning with a letter",
        ),
        CelRule(_frozen("spec.model.path"), f"spec.model.path {_FROZEN_MESSAGE}"),
        CelRule(_frozen("spec.data.trainFiles"), f"spec.data.trainFiles {_FROZEN_MESSAGE}"),
        CelRule(_frozen("spec.checkpoint.path"), f"spec.checkpoint.path {_FROZEN_MESSAGE}"),
        CelRule(
            f"{_UNTRIED} || (has(self.spec.algorithm) == has(oldSelf.spec.algorithm) && "
            "(!has(self.spec.algorithm) || self.spec.algorithm == oldSelf.spec.algorithm))",
            f"spec.algorithm {_FROZEN_MESSAGE}",
        ),
    ),
    "spec": (
        CelRule(
            _if_given(
                ("rollout.n", "algorithm.groupSize"), "self.rollout.n == self.algorithm.groupSize"
            ),
            "rollout.n and algorithm.groupSize differ: give one of the two, or make them equal",
            ".rollout.n",
        ),
        CelRule(
            f"has(self.training) && (({_STEPS}) || ({_EPOCHS}))",
            "give training.totalSteps or training.epochs",
            ".training",
        ),
        CelRule(
            _if_given(
                ("data.trainBatchSize", "training.miniBatchPrompts"),
                "self.training.miniBatchPrompts == 0 || "
                "self.data.trainBatchSize % self.training.miniBatchPrompts == 0",
            ),
            "training.miniBatchPrompts must divide data.trainBatchSize",
            ".training.miniBatchPrompts",
        ),
        CelRule(
            _if_given(
                ("data.maxPromptLength", "data.maxResponseLength", "rollout.maxNumBatchedTokens"),
                "self.rollout.maxNumBatchedTokens == 0 || self.rollout.maxNumBatchedTokens >= "
                "self.data.maxPromptLength + self.data.maxResponseLength",
            ),
            "rollout.maxNumBatchedTokens must be at least maxPromptLength + maxResponseLength",
            ".rollout.maxNumBatchedTokens",
        ),
        CelRule(
            "!has(self.checkpoint.everySteps) || self.checkpoint.everySteps > 0 || "
            f"({_given('recovery.maxRestarts')} && self.recovery.maxRestarts == 0)",
            "checkpoint.everySteps 0 saves only at the end: set recovery.maxRestarts 0, or save",
            ".checkpoint.everySteps",
        ),
        CelRule(
            f"!({_given('training.offPolicySteps')}) || self.training.offPolicySteps == 0 || "
            f"({_given('resources.placement')} && self.resources.placement == 'Disaggregated')",
            "training.offPolicySteps 1 needs resources.placement Disaggregated",
            ".training.offPolicySteps",
        ),
    ),
    "spec.algorithm": (
        CelRule(
            _if_given(("groupSize",), "self.groupSize >= 2"),
            "a group of one completion has no advantage: 2 or more",
            ".groupSize",
        ),
        CelRule(
            _if_given(
                ("clipRatioLow", "clipRatioHigh"),
                "double(self.clipRatioLow) <= double(self.clipRatioHigh)",
            ),
            "clipRatioHigh must not be below clipRatioLow",
            ".clipRatioHigh",
        ),
    ),
    "spec.rollout": (
        CelRule(
            _if_given(("n",), "self.n >= 2"),
            "a group of one completion has no advantage: 2 or more",
            ".n",
        ),
        CelRule(
            _if_given(("temperature",), "double(self.temperature) > 0.0"),
            "equal completions carry no advantage: temperature must be above 0",
            ".temperature",
        ),
    ),
    "spec.training": (
        CelRule(
            _if_given(("totalSteps", "epochs"), "self.totalSteps == 0 || self.epochs == 0"),
            "give either totalSteps or epochs",
            ".epochs",
        ),
    ),
    "spec.checkpoint": (
        CelRule(
            _if_given(("keepLast",), "self.keepLast >= 2"),
            "keepLast must be 2 or more: a damaged newest checkpoint needs one to fall back to",
            ".keepLast",
        ),
    ),
    "spec.resources": (
        CelRule(
            "!has(self.rolloutGpus) || self.rolloutGpus == 0 || "
            "(has(self.placement) && self.placement == 'Disaggregated')",
            "rolloutGpus needs placement Disaggregated",
            ".rolloutGpus",
        ),
    ),
    "spec.retrieval.endpoints[]": (
        CelRule(
            "(has(self.url) && size(self.url) > 0) != has(self.managed)",
            "give exactly one of url and managed",
        ),
    ),
    "spec.retrieval.endpoints[].managed": (
        CelRule(
            "!has(self.index) || self.index != 'Dense' || "
            "(has(self.vectors) && size(self.vectors) > 0)",
            "index Dense needs vectors",
        ),
    ),
    "spec.retrieval.endpoints[].headers[]": (
        CelRule(
            "(has(self.value) && size(self.value) > 0) != has(self.secretKeyRef)",
            "give exactly one of value and secretKeyRef",
        ),
        CelRule(_NOT_LITERAL, _LITERAL_MESSAGE),
    ),
    "spec.reward.functions[]": (
        CelRule(
            "self.name != 'Python' || (has(self.python) && size(self.python) > 0)",
            "reward Python needs python: package.module:function",
        ),
        CelRule(
            "self.name != 'Http' || (has(self.url) && size(self.url) > 0)",
            "reward Http needs url",
        ),
    ),
    "spec.env[]": (
        CelRule(
            "!(has(self.value) && size(self.value) > 0 && has(self.secretKeyRef))",
            "give value or secretKeyRef, not both",
        ),
        CelRule(_NOT_LITERAL, _LITERAL_MESSAGE),
    ),
}
"""Place in the schema → its rules."""
