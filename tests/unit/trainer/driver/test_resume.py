import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.history import history_file, read_events, read_history
from raggrpo_api.trainer.progress import Progress
from raggrpo_trainer.checkpoint.compatibility import meta_of
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.driver.resume import resume, state_key
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.rank_actor import RankInfo
from raggrpo_trainer.ranks.retained_state import RetainedState, TrainingPosition
from support.builders.trainer.checkpoints import make_claim, make_store, shards
from support.builders.trainer.reports import Published, make_config, make_step
from support.fakes.fake_resuming_ranks import INFO, FakeResumingRanks

IDENTITY: dict[str, object] = {"data rows": 8000, "model config.json": "5f1d"}
SAVED = 4


# --- state_key


@dataclass(frozen=True)
class Inputs:
    config: TrainerConfig
    info: RankInfo = INFO
    identity: dict[str, object] = field(default_factory=lambda: dict(IDENTITY))

    def block(self, name: str, **changes: object) -> "Inputs":
        """Return inputs with changes to one block of the spec, but with the same hashes."""
        changed = getattr(self.config, name).model_copy(update=changes)
        return self.top(**{name: changed})

    def top(self, **changes: object) -> "Inputs":
        return replace(self, config=self.config.model_copy(update=changes))

    @property
    def key(self) -> str:
        return state_key(self.config, self.info, self.identity)


def with_info(inputs: Inputs, **changes: Any) -> Inputs:
    return replace(inputs, info=replace(inputs.info, **changes))


@pytest.mark.row("B10")
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda i: i.block("training", learning_rate=0.5), id="learning rate"),
        pytest.param(lambda i: i.block("attempt", resume_hash="other"), id="resume hash"),
        pytest.param(lambda i: replace(i, identity={"data rows": 8001}), id="identity"),
        pytest.param(lambda i: i.top(rejected_checkpoints=["/step_4"]), id="rejected checkpoints"),
        pytest.param(lambda i: i.block("world", num_ranks=2), id="number of ranks"),
        pytest.param(lambda i: with_info(i, attention="Eager"), id="attention"),
        pytest.param(lambda i: with_info(i, precision="FP32"), id="precision"),
    ],
)
def test_state_key_depends_on_all_inputs_of_state(
    changed: Callable[[Inputs], Inputs], tmp_path: Path
) -> None:
    inputs = Inputs(make_config(tmp_path))

    assert changed(inputs).key != inputs.key


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param(lambda i: i.block("attempt", number=7), id="attempt"),
        pytest.param(lambda i: i.block("attempt", config_hash="other"), id="config hash"),
        pytest.param(lambda i: with_info(i, process=PodProcess("node-2", 1)), id="process"),
    ],
)
def test_state_key_is_equal_in_next_attempt(
    changed: Callable[[Inputs], Inputs], tmp_path: Path
) -> None:
    inputs = Inputs(make_config(tmp_path))

    assert changed(inputs).key == inputs.key


# --- resume


@dataclass
class Resumed:
    """Outcome of a resume."""

    state: TrainState
    ranks: FakeResumingRanks
    store: CheckpointStore
    reported_resumes: list[int]
    reported_steps: list[int]
    segment_events: list[dict[str, Any]]
    progress: Progress


def make_retained_state(step: int) -> RetainedState:
    record = make_step(step)
    cursor = Cursor(epoch=2, position=step)
    position = TrainingPosition(step, cursor, "key", record.samples, seconds={"generate": 1.0})
    return RetainedState(position, checksum=1, trained=record.trained, train_seconds=2.0)


async def resume_job(
    folder: Path,
    retained: RetainedState | None,
    *,
    reported_step: int = 0,
    changed_to: TrainerConfig | None = None,
) -> Resumed:
    """Resume a job whose newest checkpoint is that of step 4, with `changed_to` if specified."""
    config = make_config(folder)
    store = make_store(make_claim(folder))
    for step in (2, SAVED):
        meta = meta_of(config, step, Cursor(epoch=1, position=step), {}, identity=IDENTITY)
        store.save(meta, shards(step))
    return await resume_saved_job(changed_to or config, store, retained, reported_step)


async def resume_saved_job(
    config: TrainerConfig,
    store: CheckpointStore,
    retained: RetainedState | None,
    reported_step: int = 0,
) -> Resumed:
    ranks = FakeResumingRanks()
    published = Published()
    reporter = Reporter(config, 2, publish=published)
    state = await resume(
        config, store, cast(Any, ranks), retained, reporter, reported_step, IDENTITY
    )
    reporter.close()
    logs = Path(config.monitoring.log_dir)
    resumes = [event["step"] for event in read_events(logs) if event["event"] == "resume"]
    segments = [event for event in read_events(logs) if event["event"] == "segment"]
    steps = [each["step"] for each in read_history(logs)]
    return Resumed(state, ranks, store, resumes, steps, segments, published.progresses[-1])


@pytest.mark.row("B10")
@pytest.mark.parametrize(
    "retained", [None, make_retained_state(3)], ids=["no state", "state of step 3"]
)
async def test_checkpoint_is_loaded_unless_ranks_retain_newer_state(
    retained: RetainedState | None, tmp_path: Path
) -> None:
    resumed = await resume_job(tmp_path, retained)

    assert resumed.store.newest is not None
    assert resumed.ranks.loaded == [(resumed.store.newest.folder, True)]
    cursor = Cursor(epoch=1, position=SAVED)
    assert resumed.state == TrainState(SAVED, cursor, SAVED)
    key = state_key(make_config(tmp_path), INFO, IDENTITY)
    assert resumed.ranks.retained == [TrainingPosition(SAVED, cursor, key)]
    assert (resumed.reported_resumes, resumed.reported_steps) == ([SAVED], [])


async def test_changed_checkpoint_is_rejected_before_ranks_load_it(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    store = make_store(make_claim(tmp_path))
    for step in (2, SAVED):
        meta = meta_of(config, step, Cursor(epoch=1, position=step), {}, identity=IDENTITY)
        store.save(meta, shards(step))
    newest = store.checkpoints[0].folder
    (newest / "__0_0.distcp").write_bytes(bytes(3000))

    resumed = await resume_saved_job(config, store, None)

    assert [folder.name for folder, _ in resumed.ranks.loaded] == ["step_00000002.e1"]
    assert "differs from its SHA-256" in (newest / "REJECTED").read_text()


async def test_changed_only_checkpoint_ends_resume(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    store = make_store(make_claim(tmp_path))
    meta = meta_of(config, SAVED, Cursor(epoch=1, position=SAVED), {}, identity=IDENTITY)
    saved = store.save(meta, shards(SAVED))
    (saved.folder / "__0_0.distcp").write_bytes(bytes(3000))

    with pytest.raises(TrainerError, match=r"is damaged: __0_0.distcp differs") as raised:
        await resume_saved_job(config, store, None)
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED


@pytest.mark.parametrize("step", [SAVED, 6])
async def test_retained_state_is_used_when_checkpoints_are_not_newer(
    step: int, tmp_path: Path
) -> None:
    retained = make_retained_state(step)

    resumed = await resume_job(tmp_path, retained)

    assert (resumed.ranks.loaded, resumed.ranks.retained) == ([], [])
    reward = retained.position.reward
    assert resumed.state == TrainState(step, retained.position.cursor, SAVED, reward=reward)
    assert resumed.reported_resumes == [step]
    assert resumed.reported_steps == ([step] if step > SAVED else [])  # saved steps were reported


@pytest.mark.parametrize(("reported_step", "steps"), [(5, [6]), (6, []), (7, [])])
async def test_retained_step_is_reported_only_if_not_yet_reported(
    reported_step: int, steps: list[int], tmp_path: Path
) -> None:
    resumed = await resume_job(tmp_path, make_retained_state(6), reported_step=reported_step)

    assert resumed.reported_steps == steps


# --- a removed newest checkpoint


async def resume_after_removal(folder: Path, *removed: int) -> Resumed:
    """Resume a job whose history has saves of steps 2 and 4, of which some were removed."""
    config = make_config(folder)
    store = make_store(make_claim(folder))
    reporter = Reporter(config, 1, publish=Published())
    for step in (2, 4):
        meta = meta_of(config, step, Cursor(epoch=1, position=step), {}, identity=IDENTITY)
        reporter.report_save(store.save(meta, shards(step)).ref(), 0.1, None)
    reporter.close()
    for step in removed:
        shutil.rmtree(folder / f"step_{step:08d}.e1")
    return await resume_saved_job(config, make_store(make_claim(folder, attempt=2)), None)


@pytest.mark.row("B17")
async def test_removed_newest_checkpoint_is_reported_and_older_one_is_used(tmp_path: Path) -> None:
    resumed = await resume_after_removal(tmp_path, 4)

    assert resumed.state.step == 2
    [skipped] = resumed.progress.skipped_checkpoints
    assert (Path(skipped.path).name, skipped.reason) == (
        "step_00000004.e1",
        "the folder no longer exists",
    )


@pytest.mark.parametrize(("removed", "step"), [((), 4), ((2,), 4), ((2, 4), 0)])
async def test_removal_is_not_reported_without_older_checkpoint(
    removed: tuple[int, ...], step: int, tmp_path: Path
) -> None:
    """Without any checkpoint, the volume may be the wrong one; the operator detects that."""
    resumed = await resume_after_removal(tmp_path, *removed)

    assert resumed.state.step == step
    assert resumed.progress.skipped_checkpoints == []


# --- segments


@pytest.mark.parametrize(
    "retained", [None, make_retained_state(6)], ids=["no state", "state of step 6"]
)
async def test_changed_values_start_segment_after_checkpoint(
    retained: RetainedState | None, tmp_path: Path
) -> None:
    config = make_config(tmp_path)
    cooler = config.rollout.model_copy(update={"temperature": 0.25})

    resumed = await resume_job(
        tmp_path, retained, changed_to=config.model_copy(update={"rollout": cooler})
    )

    [segment] = resumed.state.segments
    assert segment.first_step == SAVED + 1
    assert segment.changes == [f"rollout.temperature: {config.rollout.temperature} → 0.25"]
    assert resumed.progress.segments == [segment]
    events = [(each["first_step"], each["changes"]) for each in resumed.segment_events]
    # The previous driver wrote the event if ranks retain steps of the segment.
    assert events == ([] if retained else [(SAVED + 1, segment.changes)])


async def test_unchanged_values_start_no_segment(tmp_path: Path) -> None:
    resumed = await resume_job(tmp_path, None)

    assert resumed.state.segments == ()
    assert (resumed.segment_events, resumed.progress.segments) == ([], [])


async def test_streaks_of_earlier_attempts_end_at_resumed_step(tmp_path: Path) -> None:
    earlier = Reporter(make_config(tmp_path), 0, publish=Published())
    for step in (1, 2, 3, 4, 5, 6):
        earlier.report_step(make_step(step, truncated=1.0 if step > 1 else 0.0, zero_variance=1.0))
    earlier.close()

    resumed = await resume_job(tmp_path, None)

    streaks = [(each.reason, each.since, each.share) for each in resumed.progress.streaks]
    assert streaks == [("AllTruncated", 2, 1.0), ("ZeroVariance", 1, 1.0)]


async def test_unreadable_history_does_not_prevent_resume(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    history_file(Path(config.monitoring.log_dir), 0).mkdir(parents=True)
    store = make_store(make_claim(tmp_path))
    store.save(meta_of(config, SAVED, Cursor(), {}, identity=IDENTITY), shards(SAVED))
    reporter = Reporter(config, 2, publish=Published())
    ranks = cast(Any, FakeResumingRanks())

    state = await resume(config, store, ranks, None, reporter, 0, IDENTITY)

    reporter.close()
    assert state.step == SAVED
