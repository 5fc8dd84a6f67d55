"""Check which row layouts train a model exactly. Needs no weights, no GPU and no Ray.

A small random model of the same architecture computes a few completions twice: in the trainer's
rows, and each completion alone without the trainer's code. Logprobs and gradients must agree. This
detects layers with state across positions, masks that the model builds, and unsupported LM heads.
"""

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from random import Random

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel

from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.exchange.groups import Completion, Group

from .model import TokenLogprobs, attention_implementation
from .packing import build_items, build_micro_batch, plan_micro_batches
from .small_model import VOCABULARY, NotSmall, small_model

MAX_NATS = 2e-4
"""Limit of the logprob difference in fp32, in nats; exact layouts stay below 2e-5."""
MAX_GRADIENT_ERROR = 2e-3
"""Limit of the relative gradient error over all parameters; exact layouts stay below 1e-4."""
TEMPERATURE = 0.7
_LENGTHS = ((9, (7, 5, 7, 2)), (14, (6, 11)))
"""(length of the prompt, lengths of its completions) of each group, in tokens."""
_NUM_RESERVED = 3
"""Number of lowest token ids to exclude, because they may be special tokens."""


@dataclass(frozen=True, slots=True)
class LayoutResult:
    """Deviation of a layout from the plain model."""

    nats: float
    gradient_error: float
    problem: str = ""
    """Reason why the layout cannot be computed; "" if it can be computed."""

    @property
    def is_exact(self) -> bool:
        """Whether logprobs and gradients match those of the plain model."""
        return (
            not self.problem and self.nats <= MAX_NATS and self.gradient_error <= MAX_GRADIENT_ERROR
        )


@dataclass(frozen=True, slots=True)
class FamilyResult:
    """Result of the layout check of a model."""

    architecture: str
    problem: str = ""
    """Why no layout works for the model, such as "not causal"; "" if `layouts` is set."""
    layouts: dict[RowLayout, LayoutResult] | None = None


def check_family(config: PreTrainedConfig) -> FamilyResult:
    """Compare both row layouts with the plain model."""
    try:
        plain = small_model(config)
    except NotSmall as error:
        return FamilyResult(_architecture(config), f"no small test copy can be built: {error}")
    architecture = type(plain).__name__
    try:
        expected = _plain_result(plain)
        future_nats = _future_effect(plain)
    except Exception as error:  # the model's own code fails
        return FamilyResult(architecture, f"its forward pass fails: {_short(error)}")
    if future_nats > MAX_NATS:
        message = (
            f"it is not causal: later tokens change earlier logprobs by {future_nats:.2g} nats"
        )
        return FamilyResult(architecture, message)
    if not float(expected[0].std()) > MAX_NATS:
        return FamilyResult(architecture, "its output does not depend on its input")
    layouts = {layout: _compare(config, layout, expected) for layout in RowLayout}
    return FamilyResult(architecture, layouts=layouts)


def _compare(
    config: PreTrainedConfig, layout: RowLayout, expected: tuple[Tensor, Tensor]
) -> LayoutResult:
    try:
        attention = attention_implementation(Attention.AUTO, layout)
        logprobs, gradient = _row_result(small_model(config, attention=attention), layout)
    except Exception as error:  # the code of many models fails with an unsupported layout
        return LayoutResult(float("inf"), float("inf"), _short(error))
    relative = (gradient - expected[1]).norm() / expected[1].norm()
    return LayoutResult(float((logprobs - expected[0]).abs().max()), float(relative))


def _row_result(causal_lm: PreTrainedModel, layout: RowLayout) -> tuple[Tensor, Tensor]:
    """Return logprobs [K] and gradient as the trainer computes them."""
    network = TokenLogprobs(causal_lm, TEMPERATURE)
    groups = _groups()
    number = sum(len(group.completions) for group in groups)
    items = build_items(groups, [1.0] * number, skip_zero_advantage=False)
    flat = torch.zeros(sum(d.num_sampled for g in groups for d in g.completions))
    for rows in plan_micro_batches(items, layout, 10_000):
        batch = build_micro_batch(rows, layout)
        logprobs = network(batch)
        (logprobs * _weights(len(flat))[batch.tokens]).sum().backward()
        flat[batch.tokens] = logprobs.detach()
    return flat, _gradient(causal_lm)


def _plain_result(causal_lm: PreTrainedModel) -> tuple[Tensor, Tensor]:
    """Return logprobs [K] and gradient as the model computes them for each completion alone."""
    logprobs = []
    for ids, prompt in _sequences():
        logits = causal_lm(input_ids=ids, use_cache=False).logits[0, prompt - 1 : -1].float()
        chosen = (logits / TEMPERATURE).log_softmax(-1).gather(-1, ids[0, prompt:, None])
        logprobs.append(chosen[:, 0])
    flat = torch.cat(logprobs)
    (flat * _weights(len(flat))).sum().backward()  # type: ignore[no-untyped-call]
    return flat.detach(), _gradient(causal_lm)


@torch.no_grad()
def _future_effect(causal_lm: PreTrainedModel) -> float:
    """Return how much a row's second half changes the logprobs of its first half, in nats."""
    ids, _ = next(_sequences())
    half = ids.shape[1] // 2
    other = ids.clone()
    shifted = other[:, half:] - _NUM_RESERVED + 1
    other[:, half:] = shifted % (VOCABULARY - _NUM_RESERVED) + _NUM_RESERVED
    first, second = (
        causal_lm(input_ids=each, use_cache=False).logits[:, :half].float().log_softmax(-1)
        for each in (ids, other)
    )
    return float((first - second).abs().max())


def _gradient(model: PreTrainedModel) -> Tensor:
    return torch.cat(
        [
            (torch.zeros_like(each) if each.grad is None else each.grad).flatten()
            for _, each in sorted(model.named_parameters())
        ]
    )


def _groups() -> list[Group]:
    random = Random(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(random.randrange(_NUM_RESERVED, VOCABULARY) for _ in range(number))

    def completion(length: int) -> Completion:
        return Completion(tokens(length), (True,) * length, (0.0,) * length)

    return [
        Group(tokens(prompt), tuple(map(completion, lengths)), (1.0,) * len(lengths))
        for prompt, lengths in _LENGTHS
    ]


def _sequences() -> Iterator[tuple[Tensor, int]]:
    """Yield (ids [1, T], length of the prompt) of each completion, in order."""
    for group in _groups():
        for done in group.completions:
            yield torch.tensor([group.prompt_ids + done.token_ids]), len(group.prompt_ids)


def _weights(number: int) -> Tensor:
    return torch.randn(number, generator=torch.Generator().manual_seed(1))


def _architecture(config: PreTrainedConfig) -> str:
    return next(iter(config.architectures or ()), type(config).__name__)


def _short(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def main(path: str, write: Callable[[str], object] = sys.stdout.write) -> None:
    """Check the model in a folder and write the result as one line of JSON."""
    torch.set_num_threads(1)
    result = check_family(AutoConfig.from_pretrained(path, trust_remote_code=False))
    layouts = {
        layout: {**asdict(each), "is_exact": each.is_exact}
        for layout, each in (result.layouts or {}).items()
    }
    write(json.dumps({**asdict(result), "layouts": layouts}) + "\n")
