import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from raggrpo_api.trainer.config import World
from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.processes import Processes
from raggrpo_operator.local_runtime.ray_head import (
    MAX_TEMP_DIR_CHARS,
    RAY,
    head_env,
    logical_cpus,
    make_temp_dir,
)
from support.processes import ray_tree
from support.processes.waiting import wait_for

DEADLINE_SECONDS = 120


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[dict[str, Any]]:
    command = [sys.executable, ray_tree.__file__, str(tmp_path)]
    env = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        announced = json.loads(process.stdout.readline())
        yield {**announced, "run": process.pid}
    finally:
        process.kill()
        process.communicate()
    shutil.rmtree(announced["temp_dir"])
    assert warden.sweep(announced["mark"]) == []


def listening(mark: str) -> set[str]:
    """Return the addresses on which the processes with a mark listen."""
    return {address for address, _ in listening_sockets(mark)}


def listening_ports(mark: str) -> set[int]:
    return {port for _, port in listening_sockets(mark)}


def listening_sockets(mark: str) -> list[tuple[str, int]]:
    pids = warden.marked_processes(mark)
    return [
        (connection.laddr.ip, connection.laddr.port)
        for connection in psutil.net_connections("tcp")
        if connection.pid in pids and connection.status == psutil.CONN_LISTEN
    ]


def test_keeper_stops_ray_when_run_and_warden_are_killed(tree: dict[str, Any]) -> None:
    everything = warden.marked_processes(tree["mark"])
    programs = [" ".join(psutil.Process(pid).cmdline()) for pid in everything]
    addresses = listening(tree["mark"])
    os.kill(tree["warden"], signal.SIGKILL)
    os.kill(tree["run"], signal.SIGKILL)
    wait_for(lambda: not warden.marked_processes(tree["mark"]))

    assert len(everything) > 9  # gcs, raylet, agents, workers, driver, keepers
    # A Ray client server that fails to start in time would end the head.
    assert not any("ray.util.client.server" in program for program in programs)
    assert not any("dashboard.py" in program for program in programs)
    assert addresses <= {"127.0.0.1", "::ffff:127.0.0.1"}


def test_warden_stops_ray_when_run_and_keeper_are_killed(tree: dict[str, Any]) -> None:
    os.kill(tree["keeper"], signal.SIGKILL)
    os.kill(tree["run"], signal.SIGKILL)
    wait_for(lambda: not warden.marked_processes(tree["mark"]))


@pytest.mark.row("D12")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_child_process_of_killed_actor_exits(tree: dict[str, Any], number: int) -> None:
    # vLLM's engine core is such a child; otherwise it would keep the memory of its GPU.
    processes = [psutil.Process(pid) for pid in warden.marked_processes(tree["mark"])]
    children = [process for process in processes if "child-of-part" in process.cmdline()]
    assert len(children) == 2
    for child in children:
        os.kill(child.ppid(), number)
    wait_for(lambda: not any(child.is_running() for child in children))


async def test_ray_process_exit_is_reported_and_stops_head(tmp_path: Path) -> None:
    processes = Processes()
    try:
        head = await ray_tree.start_tree(processes, tmp_path)
        ray_tree.kill_gcs(head.child.mark)
        wait_for(lambda: head.exit_message() != "")
        death, left = head.exit_message(), warden.marked_processes(head.child.mark)
        await head.close(processes)
    finally:
        processes.terminate_all()

    assert death == "the Ray head exited with exit code 1, gcs_server with signal 9 (SIGKILL)"
    assert left == []
    assert not head.temp_dir.exists()
    assert warden.marked_processes(processes.mark) == []


SERVICES = (
    "NodeInfoGcsService/GetAllNodeInfo",
    "InternalKVGcsService/InternalKVPut",
    "NodeManagerService/RequestWorkerLease",
    "ObjectManagerService/Push",
    "CoreWorkerService/PushTask",
    "ReporterService/GetTraceback",
)
"""One call of each kind of gRPC server: GCS, scheduler, object store, workers, agent."""


@pytest.mark.row("E6")
def test_grpc_servers_of_ray_require_token(tree: dict[str, Any]) -> None:
    ports = listening_ports(tree["mark"])
    for service in SERVICES:
        codes = {code_of_call(port, service) for port in ports}
        assert "UNAUTHENTICATED" in codes, service
        assert codes <= {"UNAUTHENTICATED", "UNIMPLEMENTED", "UNAVAILABLE"}, service


def code_of_call(port: int, service: str) -> str:
    """Return the status of a call without token; UNAVAILABLE if the port is not a gRPC server's."""
    grpc: Any = pytest.importorskip("grpc")
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        try:
            channel.unary_unary(f"/ray.rpc.{service}")(b"", timeout=5)
        except grpc.RpcError as error:
            return str(error.code().name)
    return "OK"


@pytest.mark.parametrize(
    ("world", "cpus"),
    [
        (World(num_ranks=1, num_engines=1), 4),
        (World(num_ranks=2, num_engines=1, cpus_per_engine=0.5), 5),
    ],
)
def test_logical_cpus_cover_all_ranks_and_engines(world: World, cpus: int) -> None:
    assert logical_cpus(world) == cpus


def test_head_environment_does_not_inherit_ray_address() -> None:
    other = {"RAY_ADDRESS": "ray://prod", "RAY_AUTH_TOKEN": "theirs", "RAY_AUTH_TOKEN_PATH": "/t"}
    env = head_env({**other, "RAY_AUTH_MODE": "disabled", "HOME": "/root"}, Path("/tmp/r"), "ours")
    assert not {"RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH"} & env.keys()
    assert (env["RAY_AUTH_MODE"], env["RAY_AUTH_TOKEN"]) == ("token", "ours")
    assert env["HOME"] == "/root"


def test_temp_dir_fits_socket_path_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/var/tmp/" + "x" * 60)
    folder = make_temp_dir()
    folder.rmdir()
    assert len(str(folder / RAY)) <= MAX_TEMP_DIR_CHARS
