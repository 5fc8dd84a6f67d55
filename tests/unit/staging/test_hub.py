import random
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from raggrpo_api.trainer.staging import StagingProgress, StagingReason
from raggrpo_staging.folder import MARKER
from support.processes.waiting import wait_for
from support.servers.hub_server import HubServer
from support.staging import PART_BYTES, Stage, make_model_source

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


def files_in(folder: Path) -> Mapping[str, bytes]:
    found = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    found.pop(MARKER)
    return found


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


def test_killed_download_resumes(hub: HubServer, stage: Stage) -> None:
    hub.add("org/name", MODEL)
    hub.seconds_per_chunk = 0.05
    run = stage.start(make_model_source("hf://org/name"))
    wait_for(lambda: hub.sent["model.safetensors"] > len(WEIGHTS) // 2)
    run.kill()
    hub.seconds_per_chunk = 0.0
    time.sleep(0.2)  # the server's threads notice the closed connections
    already = hub.sent["model.safetensors"]

    staged = stage.staged(make_model_source("hf://org/name"))

    assert files_in(Path(staged.path))["model.safetensors"] == WEIGHTS
    assert hub.sent["model.safetensors"] - already < len(WEIGHTS)


@pytest.mark.parametrize(
    ("url", "reason", "words"),
    [
        ("hf://org/name@v9", StagingReason.UNKNOWN_REVISION, "has no revision v9"),
        ("hf://org/other", StagingReason.TOKEN_MISSING, "does not exist, or is private"),
        ("hf://org/name/missing", StagingReason.NOT_FOUND, "missing"),
        ("hf://org/empty", StagingReason.UNSUITABLE_CONTENT, "no weights in safetensors"),
    ],
)
def test_wrong_source_is_reported(
    hub: HubServer, stage: Stage, url: str, reason: StagingReason, words: str
) -> None:
    hub.add("org/name", MODEL)
    hub.add("org/empty", {"pytorch_model.bin": b"1"})
    failure = stage.failure(make_model_source(url))
    assert failure.reason is reason
    assert words in failure.message
