"""What others can reach and read of a real run and its checkpoints, from its start to its end."""

import json
import os
import stat
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from local.drill import DEADLINE_SECONDS, Run

TEMPLATE = "{passages} {prompt} $A_SECRET $(A_SECRET) $$"
CHANGES = (
    "spec.resources.ranks=2",
    "spec.training.totalSteps=6",
    f"spec.retrieval.promptTemplate='{TEMPLATE}'",
)
LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
SUBMISSIONS = "/api/job_agent/jobs/"
"""Of Ray's agent, which would run what it is sent."""


@dataclass
class Seen:
    """A finished run and what was seen of it on the way."""

    run: Run
    ports: dict[int, str] = field(default_factory=dict)
    """Every port on which a process of the run listened, and whose it is."""
    exposed: set[str] = field(default_factory=set)
    """Listening sockets beyond the loopback interface."""
    answers: dict[str, set[int]] = field(default_factory=dict)
    """HTTP statuses of what was asked without the token, by path."""
    modes: dict[Path, int] = field(default_factory=dict)
    """Of Ray's temporary folder and of the weights in shared memory, which end with the run."""


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seen]:
    folder = tmp_path_factory.mktemp("private")
    before = os.umask(0o022)
    os.environ["A_SECRET"] = "hunter2"
    try:
        found = Seen(Run(folder / "run"))
        process = found.run.start("", *CHANGES)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            look(found)
            if found.run.status().get("progress", {}).get("step", 0) >= 1 and not found.answers:
                ask_without_token(found, folder / "owned")
            time.sleep(0.2)
        found.run.finish(process)
    finally:
        os.umask(before)
        del os.environ["A_SECRET"]
    yield found
    assert not (folder / "owned").exists()


def look(seen: Seen) -> None:
    """Note what listens, and the modes of what will be gone at the end."""
    programs = {}
    for process in seen.run.processes():
        try:
            programs[process.pid] = f"{process.name()}: {' '.join(process.cmdline())}"
        except psutil.NoSuchProcess:
            continue
    for socket in psutil.net_connections("inet"):
        if socket.pid not in programs or socket.raddr:
            continue
        if socket.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE):
            continue
        seen.ports[socket.laddr.port] = programs[socket.pid]
        if socket.laddr.ip not in LOOPBACK:
            seen.exposed.add(f"{socket.laddr.ip} {programs[socket.pid]}")
    try:
        state = json.loads((seen.run.dir / "state.json").read_text())
    except FileNotFoundError:
        return
    temporary = [Path(state["temp_dir"])] if state["temp_dir"] else []
    for path in (*temporary, *Path("/dev/shm").glob(f"raggrpo-{state['uid']}-*")):
        if path.exists():
            seen.modes[path] = mode_of(path)


def ask_without_token(seen: Seen, owned: Path) -> None:
    """Try to run a command through every port, and to read the progress."""
    command = {"entrypoint": f"touch {owned}"}
    for port, program in seen.ports.items():
        asked = {SUBMISSIONS: status_of(port, SUBMISSIONS, command)}
        if "_Server" in program:
            asked |= {
                "/progress": status_of(port, "/progress"),
                "/stop": status_of(port, "/stop", {}),
            }
        for path, status in asked.items():
            seen.answers.setdefault(path, set()).add(status)


def status_of(port: int, path: str, body: object = None) -> int:
    """Return the HTTP status, 0 if what listens there speaks no HTTP."""
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
    except Exception:  # a gRPC server's answer is no HTTP/1.1
        return 0


@pytest.mark.timeout(600)
def test_everything_listens_on_the_loopback_interface_only(seen: Seen) -> None:
    programs = " ".join(seen.ports.values())
    for expected in (
        "gcs_server",
        "raylet",
        "RankActor",
        "_Server",
        "raggrpo_retriever",
    ):
        assert expected in programs
    assert seen.exposed == set()


@pytest.mark.timeout(600)
def test_nobody_without_the_token_can_run_read_or_stop_anything(seen: Seen) -> None:
    for path in (SUBMISSIONS, "/progress", "/stop"):
        assert 401 in seen.answers[path], path
        assert not {status for status in seen.answers[path] if 200 <= status < 400}, path


@pytest.mark.timeout(600)
def test_only_checkpoints_can_be_read_by_others(seen: Seen) -> None:
    job, checkpoints = seen.run.dir, seen.run.dir.parent / "checkpoints"
    private = {path: mode_of(path) for path in (job, *job.rglob("*"), checkpoints / "logs")}
    assert {p: oct(m) for p, m in (private | seen.modes).items() if m & 0o077} == {}

    marker = next(checkpoints.rglob("COMPLETE"))
    assert mode_of(marker) == 0o644
    assert mode_of(marker.parent) == 0o755
    assert any(path.suffix == ".safetensors" for path in seen.modes)


@pytest.mark.timeout(600)
def test_a_template_is_saved_as_its_author_wrote_it(seen: Seen) -> None:
    saved = list((seen.run.dir.parent / "checkpoints").rglob("meta.json"))
    assert saved
    for meta in saved:
        assert json.loads(meta.read_text())["resume_values"]["retrieval.promptTemplate"] == TEMPLATE


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
