"""An attempt that ends because of an error saves the last completed step if its ranks have it."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.history import read_history
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.driver.loop import train
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.retained_state import TrainingPosition
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from support.builders.trainer.checkpoints import make_claim
from support.builders.trainer.reports import Published, make_config
from support.fakes.fake_training_loop import FakePool, FakeRanks, make_components

FAILING_STEP = 4
OOM = TrainerError(ExitCode.CUDA_OUT_OF_MEMORY, "CUDA out of memory")


class FailingRanks(FakeRanks):
    """Ranks on which a call of step FAILING_STEP raises an error."""

    def __init__(self, error: Exception, call: str, *, keeps_state: bool = True) -> None:
        self._error, self._call, self._keeps_state = error, call, keeps_state

    async def step(self, groups: Sequence[Group], after: TrainingPosition) -> list[StepMetrics]:
        if after.step == FAILING_STEP and self._call == "step":
            self.position = self.position if self._keeps_state else None
            raise self._error
        return await super().step(groups, after)

    async def send_weights(self, version: int, backend: object) -> None:
        if version == FAILING_STEP and self._call == "send_weights":
            raise self._error


class UnresponsiveRanks(FailingRanks):
    async def completed(self) -> TrainingPosition | None:
        raise TimeoutError


class FullDiskRanks(FailingRanks):
    def save(self, folder: Path) -> None:
        raise OSError(28, "No space left on device")


class FailingPool(FakePool):
    """Engines that are lost before step FAILING_STEP is trained."""

    def __init__(self, error: Exception) -> None:
        super().__init__(lambda _: "right")
        self._error, self._sleeps = error, 0

    async def sleep(self) -> None:
        self._sleeps += 1
        if self._sleeps == FAILING_STEP:
            raise self._error


async def fail(
    folder: Path, error: Exception, *, ranks: FakeRanks | None = None, pool: FakePool | None = None
) -> CheckpointStore:
    """Train until an error, as an attempt does; check that the same error ends the attempt."""
    config = make_config(
        folder, {"data.trainBatchSize": 2, "checkpoint.everySteps": 50, "training.totalSteps": 9}
    )
    store = CheckpointStore(config.checkpoint, make_claim(folder), "")
    reporter = Reporter(config, 1, publish=Published())
    state = TrainState()
    async with (
        RetrievalClient(config.retrieval, {}) as retrieval,
        Rewards(config.reward, config.retrieval) as rewards,
    ):
        given = (config, ["tea", "coffee"], reporter, retrieval, rewards, store)
        with make_components(*given, pool=pool, ranks=ranks) as components:
            with pytest.raises(type(error)) as raised:
                await train(components, state)
            await components.saver.save_after(cast(Exception, raised.value), state)
    assert raised.value is error
    reporter.close()
    return store


def saved_steps(store: CheckpointStore) -> list[int]:
    return [each.meta.step for each in store.checkpoints]


@pytest.mark.row("A28")
@pytest.mark.parametrize(
    "error",
    [
        TrainerError(ExitCode.ROLLOUT_ENGINE_LOST, "engine 0 exited"),
        TrainerError(ExitCode.REWARD_CODE_ERROR, "score() raised KeyError"),
        TrainerError(ExitCode.RETRIEVAL_UNAVAILABLE, "endpoint kb"),
        ValueError("an error in our own code"),
        MemoryError(),
    ],
    ids=lambda error: type(error).__name__ + str(getattr(error, "exit_code", "")),
)
async def test_last_completed_step_is_saved_before_attempt_ends(
    tmp_path: Path, error: Exception
) -> None:
    store = await fail(tmp_path, error, pool=FailingPool(error))

    assert saved_steps(store) == [FAILING_STEP - 1]
    assert store.newest is not None
    assert store.newest.meta.metrics["reward_mean"] == 1.0
    assert store.newest.meta.cursor.position == 2 * (FAILING_STEP - 1) % 2
    assert [each["step"] for each in read_history(tmp_path / "logs")] == [1, 2, 3]


async def test_step_whose_weights_were_not_sent_is_saved_and_reported(tmp_path: Path) -> None:
    error = TrainerError(ExitCode.ROLLOUT_ENGINE_LOST, "engine 0 exited")
    store = await fail(tmp_path, error, ranks=FailingRanks(error, "send_weights"))

    assert saved_steps(store) == [FAILING_STEP]
    assert [each["step"] for each in read_history(tmp_path / "logs")] == [1, 2, 3, 4]


@pytest.mark.parametrize(("keeps_state", "steps"), [(True, [3]), (False, [])])
async def test_step_before_failed_update_is_saved_if_ranks_still_have_it(
    tmp_path: Path, steps: list[int], *, keeps_state: bool
) -> None:
    store = await fail(tmp_path, OOM, ranks=FailingRanks(OOM, "step", keeps_state=keeps_state))
    assert saved_steps(store) == steps


@pytest.mark.parametrize(
    "code",
    [
        ExitCode.TRAINER_RANK_LOST,
        ExitCode.COLLECTIVE_TIMEOUT,
        ExitCode.POLICY_MISMATCH,
        ExitCode.SUPERSEDED,
        ExitCode.CHECKPOINT_PATH_IN_USE,
    ],
)
async def test_nothing_is_saved_when_ranks_or_folder_are_unusable(
    tmp_path: Path, code: ExitCode
) -> None:
    error = TrainerError(code, "")
    assert saved_steps(await fail(tmp_path, error, pool=FailingPool(error))) == []


@pytest.mark.parametrize("kind", [UnresponsiveRanks, FullDiskRanks])
async def test_failed_save_does_not_replace_error(
    tmp_path: Path, kind: type[FailingRanks], caplog: pytest.LogCaptureFixture
) -> None:
    assert saved_steps(await fail(tmp_path, OOM, ranks=kind(OOM, "step"))) == []
    assert "the last completed step was not saved: " in caplog.text


async def test_saved_step_is_not_saved_again(tmp_path: Path) -> None:
    error = TrainerError(ExitCode.ROLLOUT_ENGINE_LOST, "engine 0 exited")
    config = make_config(tmp_path)
    store = CheckpointStore(config.checkpoint, make_claim(tmp_path), "")
    reporter = Reporter(config, 1, publish=Published())
    ranks = FakeRanks()
    state = TrainState(step=3, saved_step=3)
    ranks.position = TrainingPosition(3, state.cursor, "")
    async with (
        RetrievalClient(config.retrieval, {}) as retrieval,
        Rewards(config.reward, config.retrieval) as rewards,
    ):
        with make_components(
            config, ["tea"], reporter, retrieval, rewards, store, ranks=ranks
        ) as components:
            await components.saver.save_after(error, state)
    reporter.close()
    assert saved_steps(store) == []
