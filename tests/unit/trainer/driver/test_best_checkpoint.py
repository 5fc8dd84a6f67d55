"""The best checkpoint by validation is kept, reported, and the same after a restart."""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.spec.checkpoint import BestBy
from raggrpo_api.trainer.history import read_events
from raggrpo_api.trainer.progress import Progress
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.driver.checkpoint_schedule import due_validation
from raggrpo_trainer.driver.checkpoint_score import checkpoint_metrics, checkpoint_score
from raggrpo_trainer.driver.loop import train
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.driver.stop_signal import Stopped
from raggrpo_trainer.exchange.validation_result import ValidationResult
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from support.builders.trainer.checkpoints import make_claim
from support.builders.trainer.reports import Published, make_config
from support.fakes.fake_training_loop import make_components

BY_MATCH = {
    "checkpoint.bestBy": "ValidationExactMatch",
    "checkpoint.everySteps": 1,
    "checkpoint.keepLast": 2,
    "validation.everySteps": 1,
    "data.trainBatchSize": 2,
}


class Scripted:
    """Validator with scripted exact matches by step; the reward is 1 minus the exact match."""

    def __init__(self, matches: dict[int, float]) -> None:
        self.matches, self.measured = matches, list[int]()
        self.stop = asyncio.Event()

    async def measure(self, step: int) -> ValidationResult:
        self.measured.append(step)
        if step not in self.matches:
            self.stop.set()  # a signal arrives during the call of the service
            await asyncio.Event().wait()
        match = self.matches[step]
        return ValidationResult(match, 1.0 - match, num_samples=4, num_failed=0)


async def attempt(
    folder: Path, matches: dict[int, float], *, to: int, **changes: Any
) -> tuple[CheckpointStore, Progress, Scripted]:
    """Train from the newest checkpoint to a step, in a new attempt."""
    config = make_config(folder, BY_MATCH | {"training.totalSteps": to} | changes)
    store = CheckpointStore(config.checkpoint, make_claim(folder, attempt=to), "")
    newest, published, validator = store.newest, Published(), Scripted(matches)
    state = TrainState(newest.meta.step, newest.meta.cursor, newest.meta.step) if newest else None
    reporter = Reporter(config, to, publish=published)
    async with (
        RetrievalClient(config.retrieval, {}) as retrieval,
        Rewards(config.reward, config.retrieval) as rewards,
    ):
        prompts = ["tea", "coffee"]
        with make_components(
            config, prompts, reporter, retrieval, rewards, store, validator
        ) as components:
            validator.stop = components.stop
            with suppress(Stopped):
                await train(components, state or TrainState())
    reporter.close()
    return store, published.progresses[-1], validator


def best(store: CheckpointStore) -> tuple[int, list[int]]:
    assert store.best is not None
    return store.best.marker.step, [c.marker.step for c in store.checkpoints]


@pytest.mark.row("A27")
async def test_best_checkpoint_by_validation_survives_restart(
    tmp_path: Path,
) -> None:
    first, progress, _ = await attempt(tmp_path, {1: 0.25, 2: 0.75, 3: 0.5, 4: 0.5}, to=4)
    assert best(first) == (2, [4, 3, 2])
    assert (progress.best_step, progress.best_score) == (2, "ValidationExactMatch 0.75")

    second, progress, _ = await attempt(tmp_path, {5: 0.5, 6: 0.7}, to=6)
    assert best(second) == (2, [6, 5, 2])
    assert progress.best_step == 2

    third, progress, _ = await attempt(tmp_path, {7: 0.75}, to=7)
    assert best(third) == (7, [7, 6])
    exports = [e for e in read_events(tmp_path / "logs") if e["event"] == "export"]
    assert [e["best_step"] for e in exports] == [2, 2, 7]
    assert third.best is not None
    assert third.best.meta.metrics["validation_exact_match"] == 0.75


async def test_interrupted_validation_is_repeated_after_resume(tmp_path: Path) -> None:
    stopped, progress, _ = await attempt(tmp_path, {1: 0.25}, to=3)
    assert [c.marker.step for c in stopped.checkpoints] == [2, 1]
    assert progress.best_step == 1

    store, progress, validator = await attempt(tmp_path, {2: 0.75, 3: 0.5, 4: 0.5}, to=4)
    assert validator.measured == [2, 3, 4]
    assert (progress.best_step, progress.best_score) == (2, "ValidationExactMatch 0.75")
    assert best(store) == (2, [4, 3, 2])


async def test_last_step_is_validated_once_before_its_checkpoint(tmp_path: Path) -> None:
    after = {"validation.everySteps": 2, "validation.afterTraining": True}
    store, _, validator = await attempt(tmp_path, {2: 0.5, 3: 0.75}, to=3, **after)
    assert best(store) == (3, [3, 2])
    assert validator.measured == [2, 3]
    events = [
        e for e in read_events(tmp_path / "logs") if e["event"] in ("validation", "checkpoint")
    ]
    assert [(e["event"], e.get("when")) for e in events][-2:] == [
        ("validation", "after"),
        ("checkpoint", None),
    ]


async def test_last_checkpoint_is_saved_before_validation_when_best_is_by_reward(
    tmp_path: Path,
) -> None:
    by_reward = {"checkpoint.bestBy": "Reward", "validation.afterTraining": True}
    store, progress, validator = await attempt(tmp_path, {1: 0.1, 2: 0.2}, to=2, **by_reward)
    assert validator.measured == [1, 2]
    assert progress.best_score == "Reward 1"
    events = [
        e for e in read_events(tmp_path / "logs") if e["event"] in ("validation", "checkpoint")
    ]
    assert [e["event"] for e in events][-2:] == ["checkpoint", "validation"]
    assert best(store)[0] == 2


@pytest.mark.parametrize(
    ("changes", "due"),
    [
        ({}, ["", "during", "", "during"]),
        ({"validation.afterTraining": True}, ["", "during", "", "after"]),
        ({"checkpoint.keepBest": False}, ["", "during", "", ""]),
        ({"checkpoint.bestBy": "Reward"}, ["", "during", "", ""]),
    ],
)
def test_validation_is_due_when_checkpoint_needs_its_score(
    changes: dict[str, Any], due: list[str], tmp_path: Path
) -> None:
    given = BY_MATCH | {"validation.everySteps": 2, "training.totalSteps": 4} | changes
    config = make_config(tmp_path, given)
    assert [due_validation(config, step) for step in (1, 2, 3, 4)] == due


def test_validation_score_is_none_without_samples() -> None:
    nothing = ValidationResult(0.0, 0.0, num_samples=0, num_failed=4)
    assert checkpoint_score(checkpoint_metrics(0.5, nothing), BestBy.VALIDATION_EXACT_MATCH) is None
    assert checkpoint_score(checkpoint_metrics(0.5, nothing), BestBy.REWARD) == 0.5
    assert checkpoint_score(checkpoint_metrics(None, None), BestBy.REWARD) is None
    measured = ValidationResult(0.25, float("nan"), num_samples=1, num_failed=0)
    assert checkpoint_score(checkpoint_metrics(None, measured), BestBy.VALIDATION_REWARD) is None
