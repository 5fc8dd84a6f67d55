import random
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingProgress, StagingReason
from support.servers.hub_server import HubServer
from support.staging import PART_BYTES, Stage, files_in, make_data_source, make_model_source

WEIGHTS = random.Random(0).randbytes(5 * PART_BYTES + 1000)
MODEL = {
    "config.json": b"{}",
    "tokenizer.json": b'{"model": {}}',
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"unused",
    "original/model.safetensors": b"unused",
    ".gitattributes": b"unused",
}
NEEDED = ["config.json", "model.safetensors", "tokenizer.json"]


def test_model_is_staged_at_pinned_commit(hub: HubServer, stage: Stage) -> None:
    commit = hub.add("org/name", MODEL).branches["main"]
    run = stage.start(make_model_source("hf://org/name"))
    staged = run.result().staged[0]

    assert staged.revision == commit
    assert Path(staged.path).parent.name.startswith("org-name-")
    assert files_in(Path(staged.path)) == {name: MODEL[name] for name in NEEDED}
    assert staged.bytes == sum(len(MODEL[name]) for name in NEEDED)
    progress = StagingProgress.model_validate_json(run.progress.read_text())
    assert progress.bytes_done == progress.bytes_total == staged.bytes


def test_staged_model_is_reused(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    first = stage.staged(make_model_source("hf://org/name"))
    hub.sent.clear()
    second = stage.staged(make_model_source("hf://org/name"))
    assert second == first.model_copy(update={"seconds": 0.0})
    assert not hub.sent


def test_pinned_revision_is_reused_without_network(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    first = stage.staged(make_model_source("hf://org/name"))
    hub.requests.clear()
    stage.staged(make_model_source("hf://org/name", first.revision))
    stage.staged(make_model_source(f"hf://org/name@{first.revision}"))
    assert hub.requests == []


def test_recorded_revision_is_staged_after_branch_moved(hub: HubServer, stage: Stage) -> None:
    repository = hub.add("org/name", MODEL)
    old = repository.branches["main"]
    new = repository.commit({**MODEL, "config.json": b'{"a": 1}'})
    assert stage.staged(make_model_source("hf://org/name", old)).revision == old
    assert stage.staged(make_model_source("hf://org/name")).revision == new


CARD = """---
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test.jsonl]
---
"""
DATA = {
    "README.md": CARD.encode(),
    "main/train-0.parquet": b"0" * 1000,
    "main/train-1.parquet": b"1" * 1000,
    "main/test.jsonl": b"{}\n",
    "other/train-0.parquet": b"2",
    "data/validation.jsonl": b"{}\n",
}


@pytest.mark.parametrize(
    ("selection", "files"),
    [
        ("/main", ["test.jsonl", "train-0.parquet", "train-1.parquet"]),
        ("#config=main&split=train", ["main/train-0.parquet", "main/train-1.parquet"]),
        ("#split=test", ["main/test.jsonl"]),
        ("#config=other&split=train", ["other/train-0.parquet"]),
    ],
)
def test_selected_data_files_are_staged(
    hub: HubServer, stage: Stage, selection: str, files: list[str]
) -> None:
    hub.add("datasets/org/data", DATA)
    staged = stage.staged(make_data_source(f"hf://datasets/org/data{selection}"))
    assert sorted(files_in(Path(staged.path))) == files


def test_data_file_is_staged_as_file(hub: HubServer, stage: Stage) -> None:
    hub.add("datasets/org/data", DATA)
    staged = stage.staged(make_data_source("hf://datasets/org/data/main/train-0.parquet"))
    assert Path(staged.path).name == "train-0.parquet"
    assert Path(staged.path).read_bytes() == DATA["main/train-0.parquet"]


def test_missing_split_is_reported_with_files(hub: HubServer, stage: Stage) -> None:
    hub.add("datasets/org/data", DATA)
    failure = stage.failure(make_data_source("hf://datasets/org/data#split=dev"))
    assert failure.reason is StagingReason.NOT_FOUND
    assert "no data file matches (found: main/train-0.parquet, " in failure.message


def test_hub_cache_is_used_and_works_offline(hub: HubServer, stage: Stage) -> None:
    commit = hub.add("org/name", MODEL).branches["main"]
    hub.add("datasets/org/data", DATA)
    stage.use_hub_cache = True
    stage.env["HF_HOME"] = str(stage.base / "hub-home")
    model, data = (
        make_model_source("hf://org/name"),
        make_data_source("hf://datasets/org/data#split=test"),
    )
    online = [stage.staged(each) for each in (model, data)]
    stage.env |= {"HF_HUB_OFFLINE": "1"}
    offline = [stage.staged(each) for each in (model, data)]
    missing = stage.failure(make_model_source("hf://org/name@v2"))

    assert Path(online[0].path) == (
        stage.base / "hub-home" / "hub" / "models--org--name" / "snapshots" / commit
    )
    assert sorted(each.name for each in Path(online[0].path).iterdir()) == NEEDED
    assert Path(online[1].path, "main/test.jsonl").read_bytes() == b"{}\n"
    assert [(e.digest, e.path) for e in offline] == [(e.digest, e.path) for e in online]
    assert missing.reason is StagingReason.NOT_FOUND
    assert "HF_HUB_OFFLINE" in missing.message
