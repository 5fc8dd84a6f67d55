"""A Ray head on this machine as a child process: its command line, ports and files.

All servers listen on the loopback interface and require the token of the run, since other users of
the machine can reach that interface.
"""

import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from raggrpo_api import names
from raggrpo_api.fields.base import ClusterNumber
from raggrpo_api.trainer.config import World
from raggrpo_operator.core.spec.ray_variables import RAY_VARIABLES
from raggrpo_operator.core.spec.world import SPARE_CPUS
from raggrpo_operator.http_api import HttpApi, open_session
from raggrpo_operator.progress_client import ProgressClient

from .processes import Child, Processes, exit_text, free_ports

PREFIX = "raggrpo-"
RAY = "ray"
"""Subfolder for Ray's files; Ray makes it accessible to all users."""
CONNECT_TIMEOUT_SECONDS = 1.0
"""Timeout for connecting to a server on this machine."""
MAX_TEMP_DIR_CHARS = 40
"""Ray appends about 60 characters for Unix sockets; the kernel allows 107 in total."""
GCS_RECONNECT_SECONDS = 5
"""Seconds that nodes wait for a lost head; a new head always has another address."""
SURVIVES_SETPROCTITLE = {"SPT_NOENV": "1"}
"""Variable without which Ray workers overwrite the run mark in /proc/PID/environ."""


@dataclass(slots=True)
class RayHead:
    """A started head, and the client of the progress server that drivers start."""

    number: ClusterNumber
    child: Child
    temp_dir: Path
    progress_port: int
    env: Mapping[str, str] = field(repr=False)
    """Environment of all processes on the head; contains secrets."""
    session: aiohttp.ClientSession = field(default_factory=open_session)
    progress: ProgressClient = field(init=False)

    def __post_init__(self) -> None:
        address = f"http://127.0.0.1:{self.progress_port}"
        self.progress = ProgressClient(HttpApi(self.session, address, self.token))

    @property
    def token(self) -> str:
        """Token required by all servers of the head."""
        return self.env["RAY_AUTH_TOKEN"]

    def address(self) -> str:
        """Return the address for drivers, or "" until Ray has started."""
        file = self.temp_dir / RAY / "ray_current_cluster"
        return file.read_text().strip() if file.exists() else ""

    def accepts_connections(self) -> bool:
        """Return whether GCS and raylet accept connections."""
        host, _, port = self.address().rpartition(":")
        raylet = self.temp_dir / RAY / "session_latest" / "sockets" / "raylet"
        if not port:
            return False
        try:
            with socket.create_connection((host, int(port)), CONNECT_TIMEOUT_SECONDS):
                pass
            with socket.socket(socket.AF_UNIX) as unix:
                unix.settimeout(CONNECT_TIMEOUT_SECONDS)
                unix.connect(str(raylet))
        except OSError:
            return False
        return True

    def exit_message(self) -> str:
        """Return a message with the exit codes of the head, or "" while the head is running."""
        code = self.child.exit_code()
        if code is None:
            return ""
        record = self.temp_dir / RAY / "session_latest" / "logs" / "ray_process_exit.log"
        text = record.read_text(errors="replace") if record.exists() else ""
        exited = re.findall(r"^ *(\w+) \[exit code=(-?\d+)", text, re.MULTILINE)
        reasons = "".join(f", {name} with {exit_text(int(status))}" for name, status in exited)
        return f"the Ray head exited with {exit_text(code)}{reasons}"

    async def close(self, processes: Processes) -> None:
        """Terminate the head with all its processes, and remove Ray's files."""
        processes.terminate(self.child)
        await self.session.close()
        remove_temp_dir(self.temp_dir)


def start_ray_head(
    number: ClusterNumber,
    processes: Processes,
    *,
    world: World,
    object_store_bytes: int,
    env: Mapping[str, str],
    log_file: Path,
    temp_dir: Path,
) -> RayHead:
    """Start a head with logical CPUs for all ranks and engines."""
    # One call returns all ports, so that they differ.
    progress_port, gcs_port, agent_port = free_ports(3)
    command = [
        *(sys.executable, "-m", names.RAY_START, "ray", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(gcs_port)),
        "--include-dashboard=false",  # the dashboard would start ten unused processes
        # The default port would collide with a second head on this machine.
        *("--dashboard-agent-listen-port", str(agent_port)),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--num-cpus", str(logical_cpus(world)), "--temp-dir", str(temp_dir / RAY)),
        *("--object-store-memory", str(object_store_bytes)),
        *("--disable-usage-stats", "--no-monitor", "--log-style", "record", "--log-color", "false"),
    ]
    full_env = {
        **head_env(env, temp_dir, secrets.token_hex(32)),
        names.ENV_PROGRESS_PORT: str(progress_port),
    }
    child = processes.start(f"c{number}", command, full_env, log_file)
    return RayHead(number, child, temp_dir, progress_port, full_env)


def head_env(env: Mapping[str, str], temp_dir: Path, token: str) -> dict[str, str]:
    """Return the environment of the head, its actors and drivers."""
    inherited = {key: value for key, value in env.items() if key not in _FOREIGN}
    return {
        **RAY_VARIABLES,
        "RAY_enable_metrics_collection": "0",
        **inherited,
        **SURVIVES_SETPROCTITLE,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # keeps Ray on loopback; default on macOS
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo"),
        "VLLM_HOST_IP": "127.0.0.1",
        "TMPDIR": str(temp_dir),  # other users could guess names in /tmp
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(GCS_RECONNECT_SECONDS),
        "PYTHONUNBUFFERED": "1",
    }


_FOREIGN = frozenset({"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_NAMESPACE", "RAY_TMPDIR"})
"""Variables that refer to other Ray clusters of the user."""


def logical_cpus(world: World) -> int:
    """Return the logical CPUs of the head: enough for all ranks and engines."""
    ranks = world.num_ranks * world.cpus_per_rank
    engines = world.num_engines * world.cpus_per_engine
    return int(-(-(ranks + engines) // 1)) + SPARE_CPUS


def make_temp_dir() -> Path:
    """Create a private temporary folder with a path short enough for Ray's sockets."""
    default = tempfile.gettempdir()
    fits = len(f"{default}/{PREFIX}12345678/{RAY}") <= MAX_TEMP_DIR_CHARS
    parent = default if fits else "/tmp"
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))


def remove_temp_dir(temp_dir: Path) -> None:
    """Remove a folder that `make_temp_dir` created; ignore other folders."""
    if temp_dir.name.startswith(PREFIX):
        shutil.rmtree(temp_dir, ignore_errors=True)
