"""Where an attempt begins, and on what the ranks' state depends besides the step."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_trainer.checkpoint.compatibility import meta_of
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.driver.loop import TrainState
from raggrpo_trainer.driver.resume import key_of, resume
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.held import Held, Position
from raggrpo_trainer.ranks.rank_actor import RankInfo
from support.builders.trainer.checkpoints import make_claim, make_store, shards
from support.builders.trainer.reports import Published, make_config, make_step

INFO = RankInfo(
    process=PodProcess("node-1", 42),
    precision="BF16",
    attention="Sdpa",
    parameters=560_000,
    peak_tflops=0.0,
    memory_kills=0,
)
IDENTITY: dict[str, object] = {"data rows": 8000, "model config.json": "5f1d"}
SAVED = 4


# --- the key


@dataclass(frozen=True)
class Inputs:
    config: TrainerConfig
    info: RankInfo = INFO
    identity: dict[str, object] = field(default_factory=lambda: dict(IDENTITY))

    def block(self, name: str, **changes: object) -> "Inputs":
        """Change nothing but this; the hashes in the configuration stay as they are."""
        changed = getattr(self.config, name).model_copy(update=changes)
        return self.top(**{name: changed})

    def top(self, **changes: object) -> "Inputs":
        return replace(self, config=self.config.model_copy(update=changes))

    @property
    def key(self) -> str:
        return key_of(self.config, self.info, self.identity)


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
def test_ranks_that_differ_in_what_their_state_depends_on_have_another_key(
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
def test_the_next_attempt_at_the_same_job_has_the_same_key(
    changed: Callable[[Inputs], Inputs], tmp_path: Path
) -> None:
    inputs = Inputs(make_config(tmp_path))

    assert changed(inputs).key == inputs.key


# --- the beginning


class FakeRanks:
    infos = (INFO,)

    def __init__(self) -> None:
        self.loaded: list[Path] = []
        self.holding: list[Position] = []

    async def load(self, folder: Path) -> None:
        self.loaded.append(folder)

    async def hold(self, position: Position) -> None:
        self.holding.append(position)


@dataclass
class Begun:
    """What became of an attempt's beginning."""

    state: TrainState
    ranks: FakeRanks
    store: CheckpointStore
    resumed_at: list[int]
    """As reported."""
    steps: list[int]
    """Whose records were reported."""


def what_is_held(step: int) -> Held:
    record, cursor = make_step(step), Cursor(epoch=2, position=step)
    position = Position(step, cursor, "key", record.samples, seconds={"generate": 1.0})
    return Held(position, checksum=1, trained=record.trained, train_seconds=2.0)


async def begin(folder: Path, held: Held | None, *, reported: int = 0) -> Begun:
    """Begin an attempt at a job whose newest checkpoint is of step 4."""
    config, ranks, store = make_config(folder), FakeRanks(), make_store(make_claim(folder))
    for step in (2, SAVED):
        meta = meta_of(config, step, Cursor(epoch=1, position=step), {}, identity=IDENTITY)
        store.save(meta, shards(step))
    reporter = Reporter(config, 1, publish=Published())
    state = await resume(config, store, cast(Any, ranks), held, reporter, reported, IDENTITY)
    reporter.close()
    logs = Path(config.monitoring.log_dir)
    resumed_at = [event["step"] for event in read_events(logs) if event["event"] == "resume"]
    return Begun(state, ranks, store, resumed_at, [each["step"] for each in read_history(logs)])


@pytest.mark.row("B10")
@pytest.mark.parametrize("held", [None, what_is_held(3)], ids=["nothing held", "step 3 held"])
async def test_the_newest_checkpoint_is_loaded_where_the_ranks_hold_an_older_step_or_none(
    held: Held | None, tmp_path: Path
) -> None:
    begun = await begin(tmp_path, held)

    assert begun.store.newest is not None
    assert begun.ranks.loaded == [begun.store.newest.folder]
    cursor = Cursor(epoch=1, position=SAVED)
    assert begun.state == TrainState(SAVED, cursor, SAVED)
    key = key_of(make_config(tmp_path), INFO, IDENTITY)
    assert begun.ranks.holding == [Position(SAVED, cursor, key)]
    assert (begun.resumed_at, begun.steps) == ([SAVED], [])


@pytest.mark.parametrize("step", [SAVED, 6])
async def test_ranks_that_hold_the_newest_step_go_on_from_it_and_load_nothing(
    step: int, tmp_path: Path
) -> None:
    held = what_is_held(step)

    begun = await begin(tmp_path, held)

    assert (begun.ranks.loaded, begun.ranks.holding) == ([], [])
    reward = held.position.reward
    assert begun.state == TrainState(step, held.position.cursor, SAVED, reward=reward)
    assert begun.resumed_at == [step]
    assert begun.steps == ([step] if step > SAVED else [])  # what was saved had been told


@pytest.mark.parametrize(("reported", "steps"), [(5, [6]), (6, []), (7, [])])
async def test_the_record_of_the_held_step_is_made_up_for_only_if_nobody_told_of_it(
    reported: int, steps: list[int], tmp_path: Path
) -> None:
    begun = await begin(tmp_path, what_is_held(6), reported=reported)

    assert begun.steps == steps
