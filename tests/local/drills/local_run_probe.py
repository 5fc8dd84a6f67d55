"""What others on the machine can reach and read of a real run while it lasts."""

import json
import stat
import subprocess
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from local.drills.drill import DEADLINE_SECONDS, Run

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
SUBMISSIONS = "/api/job_agent/jobs/"
"""Of Ray's agent, which would run what it is sent."""


class LocalRunProbe:
    """Somebody without the run's token, who looks at it several times a second."""

    def __init__(self, run: Run, owned: Path) -> None:
        self._run = run
        self.owned = owned
        """What exists once somebody has made the run execute a command."""
        self.ports: dict[int, str] = {}
        """Every port on which a process of the run listened, and whose it is."""
        self.exposed: set[str] = set()
        """Listening sockets beyond the loopback interface."""
        self.answers: dict[str, set[int]] = {}
        """HTTP statuses of what was asked without the token, by path."""
        self.modes: dict[Path, int] = {}
        """Of Ray's temporary folder and of the weights in shared memory, which end with the run."""

    def watch(self, process: "subprocess.Popen[str]", ask_after: int) -> None:
        """Look until the process ends; ask once, when this step has been trained."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            self._look()
            step = self._run.status().get("progress", {}).get("step", 0)
            if step >= ask_after and not self.answers:
                self._ask_without_token()
            time.sleep(0.2)

    def _look(self) -> None:
        """Note what listens, and the modes of what will be gone at the end."""
        programs = {}
        for process in self._run.processes():
            try:
                programs[process.pid] = f"{process.name()}: {' '.join(process.cmdline())}"
            except psutil.NoSuchProcess:
                continue
        for socket in psutil.net_connections("inet"):
            if socket.pid not in programs or socket.raddr:
                continue
            if socket.status not in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                continue
            self.ports[socket.laddr.port] = programs[socket.pid]
            if socket.laddr.ip not in LOOPBACK:
                self.exposed.add(f"{socket.laddr.ip} {programs[socket.pid]}")
        state = json.loads((self._run.dir / "state.json").read_text())
        if state["temp_dir"] and (temporary := Path(state["temp_dir"])).exists():
            self.modes[temporary] = mode_of(temporary)
        for process in programs:
            self._look_at_shared_memory(Path(f"/proc/{process}/fd"))

    def _look_at_shared_memory(self, open_files: Path) -> None:
        """Note the modes of what a process has open of it: some of that has no name any more."""
        with suppress(FileNotFoundError, ProcessLookupError):  # it is gone by now
            for each in open_files.iterdir():
                path = each.readlink()
                if path.parent == Path("/dev/shm") and path.name.startswith("raggrpo-"):
                    self.modes[path] = mode_of(each)

    def _ask_without_token(self) -> None:
        """Try to run a command through every port, and to read the progress."""
        command = {"entrypoint": f"touch {self.owned}"}
        asked: list[tuple[int, str, object]] = [(port, SUBMISSIONS, command) for port in self.ports]
        for port, program in self.ports.items():
            if "_Server" in program:
                asked += [(port, "/progress", None), (port, "/stop", {})]
        with ThreadPoolExecutor(len(asked)) as threads:  # some ports never answer
            for (_, path, _), status in zip(asked, threads.map(status_of, asked), strict=True):
                self.answers.setdefault(path, set()).add(status)


def status_of(question: tuple[int, str, object]) -> int:
    """Ask a port for a path; return the HTTP status, 0 if what listens there speaks no HTTP."""
    port, path, body = question
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


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
