"""A Ray head on this machine as a child process: its command line, ports and files.

Everything listens on the loopback interface, and every call needs the run's token, since other
users of the machine reach that interface too. Knows nothing of what runs on the head.
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
"""Ray's own part of the temporary folder; Ray opens it to everybody."""
ANSWER_SECONDS = 1.0
"""Of a server on this machine to a connection."""
MAX_TEMP_DIR_CHARS = 40
"""Ray appends about 60 characters for its Unix sockets; the kernel allows 107 in all."""
GCS_RECONNECT_SECONDS = 5
"""A local head never comes back at the same address, so its agents needn't wait for it."""
SURVIVES_SETPROCTITLE = {"SPT_NOENV": "1"}
"""Without it, Ray's workers overwrite their environment in /proc, including the run's mark."""


@dataclass(slots=True)
class RayHead:
    """A started head, and the client of the progress server that a driver starts on it."""

    number: ClusterNumber
    child: Child
    temp_dir: Path
    progress_port: int
    env: Mapping[str, str] = field(repr=False)
    """What everything on the head begins with, secrets among it."""
    session: aiohttp.ClientSession = field(default_factory=open_session)
    progress: ProgressClient = field(init=False)

    def __post_init__(self) -> None:
        address = f"http://127.0.0.1:{self.progress_port}"
        self.progress = ProgressClient(HttpApi(self.session, address, self.token))

    @property
    def token(self) -> str:
        """What every call to the head needs."""
        return self.env["RAY_AUTH_TOKEN"]

    def address(self) -> str:
        """Return where drivers connect to, empty until Ray has started."""
        written = self.temp_dir / RAY / "ray_current_cluster"
        return written.read_text().strip() if written.exists() else ""

    def accepts_connections(self) -> bool:
        """Return whether Ray's own servers, GCS and raylet, take connections."""
        host, _, port = self.address().rpartition(":")
        raylet = self.temp_dir / RAY / "session_latest" / "sockets" / "raylet"
        if not port:
            return False
        try:
            with socket.create_connection((host, int(port)), ANSWER_SECONDS):
                pass
            with socket.socket(socket.AF_UNIX) as unix:
                unix.settimeout(ANSWER_SECONDS)
                unix.connect(str(raylet))
        except OSError:
            return False
        return True

    def exit_message(self) -> str:
        """Return how the head ended, or empty while it is running."""
        code = self.child.exit_code()
        if code is None:
            return ""
        record = self.temp_dir / RAY / "session_latest" / "logs" / "ray_process_exit.log"
        text = record.read_text(errors="replace") if record.exists() else ""
        dead = re.findall(r"^ *(\w+) \[exit code=(-?\d+)", text, re.MULTILINE)
        reasons = "".join(f", {name} with {exit_text(int(of_it))}" for name, of_it in dead)
        return f"the Ray head ended with {exit_text(code)}{reasons}"

    async def close(self, processes: Processes) -> None:
        """End the head and everything on it, and remove its files."""
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
    """Start a head with room for all ranks and engines, however many CPUs the machine has."""
    # All at once, so that they differ: a head does not survive two components on the same port.
    progress_port, gcs_port, agent_port = free_ports(3)
    command = [
        *(sys.executable, "-m", names.RAY_START, "ray", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(gcs_port)),
        "--include-dashboard=false",  # ten processes that nobody asks anything
        # The default is a fixed port, which a second head on this machine could not have.
        *("--dashboard-agent-listen-port", str(agent_port)),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--num-cpus", str(logical_cpus(world)), "--temp-dir", str(temp_dir / RAY)),
        *("--object-store-memory", str(object_store_bytes)),
        *("--disable-usage-stats", "--no-monitor", "--log-style", "record", "--log-color", "false"),
    ]
    given = {
        **head_env(env, temp_dir, secrets.token_hex(32)),
        names.ENV_PROGRESS_PORT: str(progress_port),
    }
    child = processes.start(f"c{number}", command, given, log_file)
    return RayHead(number, child, temp_dir, progress_port, given)


def head_env(env: Mapping[str, str], temp_dir: Path, token: str) -> dict[str, str]:
    """Return the environment of the head, of its actors and of drivers.

    The kernel shows it to nobody but the user.
    """
    inherited = {key: value for key, value in env.items() if key not in _FOREIGN}
    return {
        **RAY_VARIABLES,
        "RAY_enable_metrics_collection": "0",
        **inherited,
        **SURVIVES_SETPROCTITLE,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # stay on loopback, the default elsewhere
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo"),
        "VLLM_HOST_IP": "127.0.0.1",
        "TMPDIR": str(temp_dir),  # of engines and drivers too: others could guess names in /tmp
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(GCS_RECONNECT_SECONDS),
        "PYTHONUNBUFFERED": "1",
    }


_FOREIGN = frozenset({"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_NAMESPACE", "RAY_TMPDIR"})
"""Settings for some other cluster of the user's."""


def logical_cpus(world: World) -> int:
    """Return the CPUs to declare to Ray: enough for all ranks and engines."""
    ranks = world.num_ranks * world.cpus_per_rank
    engines = world.num_engines * world.cpus_per_engine
    return int(-(-(ranks + engines) // 1)) + SPARE_CPUS


def make_temp_dir() -> Path:
    """Create the head's private temporary folder, with a path short enough for Ray's sockets."""
    usual = tempfile.gettempdir()
    fits = len(f"{usual}/{PREFIX}12345678/{RAY}") <= MAX_TEMP_DIR_CHARS
    parent = usual if fits else "/tmp"
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))


def remove_temp_dir(temp_dir: Path) -> None:
    """Remove what `make_temp_dir` made, and nothing else."""
    if temp_dir.name.startswith(PREFIX):
        shutil.rmtree(temp_dir, ignore_errors=True)  # leftovers do no harm
