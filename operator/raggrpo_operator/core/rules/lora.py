"""Rules on low-rank adapters."""

from collections.abc import Iterator

from raggrpo_api.spec.lora import ALL_LINEAR, EMBEDDINGS, HEADS, LoraSpec
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

_NOT_ADAPTED = sorted(EMBEDDINGS | HEADS)


@spec_rule(
    "spec.training.lora",
    field="targets",
    reason=Reason.LORA_TARGETS,
    message="no layer is listed, so nothing would be trained",
    remedy=f"omit targets or write [{ALL_LINEAR}], or name layers such as [q_proj, v_proj]",
    if_specified=("targets",),
    cel="size(self.targets) > 0",
)
def lora_has_targets(lora: LoraSpec) -> bool:
    """Require at least one target."""
    return bool(lora.targets)


@spec_rule(
    "spec.training.lora",
    field="targets",
    reason=Reason.LORA_TARGETS,
    message=f"{ALL_LINEAR} is listed next to layers that it includes",
    values=lambda lora: ", ".join(lora.targets),
    remedy=f"write [{ALL_LINEAR}], or only the layers",
    if_specified=("targets",),
    cel=f"size(self.targets) <= 1 || !('{ALL_LINEAR}' in self.targets)",
)
def all_linear_is_the_only_target(lora: LoraSpec) -> bool:
    """Require AllLinear to be listed alone."""
    return len(lora.targets) <= 1 or ALL_LINEAR not in lora.targets


@spec_rule(
    "spec.training.lora",
    field="targets",
    reason=Reason.NAME_NOT_UNIQUE,
    message="a layer is listed twice",
    remedy="list each layer once",
    if_specified=("targets",),
    cel="self.targets.all(t, self.targets.exists_one(u, u == t))",
)
def lora_targets_are_unique(lora: LoraSpec) -> bool:
    """Require unique targets."""
    return len(set(lora.targets)) == len(lora.targets)


@spec_rule(
    "spec.training.lora",
    field="targets",
    reason=Reason.LORA_TARGETS,
    message="embeddings and the LM head cannot have adapters",
    values=lambda lora: ", ".join(filter(_is_outer, lora.targets)),
    remedy="remove them; name only linear layers of attention and MLP",
    if_specified=("targets",),
    cel=f"self.targets.all(t, !(t.matches('^(.*[.])?({'|'.join(_NOT_ADAPTED)})$')))",
)
def lora_targets_are_inner_layers(lora: LoraSpec) -> bool:
    """Reject embeddings and the head, which engines and exports share with other weights."""
    return not any(map(_is_outer, lora.targets))


def rank_reduces_parameters(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if the adapters are not smaller than the layers that they adapt."""
    lora, size = inputs.spec.training.lora, inputs.facts.hidden_size
    if lora is not None and 0 < size <= lora.rank:
        message = f"rank {lora.rank} is not less than the model's hidden size of {size}"
        remedy = f"set training.lora.rank: {max(1, size // 4)}, or train all parameters"
        yield warning("spec.training.lora.rank", Reason.LORA_RANK_TOO_LARGE, message, remedy)


def _is_outer(target: str) -> bool:
    return target.rpartition(".")[2] in _NOT_ADAPTED
