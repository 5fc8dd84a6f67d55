import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_operator.errors import PermanentError, TransientError
from raggrpo_operator.local_runtime.job_folder import JobFolder, State, write_atomically
from raggrpo_operator.local_runtime.processes import Processes
from support.builders.operator.jobs import make_job


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_new_job_folder_is_private(tmp_path: Path) -> None:
    folder = JobFolder(tmp_path / "jobs" / "small")
    folder.acquire()
    folder.save(State(uid="u1"))
    folder.save_job(make_job())
    processes = Processes()
    processes.start("child", ["true"], os.environ, folder.logs / "deeper" / "child.log")
    processes.terminate_all()
    folder.release()

    modes = {path: mode_of(path) for path in (folder.path, *folder.path.rglob("*"))}
    assert {oct(mode) for path, mode in modes.items() if path.is_dir()} == {"0o700"}
    assert {oct(mode) for path, mode in modes.items() if path.is_file()} == {"0o600"}
    assert len(modes) == 7


def test_private_state_file_replaces_readable_file(tmp_path: Path) -> None:
    draft = tmp_path / "state.json.tmp"
    draft.write_text("left by a killed run")
    with draft.open() as opened_by_another:
        write_atomically(tmp_path / "state.json", "secret")

        assert opened_by_another.read() == "left by a killed run"
    assert mode_of(tmp_path / "state.json") == 0o600


def test_readable_log_becomes_private(tmp_path: Path) -> None:
    log = tmp_path / "child.log"
    log.write_text("of an earlier release")
    processes = Processes()
    processes.start("child", ["true"], os.environ, log)
    processes.terminate_all()

    assert mode_of(log) == 0o600


def test_symbolic_link_as_log_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "child.log").symlink_to(tmp_path / "target")

    with pytest.raises(TransientError, match="symbolic links"):
        Processes().start("child", ["true"], os.environ, tmp_path / "child.log")
    assert not (tmp_path / "target").exists()


def test_mode_of_existing_folder_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.mkdir(mode=0o755)

    folder = JobFolder(path)
    folder.acquire()
    folder.release()

    assert mode_of(path) == 0o755
    assert mode_of(folder.logs) == 0o700


def test_world_writable_folder_is_rejected_with_remedy(tmp_path: Path) -> None:
    path = tmp_path / "small"
    path.mkdir(mode=0o777)

    with pytest.raises(
        PermanentError, match=rf"chmod o-w {path}, or specify another one with --dir"
    ):
        JobFolder(path).acquire()
    assert not list(path.iterdir())

    path.chmod(0o1777)
    JobFolder(path).acquire()


def test_folder_writable_by_another_group_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small"
    path.mkdir(mode=0o770)
    JobFolder(path).acquire()  # of the user's own group

    monkeypatch.setattr("os.getegid", lambda: os.getgid() + 1)
    with pytest.raises(PermanentError, match=rf"chmod g-w {path}"):
        JobFolder(path).acquire()


def test_folder_of_another_user_is_rejected_with_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "small").mkdir(mode=0o755)
    monkeypatch.setattr("os.geteuid", lambda: os.getuid() + 1)

    with pytest.raises(PermanentError, match="belongs to another user: specify another one"):
        JobFolder(tmp_path / "small").acquire()
