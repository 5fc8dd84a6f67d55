"""Convert groups of completions to micro-batches of tensors. Pure.

    items = build_items(groups, weights)
    shares = balance_over_ranks(items, num_ranks)
    micro_batches = plan_micro_batches(shares[rank], layout, token_budget)
    build_micro_batch(micro_batches[0], layout)

Every rank calls the first three functions for the whole batch (cheap integer work), so all ranks
agree on the number of micro-batches without communication. A rank builds tensors only for its own
share.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.exchange.groups import Completion, Group


@dataclass(frozen=True, slots=True)
class Target:
    """A completion to train on, with its inputs to the loss."""

    completion: Completion
    advantage: float
    weight: float
    """Weight of each token's loss, see `objective.token_weights`."""
    offset: int
    """Index of the completion's first sampled token among all sampled tokens of the batch."""

    @property
    def inputs(self) -> tuple[int, ...]:
        """Tokens fed to the model: those before the last sampled one."""
        last = max(i for i, sampled in enumerate(self.completion.sampled) if sampled)
        return self.completion.token_ids[:last]


@dataclass(frozen=True, slots=True)
class Item:
    """A prompt with completions that are computed in the same row."""

    prompt_ids: tuple[int, ...]
    targets: tuple[Target, ...]

    @property
    def num_tokens(self) -> int:
        """Number of positions in a shared-prefix row."""
        return len(self.prompt_ids) + sum(len(target.inputs) for target in self.targets)


@dataclass(frozen=True, slots=True)
class Span:
    """Position of a prompt and its completions in a shared-prefix row."""

    start: int
    prompt: int
    """Number of prompt tokens; the first one is at `start`."""
    blocks: tuple[tuple[int, int], ...]
    """(count, length) of runs of equally long completions, in row order."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """B rows of T tokens, with their K sampled tokens as flat index tensors."""

    input_ids: Tensor  # [B, T]
    position_ids: Tensor  # [B, T]
    spans: tuple[Span, ...] | None
    """Shared-prefix layout (B = 1, any number of prompts); None for padded rows (causal)."""
    source: Tensor  # [K], flat position in B * T of the hidden state that predicts the token
    targets: Tensor  # [K], token ids
    rollout_logprobs: Tensor  # [K]
    advantages: Tensor  # [K]
    weights: Tensor  # [K]
    tokens: Tensor  # [K], index among all sampled tokens of the batch

    def to(self, device: torch.device) -> "MicroBatch":
        """Return a copy on the device; on a CPU, return the micro-batch itself."""
        if device.type != "cuda":
            return self

        return MicroBatch(
            input_ids=on_device(self.input_ids, device),
            position_ids=on_device(self.position_ids, device),
            spans=self.spans,
            source=on_device(self.source, device),
            targets=on_device(self.targets, device),
            rollout_logprobs=on_device(self.rollout_logprobs, device),
            advantages=on_device(self.advantages, device),
            weights=on_device(self.weights, device),
            tokens=on_device(self.tokens, device),
        )


def on_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a copy of a host tensor on the device; on a CPU, return the tensor itself.

    Does not synchronize: the GPU reads pinned memory, which torch frees only afterwards.
    """
    if device.type != "cuda":
        return tensor
    return tensor.pin_memory().to(device, non_blocking=True)


def build_items(
    groups: Iterable[Group], weights: Iterable[float], *, skip_zero_advantage: bool
) -> list[Item]:
    """Return the items to compute; `weights` has one weight per completion, in group order.

    Completions without sampled tokens are skipped, as they have no gradient, and so are those with
    zero advantage if `skip_zero_advantage`. Prompts without remaining completions are skipped.
    """
    items = []
    offset = 0
    weight = iter(weights)
    for group in groups:
        targets = []
        for completion, advantage in zip(group.completions, group.advantages, strict=True):
            target = Target(completion, advantage, next(weight), offset)
            offset += completion.num_sampled
            if completion.num_sampled and (advantage != 0.0 or not skip_zero_advantage):
                targets.append(target)
        if targets:
            # Sort by length, so that attention can batch equal lengths.
            targets.sort(key=lambda target: len(target.inputs))
            items.append(Item(group.prompt_ids, tuple(targets)))
    return items


def balance_over_ranks(items: Sequence[Item], num_ranks: int) -> list[list[Item]]:
    """Distribute items so that ranks have similar numbers of tokens: greedy, longest first."""
    shares: list[list[Item]] = [[] for _ in range(num_ranks)]
    loads = [0] * num_ranks
    for item in sorted(items, key=lambda item: -item.num_tokens):
        rank = loads.index(min(loads))
        shares[rank].append(item)
        loads[rank] += item.num_tokens
    return shares


def plan_micro_batches(
    items: Sequence[Item], layout: RowLayout, token_budget: int
) -> list[list[Item]]:
    """Divide a rank's items into micro-batches of at most `token_budget` positions each.

    An item that exceeds the budget is split between completions. A completion that exceeds the
    budget with its prompt gets a separate micro-batch. Padded rows are grouped by length to reduce
    padding.
    """
    if layout is RowLayout.PADDED:
        return _plan_padded(items, token_budget)
    pieces = [piece for item in items for piece in _split(item, token_budget)]
    bins: list[list[Item]] = []
    remaining: list[int] = []
    for piece in sorted(pieces, key=lambda piece: -piece.num_tokens):
        fitting = (i for i, room in enumerate(remaining) if piece.num_tokens <= room)
        index = next(fitting, len(bins))
        if index == len(bins):
            bins.append([])
            remaining.append(token_budget)
        bins[index].append(piece)
        remaining[index] -= piece.num_tokens
    return bins


def build_micro_batch(items: Sequence[Item], layout: RowLayout) -> MicroBatch:
    """Build the tensors of one planned micro-batch.

    Without items, the micro-batch is a single token that predicts nothing: a rank without work
    must still take part in the collectives of the other ranks.
    """
    items = items or [Item((0,), ())]
    if layout is RowLayout.PADDED:
        return _padded(items)
    return _shared_prefix(items)


def _split(item: Item, token_budget: int) -> Iterator[Item]:
    room = token_budget - len(item.prompt_ids)
    taken: list[Target] = []
    used = 0
    for target in item.targets:
        size = len(target.inputs)
        if taken and used + size > room:
            yield Item(item.prompt_ids, tuple(taken))
            taken = []
            used = 0
        taken.append(target)
        used += size
    yield Item(item.prompt_ids, tuple(taken))


def _plan_padded(items: Sequence[Item], token_budget: int) -> list[list[Item]]:
    rows = [Item(item.prompt_ids, (target,)) for item in items for target in item.targets]
    bins: list[list[Item]] = []
    for row in sorted(rows, key=lambda row: -row.num_tokens):
        longest = bins[-1][0].num_tokens if bins else token_budget
        if not bins or (len(bins[-1]) + 1) * longest > token_budget:
            bins.append([])
        bins[-1].append(row)
    return bins


def _shared_prefix(items: Sequence[Item]) -> MicroBatch:
    ids: list[int] = []
    positions: list[int] = []
    sources: list[int] = []
    spans = []
    for item in items:
        start = len(ids)
        prompt = len(item.prompt_ids)
        ids += item.prompt_ids
        positions += range(prompt)
        for target in item.targets:
            before = [start + prompt - 1, *range(len(ids), len(ids) + len(target.inputs))]
            sources += _sampled(target, before)
            ids += target.inputs
            positions += range(prompt, prompt + len(target.inputs))
        runs = groupby(len(target.inputs) for target in item.targets)
        blocks = tuple((len(list(run)), length) for length, run in runs if length)
        spans.append(Span(start, prompt, blocks))
    return _tensors(items, [ids], [positions], tuple(spans), sources)


def _padded(items: Sequence[Item]) -> MicroBatch:
    width = max(item.num_tokens for item in items)
    rows = []
    sources: list[int] = []
    for number, item in enumerate(items):
        ids = list(item.prompt_ids)
        for target in item.targets:
            first = number * width + len(ids) - 1
            sources += _sampled(target, range(first, first + len(target.inputs) + 1))
            ids += target.inputs
        rows.append(ids + [0] * (width - len(ids)))
    return _tensors(items, rows, [list(range(width))] * len(rows), None, sources)


def _sampled(target: Target, before: Sequence[int]) -> Iterator[int]:
    """Yield the position before each sampled token; `before[i]` is the position before token i."""
    return (
        position
        for position, is_sampled in zip(before, target.completion.sampled, strict=False)
        if is_sampled
    )


def _tensors(
    items: Sequence[Item],
    ids: list[list[int]],
    positions: list[list[int]],
    spans: tuple[Span, ...] | None,
    sources: list[int],
) -> MicroBatch:
    targets: list[int] = []
    logprobs: list[float] = []
    advantages: list[float] = []
    weights: list[float] = []
    tokens: list[int] = []
    for target in (target for item in items for target in item.targets):
        completion = target.completion
        count = completion.num_sampled
        chosen = [i for i, sampled in enumerate(completion.sampled) if sampled]
        targets += [completion.token_ids[i] for i in chosen]
        logprobs += [completion.rollout_logprobs[i] for i in chosen]
        advantages += [target.advantage] * count
        weights += [target.weight] * count
        tokens += range(target.offset, target.offset + count)
    return MicroBatch(
        input_ids=torch.tensor(ids),
        position_ids=torch.tensor(positions),
        spans=spans,
        source=torch.tensor(sources, dtype=torch.long),
        targets=torch.tensor(targets, dtype=torch.long),
        rollout_logprobs=torch.tensor(logprobs),
        advantages=torch.tensor(advantages),
        weights=torch.tensor(weights),
        tokens=torch.tensor(tokens, dtype=torch.long),
    )
