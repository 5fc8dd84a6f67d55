"""Tiny models, groups and rank processes for tests of the policy."""

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM

from raggrpo_api.spec.algorithm import LossAggregation
from raggrpo_api.spec.model import ModelSpec
from raggrpo_api.spec.training import Precision, TrainingSpec
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.exchange.objective import Objective
from raggrpo_trainer.exchange.policy_config import PolicyConfig
from raggrpo_trainer.exchange.rendezvous import Rendezvous, file_rendezvous
from raggrpo_trainer.policy.policy import Policy
from raggrpo_trainer.policy.process_group import init_process_group
from raggrpo_trainer.ranks.rank_actor import load_checkpoint

T = TypeVar("T")
VOCABULARY = 97
RANK_TIMEOUT_SECONDS = 120.0
"""How long `Ranks.run` waits for the next result of a rank."""


def make_objective(**changes: Any) -> Objective:
    return Objective(
        **{
            "clip_ratio_low": 0.2,
            "clip_ratio_high": 0.28,
            "importance_cap": 2.0,
            "kl_coefficient": 0.0,
            "loss_aggregation": LossAggregation.TOKEN_MEAN,
            "max_response_length": 16,
            **changes,
        }
    )


def write_model(folder: Path, *, tied: bool = True, layers: int = 2) -> Path:
    torch.manual_seed(0)
    config = Qwen2Config(
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        initializer_range=0.2,  # far from uniform, so that errors are visible
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    (folder / "tokenizer.json").write_text("{}")
    return folder


def make_policy_config(
    model: Path,
    *,
    objective: Objective | None = None,
    ranks_per_pod: int = 1,
    weight_update_every_steps: int = 0,
    **training: Any,
) -> PolicyConfig:
    defaults = {
        "precision": Precision.FP32,
        "tokens_per_micro_batch": 96,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
    }
    return PolicyConfig(
        model=ModelSpec(path=str(model)),
        training=TrainingSpec.model_validate(defaults | training),
        objective=objective or make_objective(),
        temperature=0.7,
        device="cpu",
        ranks_per_pod=ranks_per_pod,
        weight_update_every_steps=weight_update_every_steps,
    )


def make_policy(model: Path, *, rank: int = 0, world_size: int = 1, **changes: Any) -> Policy:
    return Policy(make_policy_config(model, **changes), rank=rank, world_size=world_size)


def make_completion(random: Random, length: int, *, inserted: slice = slice(0)) -> Completion:
    sampled = [True] * length
    sampled[inserted] = [False] * len(range(*inserted.indices(length)))
    return Completion(
        token_ids=tuple(random.randrange(VOCABULARY) for _ in range(length)),
        sampled=tuple(sampled),
        rollout_logprobs=tuple(
            -random.uniform(1, 5) if is_sampled else 0.0 for is_sampled in sampled
        ),
    )


def make_group(
    lengths: Sequence[int] = (7, 7, 7),
    *,
    prompt: int = 11,
    advantages: Sequence[float] | None = None,
    inserted: slice = slice(0),
    seed: int = 0,
) -> Group:
    random = Random(f"{seed} {prompt} {lengths}")
    return Group(
        prompt_ids=tuple(random.randrange(VOCABULARY) for _ in range(prompt)),
        completions=tuple(make_completion(random, length, inserted=inserted) for length in lengths),
        advantages=tuple(advantages or (random.uniform(-1, 1) for _ in lengths)),
    )


def uneven_groups() -> list[Group]:
    """Return groups that differ in length and size, with inserted tokens and zero variance."""
    return [
        make_group((7, 7, 7)),
        make_group((1, 12, 5, 3), prompt=20, inserted=slice(1, 3)),
        make_group((9, 9), prompt=5, advantages=(0.0, 0.0)),
        make_group((30, 2, 4), prompt=17, inserted=slice(0, 1)),
        make_group((6,), prompt=3, advantages=(0.5,)),
        make_group((8, 4, 16, 1, 1), prompt=31),
    ]


def parameters(policy: Policy) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in policy.export_weights()}


@dataclass
class Ranks:
    """Rank processes shared by tests, since importing torch takes seconds."""

    pipes: list[Connection]
    children: list[BaseProcess]

    def run(self, function: Callable[..., T], *arguments: Any) -> list[T]:
        """Return the results of function(rank, world_size, *arguments) on all ranks.

        Raises the exception of the first rank that fails, EOFError if a rank exits and TimeoutError
        if a rank hangs. All ranks are killed then, since the others may wait in a collective.
        """
        try:
            for pipe in self.pipes:
                pipe.send((function, arguments))
            results = dict(self._results())
        except BaseException:
            for child in self.children:
                child.kill()
            raise
        return [results[pipe] for pipe in self.pipes]

    def _results(self) -> Iterator[tuple[Connection, Any]]:
        waiting = list(self.pipes)
        while waiting:
            ready = wait(waiting, RANK_TIMEOUT_SECONDS)
            if not ready:
                raise TimeoutError(f"{len(waiting)} ranks returned nothing")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                result = pipe.recv()
                if isinstance(result, Exception):
                    raise result
                waiting.remove(pipe)
                yield pipe, result


@contextmanager
def rank_processes(world_size: int) -> Iterator[Ranks]:
    context = multiprocessing.get_context("spawn")
    rendezvous = file_rendezvous()
    pipes: list[Connection] = []
    children: list[BaseProcess] = []
    for rank in range(world_size):
        ours, theirs = context.Pipe()
        child = context.Process(
            target=_serve, args=(rank, world_size, rendezvous, theirs), daemon=True
        )
        child.start()
        theirs.close()  # so that the exit of a child raises EOFError
        pipes.append(ours)
        children.append(child)
    try:
        yield Ranks(pipes, children)
    finally:
        for pipe in pipes:
            pipe.close()
        for child in children:
            child.join(30)
            child.kill()


@contextmanager
def one_rank() -> Iterator[None]:
    init_process_group(0, 1, file_rendezvous(), "cpu")
    try:
        yield
    finally:
        dist.destroy_process_group()


def _serve(rank: int, world_size: int, rendezvous: Rendezvous, pipe: Connection) -> None:
    # Some machines report AMX and kill processes that use it.
    os.environ["ONEDNN_MAX_CPU_ISA"] = "AVX512_CORE_BF16"
    torch.set_num_threads(1)
    init_process_group(rank, world_size, rendezvous, "cpu")
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            dist.destroy_process_group()
            return
        try:
            result = function(rank, world_size, *arguments)
        except Exception as error:  # raised in the test process
            result = error
        pipe.send(result)


def train(
    rank: int, world_size: int, model: str, changes: dict[str, Any], steps: range
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    policy = make_policy(Path(model), rank=rank, world_size=world_size, **changes)
    metrics = [policy.step(uneven_groups(), step=step) for step in steps]
    return [(one.loss, one.grad_norm) for one in metrics], parameters(policy)


def train_save_train(
    rank: int, world_size: int, model: str, folder: str, changes: dict[str, Any] | None = None
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    policy = make_policy(Path(model), rank=rank, world_size=world_size, **(changes or {}))
    for step in (1, 2):
        policy.step(uneven_groups(), step=step)
    save(policy.state_dict(), checkpoint_id=folder)
    metrics = policy.step(uneven_groups(), step=3)
    return [(metrics.loss, metrics.grad_norm)], parameters(policy)


def load_train(
    rank: int, world_size: int, model: str, folder: str, changes: dict[str, Any]
) -> tuple[list[tuple[float, float]], dict[str, torch.Tensor]]:
    policy = make_policy(Path(model), rank=rank, world_size=world_size, **changes)
    load_checkpoint(policy, folder)
    metrics = policy.step(uneven_groups(), step=3)
    return [(metrics.loss, metrics.grad_norm)], parameters(policy)


def weight_updates(
    rank: int, world_size: int, model: str, changes: dict[str, Any], steps: range
) -> list[float | None]:
    policy = make_policy(Path(model), rank=rank, world_size=world_size, **changes)
    return [policy.step(uneven_groups(), step=step).weight_update_ratio for step in steps]


def count_parameters(rank: int, world_size: int, model: str) -> int:
    return make_policy(Path(model), rank=rank, world_size=world_size).num_parameters


def export(rank: int, world_size: int, model: str, folder: str) -> None:
    make_policy(Path(model), rank=rank, world_size=world_size).export_hf(Path(folder))
    dist.barrier()


def logprobs(rank: int, world_size: int, model: str) -> list[list[float]]:
    return make_policy(Path(model), rank=rank, world_size=world_size).logprobs(uneven_groups())


def checksum(rank: int, world_size: int, model: str) -> int:
    return make_policy(Path(model), rank=rank, world_size=world_size).checksum()


def checksum_after_forward(rank: int, world_size: int, model: str) -> int:
    policy = make_policy(Path(model), rank=rank, world_size=world_size)
    policy.logprobs([make_group()])
    return policy.checksum()


def build_times(rank: int, world_size: int, model: str) -> tuple[float, float]:
    """Build policies one rank at a time; return start and end time of this rank."""
    times: list[float] = []

    def timed(path: str, **settings: Any) -> Any:
        times.append(time.monotonic())
        if rank == 0:
            time.sleep(0.3)  # without turns, another rank would overlap
        state = read(path, **settings)
        times.append(time.monotonic())
        return state

    read = AutoModelForCausalLM.from_pretrained
    with mock.patch.object(AutoModelForCausalLM, "from_pretrained", timed):
        make_policy(
            Path(model), rank=rank, world_size=world_size, ranks_per_pod=2, load_in_turns=True
        )
    return times[0], times[1]


OVERFLOWING = 1e30


def fp16_overflow_run(rank: int, world_size: int, model: str, folder: str) -> dict[str, Any]:
    """Train in FP16 with an overflow, save, continue, and resume from the checkpoint."""
    policy = make_fp16_policy(model, rank, world_size)
    first = policy.step(uneven_groups(), step=1)
    before = parameters(policy)
    # Only one completion, so that the gradients overflow on one rank.
    too_much = [make_group(), make_group((5,), prompt=4, advantages=(OVERFLOWING,), seed=1)]
    skipped = policy.step(too_much, step=2)
    after = parameters(policy)
    save(policy.state_dict(), checkpoint_id=folder)
    third, went_on = policy.step(uneven_groups(), step=3), parameters(policy)
    resumed = make_fp16_policy(model, rank, world_size)
    state = resumed.state_dict()
    load(state, checkpoint_id=folder)
    resumed.load_state_dict(state)
    again, resumed_on = resumed.step(uneven_groups(), step=3), parameters(resumed)
    return {
        "metrics": [first, skipped, third, again],
        "parameters": [before, after, went_on, resumed_on],
    }


def fp16_skipped_updates(
    rank: int, world_size: int, model: str, advantages: Sequence[float]
) -> list[int]:
    """Return the number of skipped updates for one completion with each of `advantages`."""
    skipped = []
    for advantage in advantages:
        policy = make_fp16_policy(model, rank, world_size)
        metrics = policy.step([make_group((5,), prompt=4, advantages=(advantage,))], step=1)
        skipped.append(metrics.num_skipped_updates)
    return skipped


def make_fp16_policy(model: str, rank: int, world_size: int) -> Policy:
    return make_policy(Path(model), rank=rank, world_size=world_size, precision=Precision.FP16)


def fail_on_rank_1(rank: int, _world_size: int) -> None:
    if rank == 1:
        raise ValueError("rank 1 failed")
    dist.barrier()


def exit_on_rank_1(rank: int, _world_size: int) -> None:
    if rank == 1:
        os._exit(1)
    dist.barrier()
