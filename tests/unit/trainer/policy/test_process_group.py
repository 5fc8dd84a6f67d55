import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist

from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.rendezvous import address_rendezvous, file_rendezvous
from raggrpo_trainer.policy.process_group import init_process_group, verify_members
from support.builders.trainer.policies import (
    Ranks,
    exit_on_rank_1,
    fail_on_rank_1,
    rank_processes,
)
from support.processes.other_user import as_other_user, needs_root


def listening_ports(process: psutil.Process) -> dict[int, str]:
    sockets = process.net_connections("tcp")
    return {s.laddr.port: s.laddr.ip for s in sockets if s.status == psutil.CONN_LISTEN}


def test_torch_store_listens_only_on_address_of_rank_0() -> None:
    init_process_group(0, 1, address_rendezvous("127.0.0.1"), "cpu")
    addresses = listening_ports(psutil.Process()).values()
    dist.destroy_process_group()
    assert set(addresses) == {"127.0.0.1"}


@needs_root
@pytest.mark.row("E6")
def test_other_user_cannot_write_keys_of_ranks_on_one_node(two_ranks: Ranks) -> None:
    two_ranks.run(verify_members, b"key")  # returns once the ranks have joined
    processes = [psutil.Process(child.pid) for child in two_ranks.children]
    ports = [port for process in processes for port in listening_ports(process)]
    assert ports  # of gloo
    assert as_other_user(writable_stores, ports) == []


def writable_stores(ports: Sequence[int]) -> list[int]:
    """Return the ports of stores in which this user can set a key."""
    written: list[int] = []
    for port in ports:
        # A client waits without limit for the answer of a server that is not a store.
        thread = threading.Thread(target=set_key, args=(port, written), daemon=True)
        thread.start()
        thread.join(2)
    return written


def set_key(port: int, written: list[int]) -> None:
    with suppress(dist.DistError):
        store = dist.TCPStore("127.0.0.1", port, wait_for_workers=False)  # type: ignore[attr-defined]
        store.set("key", "value")
        written.append(port)


@needs_root
@pytest.mark.row("E6")
def test_other_user_cannot_open_file_of_ranks() -> None:
    file = Path(file_rendezvous().file)
    store = dist.FileStore(str(file), 1)  # type: ignore[attr-defined]
    store.set("key", "value")
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    with pytest.raises(PermissionError):
        as_other_user(file.read_bytes)
    with pytest.raises(PermissionError):
        as_other_user(file.open, "ab")


def test_folder_of_ranks_is_removed_when_its_process_exits(tmp_path: Path) -> None:
    code = "from raggrpo_trainer.exchange.rendezvous import *; print(file_rendezvous().file)"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}

    made = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
    )

    assert made.stdout.startswith(str(tmp_path / "raggrpo-ranks-"))
    assert list(tmp_path.iterdir()) == []


def test_folder_of_killed_rank_is_removed_by_next_rank(tmp_path: Path) -> None:
    code = """
import os, signal, subprocess, sys
from pathlib import Path
from raggrpo_trainer.exchange.rendezvous import file_rendezvous
folder = Path(file_rendezvous().file).parent
(folder / "store").touch()
print(folder.name, flush=True)
if sys.argv[1:]:
    subprocess.run([sys.executable, "-c", sys.argv[1]], check=False)
    print(*folder.iterdir())
os.kill(os.getpid(), signal.SIGKILL)
"""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "TMPDIR": str(tmp_path)}
    (tmp_path / "raggrpo-ranks-file").touch()
    (tmp_path / "raggrpo-ranks-link").symlink_to(tmp_path)

    made = subprocess.run(  # two ranks, of which the second is killed while the first is alive
        [sys.executable, "-c", code, code], env=env, capture_output=True, text=True, check=False
    )

    first, _second, store = made.stdout.split()
    assert store.endswith("/store")
    assert len(list(tmp_path.iterdir())) == 4
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(tmp_path))
        new = Path(file_rendezvous().file).parent
    left = {each.name for each in tmp_path.iterdir()}
    assert left == {new.name, "raggrpo-ranks-file", "raggrpo-ranks-link"}
    assert first not in left


def test_process_without_key_is_rejected_by_all_ranks(two_ranks: Ranks) -> None:
    for message in two_ranks.run(verify_with_own_key):
        assert "another process has taken the place of ranks" in message


def verify_with_own_key(rank: int, world_size: int) -> str:
    try:
        verify_members(rank, world_size, f"key {rank}".encode())
    except TrainerError as error:
        return str(error)
    return ""


def test_ranks_with_same_key_are_accepted(two_ranks: Ranks) -> None:
    assert two_ranks.run(verify_members, b"key") == [None, None]


@pytest.mark.parametrize(
    ("function", "error"), [(fail_on_rank_1, ValueError), (exit_on_rank_1, EOFError)]
)
def test_two_ranks_do_not_hang_when_one_fails(
    function: Callable[[int, int], None], error: type[Exception]
) -> None:
    with rank_processes(2) as ranks:
        with pytest.raises(error):
            ranks.run(function)
        assert not any(child.is_alive() for child in joined(ranks.children))


def joined(children: Sequence[BaseProcess]) -> Sequence[BaseProcess]:
    for child in children:
        child.join(30)
    return children
