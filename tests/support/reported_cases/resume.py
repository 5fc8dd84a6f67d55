"""Reported cases about resuming: changed content, moved folders, lost markers."""

import asyncio
import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.compatibility import meta_of
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.driver.inputs import read_inputs
from raggrpo_trainer.driver.resume import resume
from raggrpo_trainer.driver.saving import TrainState
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.progress.reporter import Reporter
from support.builders.data.rows import write_rows
from support.builders.trainer.checkpoints import make_claim, shards
from support.builders.trainer.preflight import make_fit_config
from support.builders.trainer.reports import Published
from support.fakes.fake_resuming_ranks import FakeResumingRanks
from support.reported_cases.case import case


def _make_job(folder: Path, changes: Mapping[str, Any] = MappingProxyType({})) -> TrainerConfig:
    """Return the configuration of a job with a managed retriever and a Python reward."""
    (folder / "code").mkdir(parents=True, exist_ok=True)
    if not (folder / "corpus.jsonl").exists():
        write_rows(folder / "corpus.jsonl", [{"id": "1", "contents": "tea"}])
        (folder / "code" / "rewards.py").write_text("def reward(sample):\n    return 1.0\n")
    return make_fit_config(
        folder,
        {
            "retrieval.mode": "Prompt",
            "retrieval.endpoints": [
                {"name": "kb", "managed": {"corpus": str(folder / "corpus.jsonl")}}
            ],
            "reward.functions": [{"name": "Python", "python": "rewards:reward"}],
            "reward.codeFrom": {"path": str(folder / "code")},
            **changes,
        },
    )


def _save_steps(config: TrainerConfig, *steps: int) -> None:
    identity = read_inputs(config).identity
    store = _open_store(config)
    for step in steps:
        meta = meta_of(config, step, Cursor(position=step), {}, identity=identity)
        store.save(meta, shards(step))


def _open_store(config: TrainerConfig) -> CheckpointStore:
    store = CheckpointStore(config.checkpoint, make_claim(Path(config.checkpoint.path)), "")
    store.clean_up()
    return store


def _resume(config: TrainerConfig) -> tuple[TrainState, list[str]]:
    """Resume as an attempt does; return the state and the names of skipped checkpoints."""
    published = Published()
    reporter = Reporter(config, 2, publish=published)
    store = _open_store(config)
    identity = read_inputs(config).identity
    ranks = cast(Any, FakeResumingRanks())
    try:
        state = asyncio.run(resume(config, store, ranks, None, reporter, 0, identity))
    finally:
        reporter.close()
    return state, [Path(s.path).name for s in published.progresses[-1].skipped_checkpoints]


def _edit(name: str, old: bytes, new: bytes) -> Callable[[Path], None]:
    """Return a function that replaces bytes of a file, whose size stays the same."""

    def edit(folder: Path) -> None:
        content = (folder / name).read_bytes()
        assert old in content
        (folder / name).write_bytes(content.replace(old, new, 1))

    return edit


def _add_chat_template(folder: Path) -> None:
    (folder / "model" / "chat_template.jinja").write_text("{{ messages[-1].content }}")


def _change_weight(folder: Path) -> None:
    file = folder / "model" / "a.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


def _replace_revision(folder: Path) -> None:
    """Replace the model by one of equal shapes whose files have other names."""
    model = folder / "model"
    _change_weight(folder)
    (model / "a.safetensors").rename(model / "model.safetensors")
    for index in model.glob("*.index.json"):
        index.write_text(index.read_text().replace("a.safetensors", "model.safetensors"))


def _add_token(folder: Path) -> None:
    path = folder / "model" / "tokenizer.json"
    values = json.loads(path.read_text())
    values["normalizer"] = {"type": "Lowercase"}
    path.write_text(json.dumps(values))


CHANGED = [
    (_change_weight, "model weights"),
    (_add_chat_template, "chat template"),
    (_add_token, "model tokenizer"),
    (_edit("corpus.jsonl", b"tea", b"pea"), "corpus of endpoint kb"),
    (_edit("train.jsonl", b"question 3", b"question 8"), "rows of data.trainFiles"),
    (_edit("code/rewards.py", b"1.0", b"0.5"), "code of reward rewards:reward"),
]


WITH_ADAPTERS = {"training.lora": {"rank": 4}}
JOBS = [
    *((change, name, {}) for change, name in CHANGED),
    (_change_weight, "model weights", WITH_ADAPTERS),
    (_replace_revision, "model weights", WITH_ADAPTERS),
]


@case("M7", fault="Other content at the same path is trained on silently", inputs=JOBS)
def changed_content_is_rejected(
    folder: Path, given: tuple[Callable[[Path], None], str, dict[str, Any]]
) -> None:
    """The message names the input that differs, and only that."""
    change, name, changes = given
    config = _make_job(folder, changes)
    _save_steps(config, 2)
    change(folder)
    with pytest.raises(TrainerError) as rejected:
        _resume(config)
    assert rejected.value.exit_code is ExitCode.CHECKPOINT_INCOMPATIBLE
    assert f'{name}: "' in str(rejected.value)
    assert str(rejected.value).count(" → ") == 2  # "(old → new)" and one input


@case("M8", fault="A path is taken for the identity of its content")
def moved_folder_resumes(folder: Path) -> None:
    """Model, data, code and checkpoints were copied to another folder or mount."""
    _save_steps(_make_job(folder / "old"), 2)
    shutil.copytree(folder / "old", folder / "mnt" / "new")
    shutil.rmtree(folder / "old")
    state, skipped = _resume(_make_job(folder / "mnt" / "new"))
    assert (state.step, state.segments, skipped) == (2, (), [])


def _lose_marker(newest: Path) -> None:
    (newest / "COMPLETE").unlink()


def _lose_meta(newest: Path) -> None:
    (newest / "meta.json").unlink()


def _empty_marker(newest: Path) -> None:
    (newest / "COMPLETE").write_text("")


LOST = [_lose_marker, _lose_meta, _empty_marker]


@case("M9", fault="A damaged newest checkpoint blocks every resume", inputs=LOST)
def older_checkpoint_is_used(folder: Path, lose: Callable[[Path], None]) -> None:
    """The newest checkpoint is reported as skipped, so the operator accepts the older one."""
    config = _make_job(folder)
    _save_steps(config, 1, 2)
    lose(Path(config.checkpoint.path) / "step_00000002.e1")
    state, skipped = _resume(config)
    assert (state.step, skipped) == (1, ["step_00000002.e1"])
