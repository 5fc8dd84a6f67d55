"""Probe of a running local job: its ports, its files, and access without its token.

As root, the probe sends its requests as another user.
"""

import json
import os
import stat
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil

from local.drills.drill import DEADLINE_SECONDS, Run
from support.processes.other_user import as_other_user

LOOPBACK = {"127.0.0.1", "::1", "::ffff:127.0.0.1"}
SUBMISSIONS = "/api/job_agent/jobs/"
"""Path of Ray's job agent, which executes submitted commands."""


class LocalRunProbe:
    """Client without the token of the run, which polls it five times a second."""

    def __init__(self, run: Run, owned: Path) -> None:
        self._run = run
        self.owned = owned
        """File that exists once an unauthorized command was executed."""
        self.ports: dict[int, str] = {}
        """Command of the listening process by port."""
        self.exposed: set[str] = set()
        """Listening sockets beyond the loopback interface."""
        self.answers: dict[str, set[int]] = {}
        """HTTP statuses of requests without the token, by path; 0 for no HTTP."""
        self.modes: dict[Path, int] = {}
        """Modes of Ray's temporary folder and of shared-memory files; the run deletes both."""

    def watch(self, process: "subprocess.Popen[str]", request_after: int) -> None:
        """Poll until the process exits; send requests once, after step `request_after`."""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            self._record_state()
            step = self._run.status().get("progress", {}).get("step", 0)
            if step >= request_after and not self.answers:
                self._request_without_token()
            time.sleep(0.2)

    def _record_state(self) -> None:
        """Record listening sockets and the modes of temporary files."""
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
            self._record_shared_memory(Path(f"/proc/{process}/fd"))

    def _record_shared_memory(self, open_files: Path) -> None:
        """Record the modes of open shared-memory files, including unlinked ones."""
        with suppress(FileNotFoundError, ProcessLookupError):  # the process exited
            for each in open_files.iterdir():
                path = each.readlink()
                if path.parent == Path("/dev/shm") and path.name.startswith("raggrpo-"):
                    self.modes[path] = mode_of(each)

    def _request_without_token(self) -> None:
        """Submit a command to every port, and read progress and stop on the driver's server."""
        command = {"entrypoint": f"touch {self.owned}"}
        requests: list[tuple[int, str, object]] = [
            (port, SUBMISSIONS, command) for port in self.ports
        ]
        for port, program in self.ports.items():
            if "_Server" in program:
                requests += [(port, "/progress", None), (port, "/metrics", None)]
                requests += [(port, "/stop", {})]
            if "raggrpo_retriever" in program:
                requests += [(port, "/retrieve", {"query": "w1"})]
        is_root = os.geteuid() == 0
        statuses = as_other_user(statuses_of, requests) if is_root else statuses_of(requests)
        for (_, path, _), status in zip(requests, statuses, strict=True):
            self.answers.setdefault(path, set()).add(status)


def statuses_of(requests: Sequence[tuple[int, str, object]]) -> list[int]:
    with ThreadPoolExecutor(len(requests)) as threads:  # some ports never answer
        return list(threads.map(status_of, requests))


def status_of(request: tuple[int, str, object]) -> int:
    """Return the HTTP status of a request to (port, path, body), or 0 if it gets no HTTP answer."""
    port, path, body = request
    data = json.dumps(body).encode() if body is not None else None
    headers = {"Content-Type": "application/json"}
    http_request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, headers)
    try:
        with urllib.request.urlopen(http_request, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code
    except OSError:
        return 0
    except Exception:  # a gRPC server does not answer in HTTP/1.1
        return 0


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
