"""One FSDP2 rank of the policy: step, logprobs, export, state. Must not import Ray or vLLM.

    init_process_group(rank, world_size, rendezvous, "cuda")
    policy = Policy(config, rank=rank, world_size=world_size)
    metrics = policy.step(groups, step=7)               # the same groups on every rank
    for name, tensor in policy.export_weights(): ...    # to the rollout engines
    dcp.save(policy.state_dict(), checkpoint_id=folder)

Every method is collective: all ranks call it with equal arguments. Each rank gets the whole batch
and takes its share, so the ranks do not exchange counts and the result does not depend on the
number of ranks.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from raggrpo_api.spec.training import RowLayout
from raggrpo_trainer.exchange.groups import Group, mini_batches, samples_of
from raggrpo_trainer.exchange.objective import token_weights
from raggrpo_trainer.exchange.policy_config import PolicyConfig
from raggrpo_trainer.exchange.step_metrics import (
    LossMetrics,
    StepMetrics,
    Update,
    reduce_updates,
    sampled_entropy,
)
from raggrpo_trainer.host.host_memory import host_memory_bytes
from raggrpo_trainer.policy.learning_rate import learning_rate
from raggrpo_trainer.weights.export import checkpoint_tensors, folder_dtype, write_folder

from .checksum import checksum
from .device_utilization import device_utilization
from .lora import adapter_parameters, adapters_off, merged_parameters
from .lora_folder import write_lora_folder
from .loss import grpo_loss
from .loss_scale import LossScale
from .model import build_model, forward_dtype
from .optimizer import make_optimizer
from .packing import (
    Item,
    MicroBatch,
    balance_over_ranks,
    build_items,
    build_micro_batch,
    plan_micro_batches,
)
from .peak_memory import PeakMemory
from .phase_timer import Phase, PhaseTimer
from .update_totals import UpdateTotals
from .weight_update_ratio import weight_update_ratio

LOSS_SCALE = "loss_scale"
"""Key of the loss scale in a checkpoint."""


class Policy:
    """The trained model and its optimizer, sharded over all ranks of the process group."""

    def __init__(self, config: PolicyConfig, *, rank: int, world_size: int) -> None:
        torch.manual_seed(config.training.seed)
        self._config = config
        self._training = config.training
        self._rank = rank
        self._world_size = world_size
        self._device = torch.device(config.device)
        mesh = init_device_mesh(config.device, (world_size,))
        self._reference: Callable[[MicroBatch], Tensor] | None = None
        turns = config.ranks_per_pod if config.training.load_in_turns else 1
        for turn in range(turns):  # a rank loads the whole model before it shards the model
            if rank % turns == turn:
                self._model = build_model(config, mesh)
                if config.objective.kl_coefficient > 0:
                    self._reference = self._reference_model(mesh)
            if turns > 1:
                dist.barrier()
        self._optimizer = make_optimizer(self._trained_parameters().values(), self._training)
        self._loss_scale = LossScale(self._training.precision, self._device)

    @property
    def attention(self) -> str:
        """`attn_implementation` in use."""
        return str(self._model.causal_lm.config._attn_implementation)

    @property
    def num_parameters(self) -> int:
        """Number of parameters of the whole model; a tied LM head counts once."""
        return sum(parameter.numel() for parameter in self._model.parameters())

    @property
    def num_trained_parameters(self) -> int:
        """Number of parameters that the optimizer changes."""
        return sum(parameter.numel() for parameter in self._trained_parameters().values())

    @property
    def device_name(self) -> str:
        """Name of the GPU; "" on a CPU."""
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else ""

    def step(self, groups: Sequence[Group], *, step: int) -> StepMetrics:
        """Train on one batch: one update, or one per `mini_batch_prompts` prompts.

        `step` counts from 1 and determines the learning rate. If the loss or gradient norm of an
        update is not finite, that update and all later ones are skipped and `non_finite` is set; an
        FP16 overflow skips only its own update. Completions with zero advantage are not computed,
        unless there is a KL penalty.
        """
        memory = PeakMemory(self._device)
        timer = PhaseTimer(self._device)
        rate = learning_rate(self._training, step)
        for parameters in self._optimizer.param_groups:
            parameters["lr"] = rate
        work = [
            self._work(batch, skip_zero_advantage=self._reference is None)
            for batch in mini_batches(groups, self._training.mini_batch_prompts)
        ]
        # The first update starts at the old policy; later ones need the old policy's logprobs.
        with timer.measure(Phase.FORWARD):
            old = [None, *(self._token_logprobs(each) for each in work[1:])]
        updates: list[Update] = []
        num_skipped = 0
        for update_work, old_logprobs in zip(work, old, strict=True):
            if update_work.num_micro_batches and all(update.is_finite for update in updates):
                update = self._accumulate_gradients(update_work, old_logprobs, timer)
                is_overflow = self._loss_scale.is_overflow(update.totals.loss, update.grad_norm)
                if is_overflow:
                    num_skipped += 1
                else:
                    updates.append(update)
                    if update.is_finite:
                        with timer.measure(Phase.OPTIMIZER):
                            self._optimizer.step()
                self._loss_scale.update(is_overflow=is_overflow)
                self._optimizer.zero_grad()
        every = self._config.weight_update_every_steps
        is_measured = (
            every > 0 and step % every == 0 and any(update.is_finite for update in updates)
        )
        update_ratio = weight_update_ratio(self._model, self._optimizer) if is_measured else None
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)  # step time includes the optimizer step
        return StepMetrics(
            **reduce_updates(updates),
            **timer.metrics(),
            entropy=sampled_entropy(groups),
            num_sampled_tokens=sum(each.num_sampled_tokens for each in work),
            num_trained_tokens=sum(update.num_tokens for update in updates),
            num_positions=sum(update.num_positions for update in updates),
            grad_norm=max((update.grad_norm for update in updates), default=0.0),
            learning_rate=rate,
            weight_update_ratio=update_ratio,
            num_skipped_updates=num_skipped,
            loss_scale=self._loss_scale.value,
            non_finite=not all(update.is_finite for update in updates),
            rank_memory_bytes=host_memory_bytes(),
            device_memory_bytes=memory.peak_bytes(),
            device_memory_reserved_bytes=memory.reserved_bytes(),
            device_utilization=device_utilization(self._device),
        )

    def logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return the logprobs of the sampled tokens, one list per completion, in order."""
        work = self._work(groups, skip_zero_advantage=False)
        flat = self._token_logprobs(work)
        dist.all_reduce(flat)
        lengths = [each.num_sampled for group in groups for each in group.completions]
        return [logprobs.tolist() for logprobs in torch.split(flat, lengths)]

    def plain_logprobs(self, groups: Sequence[Group]) -> list[list[float]]:
        """Return `logprobs` as the plain Hugging Face model computes them, per completion.

        The plain model shares the trainer's weights, but not its rows, attention and LM head. It
        materializes the full logits of a completion, so use it for a few completions only.
        """
        alone = [
            Group(group.prompt_ids, (completion,), (1.0,))
            for group in groups
            for completion in group.completions
        ]
        lengths = [each.num_sampled for group in alone for each in group.completions]
        items = build_items(alone, [1.0] * len(alone), skip_zero_advantage=False)
        mine = items[self._rank :: self._world_size]
        flat = torch.zeros(sum(lengths), device=self._device)
        for number in range(-(-len(items) // self._world_size)):
            rows = mine[number : number + 1]  # empty if this rank has fewer items than others
            batch = build_micro_batch(rows, RowLayout.PADDED).to(self._device)
            flat[batch.tokens] = self._model(batch, plain=True)
        dist.all_reduce(flat)
        return [logprobs.tolist() for logprobs in torch.split(flat, lengths)]

    def export_weights(self, *, on_device: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Yield (Hugging Face name, full tensor) one by one; a tied LM head is yielded once.

        Tensors are on the host, or on the device with `on_device`, in the dtype of the forward
        pass. They may share memory with the parameters, so use them before the next step. Every
        rank must exhaust the iterator, as each tensor is gathered on demand.
        """
        model = self._model.causal_lm
        dtype = forward_dtype(self._training.precision)
        for name, tensor in checkpoint_tensors(model, merged_parameters(model, dtype)):
            yield name, tensor if on_device else tensor.cpu()

    def release_cached_memory(self) -> None:
        """Free cached device memory, including IPC buffers, for engines on the same device."""
        if self._device.type == "cuda":
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def export_hf(self, folder: Path) -> None:
        """Write a Hugging Face folder on rank 0, in the dtype of the initial model."""
        source = Path(self._config.model.path)
        model = self._model.causal_lm
        writes = self._rank == 0
        if (lora := self._training.lora) is None:
            parameters = merged_parameters(model, folder_dtype(source))
            write_folder(model, parameters, source, folder, writes=writes)
            return
        trained = dict(adapter_parameters(model))
        if writes:
            write_lora_folder(source, folder, lora, partial(_copy, trained))

    def state_dict(self) -> dict[str, Any]:
        """Return sharded model and optimizer state for torch.distributed.checkpoint.

        With adapters, it includes only them. With FP16 it includes `loss_scale`, which checkpoints
        of other precisions do not have.
        """
        model = self._model.causal_lm
        scale = self._loss_scale.state_dict()
        return {
            "model": self._trained_only(get_model_state_dict(model)),
            "optimizer": get_optimizer_state_dict(model, self._optimizer),
        } | ({LOSS_SCALE: scale} if scale else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a state dict that `dcp.load` filled in place.

        The checkpoint may have been saved by a different number of ranks. Without `optimizer`, the
        optimizer keeps its state.
        """
        model = self._model.causal_lm
        set_model_state_dict(
            model, state["model"], options=StateDictOptions(strict=self._training.lora is None)
        )
        if "optimizer" in state:
            # The groups follow from the configuration, which may have changed.
            groups = get_optimizer_state_dict(model, self._optimizer)["param_groups"]
            optimizer = {**state["optimizer"], "param_groups": groups}
            set_optimizer_state_dict(model, self._optimizer, optimizer)
        self._loss_scale.load_state_dict(state.get(LOSS_SCALE, {}))

    def checksum(self) -> int:
        """Return a checksum of parameters and optimizer state, equal on all ranks."""
        # The optimizer has sharded parameters; the model's are unsharded until a backward pass.
        parameters = [each for group in self._optimizer.param_groups for each in group["params"]]
        moments = (
            self._optimizer.state[parameter][name]
            for parameter in parameters
            for name in ("exp_avg", "exp_avg_sq")
        )
        return checksum([*parameters, *moments], self._device)

    def _reference_model(self, mesh: DeviceMesh) -> Callable[[MicroBatch], Tensor]:
        """Return the initial model; with adapters, it is the policy without them."""
        if self._training.lora is None:
            return build_model(self._config, mesh, frozen=True)

        def initial(batch: MicroBatch) -> Tensor:
            with adapters_off(self._model):
                logprobs: Tensor = self._model(batch)
            return logprobs

        return initial

    def _trained_parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            name: parameter
            for name, parameter in self._model.causal_lm.named_parameters()
            if parameter.requires_grad
        }

    def _trained_only(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return the values of trained parameters and, without adapters, of buffers."""
        if self._training.lora is None:
            return state
        return {name: state[name] for name in self._trained_parameters()}

    def _work(self, groups: Sequence[Group], *, skip_zero_advantage: bool) -> "_Work":
        lengths = [each.num_sampled for group in groups for each in group.completions]
        weights = token_weights(lengths, self._config.objective, samples_of(groups))
        items = build_items(groups, weights, skip_zero_advantage=skip_zero_advantage)
        plans = [
            plan_micro_batches(
                share, self._training.row_layout, self._training.tokens_per_micro_batch
            )
            for share in balance_over_ranks(items, self._world_size)
        ]
        return _Work(plans[self._rank], max(map(len, plans)), sum(lengths))

    def _micro_batches(self, work: "_Work") -> Iterator[MicroBatch]:
        """Yield micro-batches, equally many on all ranks; the last ones may be empty."""
        for number in range(work.num_micro_batches):
            items = work.micro_batches[number] if number < len(work.micro_batches) else []
            yield build_micro_batch(items, self._training.row_layout).to(self._device)

    def _accumulate_gradients(
        self, work: "_Work", old_logprobs: Tensor | None, timer: PhaseTimer
    ) -> Update:
        totals = UpdateTotals(self._device)
        for batch in self._micro_batches(work):
            with timer.measure(Phase.FORWARD):
                metrics = self._loss(batch, old_logprobs)
            totals.add(batch, metrics)
            with timer.measure(Phase.BACKWARD):
                # FSDP sums over ranks: the weights include the global denominator.
                self._loss_scale.scale(metrics.loss).backward()  # type: ignore[no-untyped-call]
        with timer.measure(Phase.OPTIMIZER):
            self._loss_scale.unscale(self._optimizer)
            norm = torch.nn.utils.clip_grad_norm_(
                self._model.parameters(), self._training.max_grad_norm
            )
            if isinstance(norm, DTensor):
                norm = norm.full_tensor()
        return totals.all_reduce(norm.item())

    def _loss(self, batch: MicroBatch, old_logprobs: Tensor | None) -> LossMetrics[Tensor]:
        ref_logprobs = None
        if self._reference is not None:
            with torch.no_grad():
                ref_logprobs = self._reference(batch)
        return grpo_loss(
            self._model(batch),
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            weights=batch.weights,
            objective=self._config.objective,
            old_logprobs=None if old_logprobs is None else old_logprobs[batch.tokens],
            ref_logprobs=ref_logprobs,
        )

    @torch.no_grad()
    def _token_logprobs(self, work: "_Work") -> Tensor:
        """Return the logprobs [num_sampled_tokens]; zero for tokens of other ranks."""
        flat = torch.zeros(work.num_sampled_tokens, device=self._device)
        for batch in self._micro_batches(work):
            flat[batch.tokens] = self._model(batch)
        return flat


def _copy(values: Mapping[str, Tensor], into: Mapping[str, Tensor]) -> None:
    for name, tensor in into.items():
        tensor.copy_(values[name])


@dataclass(frozen=True, slots=True)
class _Work:
    """One rank's share of one update."""

    micro_batches: list[list[Item]]
    num_micro_batches: int
    """Number of micro-batches per rank, including empty ones: the maximum over all ranks."""
    num_sampled_tokens: int
    """Number of sampled tokens on all ranks, including those of skipped completions."""
