"""A Ray head on this machine as a child process: its command line, ports and files.

Everything listens on the loopback interface, and every call needs the run's token, since other
users of the machine reach that interface too. Knows nothing of what runs on the head.
"""

import re
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from raggrpo_api import names
from raggrpo_api.trainer_config import World
from raggrpo_operator.core.spec.world import SPARE_CPUS
from raggrpo_operator.http_api import HttpApi, open_session
from raggrpo_operator.progress_client import ProgressClient
from raggrpo_operator.ray_jobs import RayJobs

from .processes import Child, Processes, free_ports, signal_name

PREFIX = "raggrpo-"
STOP_SECONDS = 30
"""From a driver's SIGTERM to its SIGKILL: it saves the last finished step in between."""
RAY = "ray"
"""Ray's own part of the temporary folder; Ray opens it to everybody."""
LONGEST_TEMP_DIR = 40
"""Ray appends about 60 characters for its Unix sockets; the kernel allows 107 in all."""
GCS_RECONNECT_SECONDS = 5
"""A local head never comes back at the same address, so its agents needn't wait for it."""
SURVIVES_SETPROCTITLE = {"SPT_NOENV": "1"}
"""Without it, Ray's workers overwrite their environment in /proc, including the run's mark."""


@dataclass(slots=True)
class RayHead:
    """A started head and the clients that talk to it."""

    number: int
    child: Child
    temp_dir: Path
    dashboard_port: int
    progress_port: int
    token: str
    session: aiohttp.ClientSession = field(default_factory=open_session)
    jobs: RayJobs = field(init=False)
    progress: ProgressClient = field(init=False)

    def __post_init__(self) -> None:
        head = "http://127.0.0.1"
        dashboard = HttpApi(self.session, f"{head}:{self.dashboard_port}", self.token)
        progress = HttpApi(self.session, f"{head}:{self.progress_port}", self.token)
        self.jobs, self.progress = RayJobs(dashboard), ProgressClient(progress)

    def death(self) -> str:
        """Return how the head ended, or empty while it is running."""
        code = self.child.exit_code()
        if code is None:
            return ""
        record = self.temp_dir / RAY / "session_latest" / "logs" / "ray_process_exit.log"
        text = record.read_text(errors="replace") if record.exists() else ""
        dead = re.findall(r"^ *(\w+) \[exit code=(-?\d+)", text, re.MULTILINE)
        reasons = "".join(f", {name} with {signal_name(int(of_it))}" for name, of_it in dead)
        return f"the Ray head ended with {signal_name(code)}{reasons}"

    async def close(self, processes: Processes) -> None:
        """End the head and everything on it, and remove its files."""
        processes.end(self.child)
        await self.session.close()
        remove_temp_dir(self.temp_dir)


def start_ray_head(
    number: int,
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
    dashboard_port, progress_port, gcs_port, agent_port = free_ports(4)
    command = [
        *(sys.executable, "-m", names.RAY_START, "ray", "start", "--head", "--block"),
        *("--node-ip-address", "127.0.0.1", "--port", str(gcs_port)),
        *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard_port)),
        "--include-dashboard=true",
        # The default is a fixed port: a second head on this machine would accept no jobs.
        *("--dashboard-agent-listen-port", str(agent_port)),
        *("--min-worker-port", "0", "--max-worker-port", "0"),
        *("--num-cpus", str(logical_cpus(world)), "--temp-dir", str(temp_dir / RAY)),
        *("--object-store-memory", str(object_store_bytes)),
        *("--disable-usage-stats", "--no-monitor", "--log-style", "record", "--log-color", "false"),
    ]
    token = secrets.token_hex(32)
    child = processes.start(f"c{number}", command, head_env(env, temp_dir, token), log_file)
    return RayHead(number, child, temp_dir, dashboard_port, progress_port, token)


def driver_log(temp_dir: Path, submission_id: str) -> Path:
    """Return the file with a driver's output, which can be read without the head."""
    return temp_dir / RAY / names.ray_driver_log(submission_id)


def head_env(env: Mapping[str, str], temp_dir: Path, token: str) -> dict[str, str]:
    """Return the environment of the head, which all actors and drivers inherit.

    The kernel shows it to nobody but the user.
    """
    inherited = {key: value for key, value in env.items() if key not in _FOREIGN}
    return {
        "RAY_DEDUP_LOGS": "0",
        "RAY_enable_metrics_collection": "0",
        # Read by the process that stops a driver. Set in the submission it would have no effect,
        # and the driver would be killed after 3 s, in the middle of its last save.
        "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_SECONDS),
        # Ranks and engines have their own environments and could not use prestarted workers.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_worker_niceness": "0",  # at the default of 15, any other process starves the ranks
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
    fits = len(f"{usual}/{PREFIX}12345678/{RAY}") <= LONGEST_TEMP_DIR
    parent = usual if fits else "/tmp"
    return Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))


def remove_temp_dir(temp_dir: Path) -> None:
    """Remove what `make_temp_dir` made, and nothing else."""
    if temp_dir.name.startswith(PREFIX):
        shutil.rmtree(temp_dir, ignore_errors=True)  # leftovers do no harm
