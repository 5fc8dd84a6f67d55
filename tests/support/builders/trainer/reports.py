"""Step records, configurations and a publisher that collects what it receives."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.progress import Progress
from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.exchange.step_metrics import REDUCTIONS, StepMetrics
from raggrpo_trainer.progress.step_record import StepRecord
from support.builders.operator.jobs import make_trainer_config

DEADLINE_SECONDS = 60.0
_RANKS_FIELDS = {field.name for field in fields(StepMetrics)}
_SAMPLES_FIELDS = {field.name for field in fields(SampleMetrics)}


def make_config(folder: Path, changes: dict[str, Any] | None = None) -> TrainerConfig:
    defaults = {"checkpoint.path": str(folder), "training.totalSteps": 100}
    return make_trainer_config(defaults | (changes or {}))


def make_step(step: int, **changes: Any) -> StepRecord:
    of_ranks = {name: changes.pop(name) for name in _RANKS_FIELDS & changes.keys()}
    trained = StepMetrics(
        **dict.fromkeys(REDUCTIONS, 0.0)
        | {"loss": 0.01, "mismatch_mean": 1e-5, "importance_mean": 1.0},
        entropy=1.2,
        num_sampled_tokens=64,
        num_trained_tokens=32,
        num_positions=500,
        grad_norm=1.5,
        learning_rate=1e-4,
        weight_update_ratio=None,
        num_skipped_updates=0,
        loss_scale=1.0,
        non_finite=False,
        rank_memory_bytes=2**30,
        device_memory_bytes=None,
        device_memory_reserved_bytes=None,
        device_utilization=None,
        forward_seconds=0.8,
        backward_seconds=1.0,
        optimizer_seconds=0.1,
    )
    of_samples = {name: changes.pop(name) for name in _SAMPLES_FIELDS & changes.keys()}
    samples = SampleMetrics(
        reward_mean=0.25,
        reward_std=0.1,
        reward_parts={"ExactMatch": 0.25},
        exact_match=0.2,
        num_samples=8,
        num_failed=1,
        zero_variance=0.5,
        zero_reward=0.5,
        truncated=0.25,
        parsed=0.75,
        response_tokens=8.0,
    )
    record = StepRecord(
        step=step,
        samples=replace(samples, **of_samples),
        trained=replace(trained, **of_ranks),
        seconds={
            "data": 0.0,
            "retrieve": 0.5,
            "generate": 1.0,
            "reward": 0.0,
            "train": 2.0,
            "sync": 0.25,
        },
        step_seconds=4.0,
        retrieval={},
    )
    return replace(record, **changes)


@dataclass
class Published:
    """Collects published progress; `wait_for` blocks until a condition is met."""

    progresses: list[Progress] = field(default_factory=list)
    metrics: list[str] = field(default_factory=list)
    _arrived: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, progress: bytes, metrics: bytes) -> None:
        with self._arrived:
            self.progresses.append(Progress.model_validate_json(progress))
            self.metrics.append(metrics.decode())
            self._arrived.notify_all()

    def wait_for(self, condition: Callable[[Progress], bool]) -> Progress:
        deadline = time.monotonic() + DEADLINE_SECONDS
        with self._arrived:
            while not any(map(condition, self.progresses)):
                assert time.monotonic() < deadline, (
                    f"not published in time; last: {self.progresses[-1:]}"
                )
                self._arrived.wait(1.0)
            return next(filter(condition, self.progresses))
