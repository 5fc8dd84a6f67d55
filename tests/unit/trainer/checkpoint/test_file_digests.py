import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.names import ENV_CHECKPOINT_KEY
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint import file_digests
from raggrpo_trainer.checkpoint.file_digests import sha256_of, stored_files
from raggrpo_trainer.checkpoint.folder import Checkpoint
from raggrpo_trainer.checkpoint.hashing_save import save_hashed
from raggrpo_trainer.checkpoint.start import verify
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import is_whole, make_claim, make_meta, make_store, shards
from support.builders.trainer.policies import make_policy, write_model

KEY = "key of the job"


def change_byte(file: Path) -> None:
    """Change one byte; size and times stay the same."""
    status = file.stat()
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def change_marker(folder: Path, **changes: Any) -> None:
    marker = json.loads((folder / "COMPLETE").read_text())
    (folder / "COMPLETE").write_text(json.dumps(marker | changes))


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Replace a file, and its size and digest in COMPLETE, as an attacker would."""
    (folder / name).write_bytes(content)
    files = json.loads((folder / "COMPLETE").read_text())["files"]
    files[name] = {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    change_marker(folder, files=files)


def save_backups(path: Path, *, key: str = "") -> Path:
    """Back up steps 10 and 20; return the folder of the newer backup."""
    store = make_store(make_claim(path / "volume"), backup=path / "backup", key=key)
    for step in (10, 20):
        store.back_up(store.save(make_meta(step), shards(step)))
    return path / "backup" / "step_00000020.e1"


def restore(path: Path, *, key: str = "") -> Checkpoint | None:
    return make_store(make_claim(path / "new"), backup=path / "backup", key=key).restore()


@pytest.mark.usefixtures("process_group")
def test_digests_computed_while_writing_are_those_of_the_files(tmp_path: Path) -> None:
    policy = make_policy(write_model(tmp_path / "model"))

    digests = save_hashed(policy.state_dict(), tmp_path / "saved")

    files = {p.name: p for p in (tmp_path / "saved").iterdir()}
    assert ".metadata" in digests
    assert digests == {name: sha256_of(path) for name, path in files.items()}


def test_complete_contains_size_and_digest_of_all_files(tmp_path: Path) -> None:
    saved = make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))

    marker = json.loads((saved.folder / "COMPLETE").read_text())

    content = (saved.folder / "__0_0.distcp").read_bytes()
    assert marker["files"]["__0_0.distcp"] == {
        "size": 3000,
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    assert set(marker["files"]) == {"__0_0.distcp", "__1_0.distcp", "meta.json"}


def test_digests_of_the_writer_are_not_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    read: list[str] = []

    def hashed(path: Path) -> str:
        read.append(path.name)
        return "0" * 64

    monkeypatch.setattr(file_digests, "sha256_of", hashed)
    files = stored_files(tmp_path, {"a": "1" * 64})

    assert read == ["b"]
    assert files["a"].sha256 == "1" * 64


@pytest.mark.parametrize("name", ["__0_0.distcp", "__1_0.distcp"])
def test_changed_shard_of_same_size_is_detected(tmp_path: Path, name: str) -> None:
    saved = make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))
    saved.verify()
    change_byte(saved.folder / name)

    with pytest.raises(ValueError, match=rf"step_00000010.e1 is damaged: {name} differs from its"):
        saved.verify()
    with pytest.raises(TrainerError, match=r"startFrom.checkpoint: .* is damaged") as raised:
        verify(saved)
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR


def test_changed_meta_of_same_size_is_not_parsed(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    store.save(make_meta(10), shards(10))
    newest = store.save(make_meta(20), shards(20))
    meta = newest.folder / "meta.json"
    meta.write_text(meta.read_text().replace("resume-hash", "other--hash"))

    later = make_store(make_claim(tmp_path, attempt=2))

    assert [each.marker.step for each in later.checkpoints] == [10]
    assert later.skipped[0].reason == "meta.json is unreadable: it differs from its SHA-256"


def test_metadata_that_complete_does_not_list_is_rejected(tmp_path: Path) -> None:
    saved = make_store(make_claim(tmp_path)).save(make_meta(10), shards(10))
    (saved.folder / ".metadata").write_bytes(b"planted")

    with pytest.raises(ValueError, match=r"\.metadata is not listed"):
        saved.verify()


def test_checkpoint_without_digests_is_skipped_with_reason(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    saved = store.save(make_meta(10), shards(10))
    change_marker(saved.folder, files={"meta.json": 120})

    [skipped] = make_store(make_claim(tmp_path, attempt=2)).skipped

    assert skipped.reason.startswith("COMPLETE is unreadable: files.meta.json: ")


@pytest.mark.parametrize("name", ["__0_0.distcp", "meta.json"])
def test_backup_with_changed_file_is_not_used(tmp_path: Path, name: str) -> None:
    change_byte(save_backups(tmp_path) / name)

    restored = restore(tmp_path)

    assert restored is not None
    assert restored.marker.step == 10
    assert is_whole(restored)
    assert [p.name for p in (tmp_path / "new").glob("step*")] == ["step_00000010.e1"]


def test_start_over_is_prevented_if_all_backups_are_damaged(tmp_path: Path) -> None:
    save_backups(tmp_path)
    for folder in (tmp_path / "backup").iterdir():
        change_byte(folder / "__0_0.distcp")

    with pytest.raises(
        TrainerError, match=r"no backup at checkpoint.backup.url \S+ can be used"
    ) as e:
        restore(tmp_path)
    assert e.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert list((tmp_path / "new").glob("step*")) == []


# --- seal -------------------------------------------------------------------------------------


def test_sealed_backup_is_restored_with_its_key(tmp_path: Path) -> None:
    save_backups(tmp_path, key=KEY)

    restored = restore(tmp_path, key=KEY)

    assert restored is not None
    assert restored.marker.step == 20
    assert restored.marker.is_sealed_with(KEY)
    assert not restored.marker.is_sealed_with("other key")


@pytest.mark.parametrize(
    "forge",
    [
        pytest.param(
            lambda folder: replace_file(folder, "__0_0.distcp", b"planted"), id="other shard"
        ),
        pytest.param(lambda folder: change_marker(folder, score=99.0), id="other score"),
        pytest.param(lambda folder: change_marker(folder, config_hash="x"), id="other hash"),
        pytest.param(lambda folder: change_marker(folder, seal=""), id="no seal"),
        pytest.param(lambda folder: change_marker(folder, seal="0" * 64), id="other seal"),
        pytest.param(lambda folder: change_marker(folder, seal="ß"), id="not ASCII"),
        pytest.param(
            lambda folder: folder.rename(folder.with_name("step_00000030.e1")), id="renamed"
        ),
    ],
)
def test_forged_backup_is_not_used_if_the_job_has_a_key(
    tmp_path: Path, forge: Callable[[Path], object]
) -> None:
    forge(save_backups(tmp_path, key=KEY))

    restored = restore(tmp_path, key=KEY)

    assert restored is not None
    assert restored.marker.step == 10


def test_start_over_is_prevented_if_no_backup_is_sealed(tmp_path: Path) -> None:
    save_backups(tmp_path)

    with pytest.raises(TrainerError, match=f"is not sealed with {ENV_CHECKPOINT_KEY}") as raised:
        restore(tmp_path, key=KEY)
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR


def test_seal_does_not_matter_on_the_volume(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path))
    store.save(make_meta(10), shards(10))

    later = make_store(make_claim(tmp_path, attempt=2), key=KEY)

    assert [each.marker.step for each in later.checkpoints] == [10]
