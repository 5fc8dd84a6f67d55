"""A new job starts from a checkpoint of another job."""

from pathlib import Path
from typing import Any, cast

import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_api.trainer.progress import Segment
from raggrpo_trainer.checkpoint.compatibility import meta_of
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.driver.resume import resume
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.preflight.start import check_start
from raggrpo_trainer.progress.reporter import Reporter
from support.builders.trainer.checkpoints import make_claim, make_store, shards
from support.builders.trainer.reports import Published, make_config
from support.fakes.fake_resuming_ranks import FakeResumingRanks

IDENTITY: dict[str, object] = {"data rows": 8000, "model config.json": "5f1d"}
NEWEST, BEST = 6, 4
EARLIER = Segment(first_step=3, changes=["rollout.n: 5 → 4"])


def save_other_job(folder: Path, **changes: Any) -> Path:
    """Save checkpoints of steps 2, 4 (the best) and 6; return the checkpoint folder."""
    path = folder / "other"
    fence = make_claim(path, uid="other", job="other")
    store = make_store(fence)
    config = make_config(path, changes)
    for step, score in ((2, 0.1), (BEST, 0.9), (NEWEST, 0.5)):
        cursor = Cursor(epoch=1, position=step)
        meta = meta_of(config, step, cursor, {}, identity=IDENTITY, segments=[EARLIER])
        store.save(meta, shards(step), score=score)
    fence.release()
    return path


def make_start_config(folder: Path, source: Path, **changes: Any) -> TrainerConfig:
    start = {"checkpoint": {"path": str(source)}, **changes.pop("start", {})}
    return make_config(folder / "own", {"training.startFrom": start, **changes})


async def start_job(
    config: TrainerConfig, identity: dict[str, object] = IDENTITY
) -> tuple[TrainState, FakeResumingRanks, CheckpointStore, Published]:
    fence = make_claim(Path(config.checkpoint.path))
    ranks, store, published = FakeResumingRanks(), make_store(fence), Published()
    reporter = Reporter(config, fence.epoch, publish=published)
    try:
        state = await resume(config, store, cast(Any, ranks), None, reporter, 0, identity)
    finally:
        reporter.close()
        fence.release()
    return state, ranks, store, published


async def test_job_starts_from_newest_checkpoint_with_changed_values(tmp_path: Path) -> None:
    other = save_other_job(tmp_path, **{"rollout.n": 4})
    config = make_start_config(tmp_path, other, **{"rollout.n": 3})

    state, ranks, store, published = await start_job(config)

    [(source, with_optimizer)] = ranks.loaded
    assert source.name.startswith("step_00000006")
    assert with_optimizer
    assert (state.step, state.cursor) == (NEWEST, Cursor(epoch=1, position=NEWEST))
    first = Segment(first_step=7, changes=["rollout.n: 4 → 3"], from_checkpoint=str(source))
    assert state.segments == (EARLIER, first)
    progress = published.progresses[-1]
    assert (progress.started_from_step, progress.segments) == (NEWEST, [EARLIER, first])
    assert store.newest is not None
    assert store.newest.folder.is_relative_to(tmp_path / "own")
    assert store.newest.meta.segments == (EARLIER, first)
    assert state.is_start


async def test_later_attempt_does_not_need_other_job(tmp_path: Path) -> None:
    other = save_other_job(tmp_path)
    config = make_start_config(tmp_path, other)
    await start_job(config)
    other.rename(tmp_path / "gone")

    state, ranks, store, _ = await start_job(config)

    assert store.newest is not None
    assert ranks.loaded == [(store.newest.folder, True)]
    assert (state.step, state.is_start) == (NEWEST, False)
    assert [segment.first_step for segment in state.segments] == [3, 7]


async def test_best_checkpoint_with_new_optimizer_and_data_position(tmp_path: Path) -> None:
    other = save_other_job(tmp_path)
    start = {"step": "Best", "optimizer": "Reset", "data": "Restart"}
    config = make_start_config(tmp_path, other, start=start)

    state, ranks, _, _ = await start_job(config, IDENTITY | {"data rows": 10})

    [(source, with_optimizer)] = ranks.loaded
    assert source.name.startswith(f"step_0000000{BEST}")
    assert not with_optimizer
    assert (state.step, state.cursor) == (BEST, Cursor())
    assert state.segments[-1].changes == [
        "data rows: 8000 → 10",
        "optimizer state: reset",
        "data position: first row",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"training.seed": 7}, "training.seed: 0 → 7; use the settings of that job, or set "
         "training.startFrom.data: Restart for new data"),
        ({"start": {"step": "5"}}, "step 5 does not exist; complete checkpoints: 6, 4, 2"),
        ({"training.totalSteps": 6}, "the checkpoint is that of step 6, and the job ends "
         "after step 6"),
    ],
)  # fmt: skip
async def test_job_that_cannot_start_from_checkpoint_fails_in_preflight_and_driver(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    config = make_start_config(tmp_path, save_other_job(tmp_path), **changes)
    assert config.training.start_from is not None

    finding = check_start(config, config.training.start_from)

    assert finding.state is CheckState.FAILED
    assert expected in finding.evidence
    assert finding.exit_code in (ExitCode.CONFIG_ERROR, ExitCode.CHECKPOINT_INCOMPATIBLE)
    with pytest.raises(TrainerError) as raised:
        await start_job(config)
    assert expected in str(raised.value)


async def test_other_reward_and_template_may_start_from_checkpoint(tmp_path: Path) -> None:
    config = make_start_config(
        tmp_path,
        save_other_job(tmp_path),
        **{"reward.functions": [{"name": "F1"}], "data.systemPrompt": "Be brief."},
    )

    state, _, _, _ = await start_job(config)

    assert state.segments[-1].changes == [
        'data.systemPrompt: (unset) → "Be brief."',
        'reward.functions[0].name: "ExactMatch" → "F1"',
    ]


def test_preflight_lists_step_and_changed_values(tmp_path: Path) -> None:
    other = save_other_job(tmp_path, **{"rollout.n": 4})
    config = make_start_config(tmp_path, other, **{"rollout.n": 3})
    assert config.training.start_from is not None

    finding = check_start(config, config.training.start_from)

    assert (finding.id, finding.state) == (CheckId.START_CHECKPOINT, CheckState.PASSED)
    assert finding.evidence.startswith(f"step 6 of {other}/step_00000006.e1; changes: ")
    assert finding.evidence.endswith("rollout.n: 4 → 3")


async def test_preflight_does_not_need_other_job_once_job_has_checkpoint(tmp_path: Path) -> None:
    other = save_other_job(tmp_path)
    config = make_start_config(tmp_path, other)
    await start_job(config)
    other.rename(tmp_path / "gone")
    assert config.training.start_from is not None

    finding = check_start(config, config.training.start_from)

    assert finding.state is CheckState.NOT_EVALUATED
