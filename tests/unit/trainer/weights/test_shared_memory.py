import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from raggrpo_trainer.engines.engine_options import WORKER_EXTENSION
from raggrpo_trainer.weights.shared_memory import SharedMemoryReceiver, SharedMemorySender
from raggrpo_trainer.weights.transfer import RankLost
from raggrpo_trainer.weights.vllm_extension import WorkerExtension


def tensors(version: int) -> list[tuple[str, torch.Tensor]]:
    return [("layer", torch.full((3,), float(version))), ("head", torch.zeros(2))]


def version_of(path: str | Path) -> float:
    return load_file(path)["layer"][0].item()


def files_in(folder: Path) -> list[str]:
    """Return the open files of this process in `folder`, named or unlinked."""
    open_files = [os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.exists()]
    return [each for each in open_files if each.startswith(str(folder))]


def test_rank_0_keeps_two_newest_weight_versions_until_close(tmp_path: Path) -> None:
    sender = SharedMemorySender("job", 0, tmp_path)

    paths = [sender.send(version, tensors(version)) for version in range(4)]

    assert [version_of(path) for path in paths[2:]] == [2.0, 3.0]
    assert len(files_in(tmp_path)) == 2
    sender.close()
    assert not files_in(tmp_path)


async def test_weights_files_are_private(tmp_path: Path) -> None:
    before = os.umask(0)
    sender = SharedMemorySender("job", 0, tmp_path)
    try:
        sent = sender.send(1, tensors(1))
        async with SharedMemoryReceiver(tmp_path).received("elsewhere", b"weights") as received:
            modes = [os.stat(path).st_mode & 0o777 for path in (sent, received)]
    finally:
        os.umask(before)

    assert modes == [0o600, 0o600]


def test_ranks_other_than_0_gather_weights_without_writing_file(tmp_path: Path) -> None:
    gathered = iter(tensors(1))
    assert SharedMemorySender("job", 1, tmp_path).send(1, gathered) == ""
    assert next(gathered, None) is None
    assert not list(tmp_path.iterdir())


def test_weights_file_is_removed_when_rank_is_killed(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
import torch
from raggrpo_trainer.weights.shared_memory import SharedMemorySender
sender = SharedMemorySender("job", 0, Path({str(tmp_path)!r}))
assert os.path.exists(sender.send(1, [("layer", torch.zeros(2))]))
os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


def test_new_sender_removes_leftover_weights_files_of_its_job(
    tmp_path: Path,
) -> None:
    for job in ("job", "other-job"):
        (tmp_path / f"{job}-weights-1-1.safetensors").touch()

    SharedMemorySender("job", 1, tmp_path)

    assert [path.name for path in tmp_path.iterdir()] == ["other-job-weights-1-1.safetensors"]


async def test_engine_reads_weights_file_in_place_or_from_temporary_copy(
    tmp_path: Path,
) -> None:
    sender = SharedMemorySender("job", 0, tmp_path)
    receiver = SharedMemoryReceiver(tmp_path)
    sent = sender.send(7, tensors(7))

    async with receiver.received(sent, None) as path:
        assert os.stat(path).st_ino == os.stat(sent).st_ino
    async with receiver.received(sent, sender.data(sent)) as copy:
        assert copy != sent
        assert version_of(copy) == 7.0

    assert not os.listdir(tmp_path)


def test_copy_of_weights_is_removed_when_engine_is_killed(tmp_path: Path) -> None:
    code = f"""
import asyncio, os, signal
from pathlib import Path
from raggrpo_trainer.weights.shared_memory import SharedMemoryReceiver
async def receive():
    async with SharedMemoryReceiver(Path({str(tmp_path)!r})).received("x", b"weights") as path:
        assert Path(path).read_bytes() == b"weights"
        os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(receive())
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False)

    assert killed.returncode == -signal.SIGKILL
    assert not list(tmp_path.iterdir())


async def test_missing_weights_file_raises_rank_lost(tmp_path: Path) -> None:
    sender = SharedMemorySender("job", 0, tmp_path)
    sent = sender.send(7, tensors(7))
    sender.close()

    with pytest.raises(RankLost):
        async with SharedMemoryReceiver(tmp_path).received(sent, None):
            pass


def test_worker_extension_path_refers_to_worker_extension_class() -> None:
    assert f"{WorkerExtension.__module__}.{WorkerExtension.__qualname__}" == WORKER_EXTENSION
