"""A head restarted on the same address: actors on other nodes survive."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from raggrpo_api import names
from raggrpo_operator.local_runtime.processes import Child, Processes, free_ports
from raggrpo_operator.local_runtime.ray_head import (
    RAY,
    head_env,
    make_temp_dir,
    remove_temp_dir,
)
from support.processes.ray_tree import kill_gcs
from support.processes.waiting import wait_for

RAY_START = (sys.executable, "-m", names.RAY_START, "ray", "start", "--block")
COMMON = ("--node-ip-address", "127.0.0.1", "--min-worker-port", "0", "--max-worker-port", "0")
COUNT = """
import json, os, ray
ray.init(address="auto", namespace="probe", log_to_driver=False)

@ray.remote(num_cpus=1)
class Counter:
    count = 0

    def next(self):
        self.count += 1
        return self.count, os.getpid()

counter = Counter.options(name="it", get_if_exists=True, lifetime="detached").remote()
print("count", json.dumps(ray.get(counter.next.remote(), timeout=60)))
"""


class TwoNodes:
    """A head without CPUs and a node with some, both on this machine."""

    def __init__(self, folder: Path, temp_dir: Path) -> None:
        self.processes, self.folder, self._temp_dir = Processes(), folder, temp_dir
        self._gcs, self._dashboard, *self._agents = free_ports(4)
        self.env = head_env(os.environ, temp_dir, "a token for tests only" * 2)
        self.env["RAY_gcs_rpc_server_reconnect_timeout_s"] = "60"
        self.env["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "1"  # several nodes, though on loopback
        self.env["RAY_ADDRESS"] = f"127.0.0.1:{self._gcs}"

    def start_head(self) -> Child:
        agent, store = str(self._agents[0]), {names.ENV_HEAD_STORE: str(self.folder / "heads/c1")}
        ports = ("--port", str(self._gcs), "--dashboard-port", str(self._dashboard))
        # File of the previous head, which Ray would take for running because of the live node.
        (self._temp_dir / RAY / "ray_current_cluster").unlink(missing_ok=True)
        more = ("--head", *ports, "--num-cpus", "0", "--temp-dir", str(self._temp_dir / RAY))
        return self._start("head", agent, more, {**self.env, **store})

    def start_node(self) -> Child:
        more = ("--address", self.env["RAY_ADDRESS"], "--num-cpus", "2")
        return self._start("node", str(self._agents[1]), more, self.env)

    def _start(self, name: str, agent: str, more: tuple[str, ...], env: Mapping[str, str]) -> Child:
        command = [*RAY_START, *COMMON, "--dashboard-agent-listen-port", agent, *more]
        return self.processes.start(name, command, env, self.folder / f"{name}.log")

    def answers(self) -> bool:
        """Return whether a process listens on the address of the head."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self._gcs)) == 0

    def count(self) -> list[int]:
        """Return the counter of an actor on the node, and its process id."""
        command = [sys.executable, "-c", COUNT]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        count: list[int] = json.loads(done.stdout.rpartition("count ")[2])
        return count


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[TwoNodes]:
    temp_dir = make_temp_dir()
    nodes = TwoNodes(tmp_path, temp_dir)
    try:
        yield nodes
    finally:
        nodes.processes.terminate_all()
        remove_temp_dir(temp_dir)


@pytest.mark.row("B17", "G7")
def test_actors_on_other_nodes_survive_head_restart(nodes: TwoNodes) -> None:
    first = nodes.start_head()
    wait_for(nodes.answers)
    nodes.start_node()
    before = nodes.count()

    kill_gcs(nodes.processes.mark)
    wait_for(lambda: first.exit_code() is not None)
    nodes.start_head()
    after = nodes.count()

    assert before[0] == 1
    assert after == [2, before[1]]
