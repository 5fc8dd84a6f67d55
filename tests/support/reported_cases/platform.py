"""Reported cases about the user, the file system and the network of a container."""

import asyncio
import os
import re
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import aiohttp

from raggrpo_api.fields.url_host import url_host
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.kubernetes_runtime.process.probes import Health, serve_probes
from raggrpo_retriever.__main__ import _listen
from raggrpo_trainer import pre_stop
from raggrpo_trainer.progress.progress_actor import listen_host
from raggrpo_trainer.progress.progress_server import ProgressServer
from raggrpo_trainer.ray_start import with_dashboard_host
from support.reported_cases.case import case

REPOSITORY = Path(__file__).parents[3]
DOCKERFILES = ("Dockerfile", "trainer_image/Dockerfile")
UNKNOWN_USER = ("unshare", "--user", "--map-user=1000800000", "--map-group=0")
"""Runs a command as a user without an entry in /etc/passwd."""
CACHES = """
import getpass, pathlib
import raggrpo_trainer.ray_start, vllm.envs
from torch._inductor.runtime.cache_dir_utils import default_cache_dir
from triton import knobs
print(pathlib.Path.home(), getpass.getuser())
print(vllm.envs.VLLM_CACHE_ROOT, vllm.envs.VLLM_CONFIG_ROOT, default_cache_dir(), knobs.cache.dir)
"""
OPERATOR = """
import getpass, pathlib
import raggrpo_operator.kubernetes_runtime.operator_process, raggrpo_cli.main
print(pathlib.Path.home(), getpass.getuser())
"""


def image_env(dockerfile: str) -> dict[str, str]:
    """Return the variables that a Dockerfile sets for the containers of its image."""
    text = (REPOSITORY / dockerfile).read_text().replace("\\\n", " ")
    lines = re.findall(r"^ENV (.*)$", text, re.MULTILINE)
    pairs = (pair.split("=", 1) for line in lines for pair in line.split())
    return {name: value for name, value in pairs if name != "PATH"}


@case("P1", fault="The user of a container has no home folder", inputs=DOCKERFILES)
def caches_of_unknown_user_are_in_a_writable_folder(_folder: Path, dockerfile: str) -> None:
    """All paths that libraries derive from user and home are in /tmp, which pods mount."""
    is_trainer = dockerfile.startswith("trainer")
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.pathsep.join(sys.path),
        **image_env(dockerfile),
    }
    command = [sys.executable, "-c", CACHES if is_trainer else OPERATOR]
    if subprocess.run([*UNKNOWN_USER, "true"], check=False, capture_output=True).returncode == 0:
        command = [*UNKNOWN_USER, *command]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    home, user, *caches = done.stdout.split()
    assert (home, user) == ("/tmp", "raggrpo")
    assert [each for each in caches if not each.startswith("/tmp/")] == []


@case("P2", fault="An IPv6 address is put into a URL without brackets")
def addresses_in_urls_are_url_host(_folder: Path) -> None:
    """The preStop hook calls a head by its IPv6 address; the dashboard listens on its family."""
    with patch.object(pre_stop, "_is_running", return_value=False) as call:
        pre_stop.main(["--head", "fd00::1", "--seconds", "9"], env={})
    assert call.call_args.args[0].startswith("http://[fd00::1]:")
    arguments = ["ray", "start", "--head", "--dashboard-host=0.0.0.0"]
    assert with_dashboard_host(arguments, "fd00::1")[-1] == "--dashboard-host=::"
    assert with_dashboard_host(arguments, "10.0.0.1")[-1] == "--dashboard-host=0.0.0.0"


@case(
    "S7", fault="A server or its caller uses one address family only", inputs=["127.0.0.1", "::1"]
)
def servers_are_reachable_on_both_families(_folder: Path, address: str) -> None:
    """Progress server, operator and retriever answer on this address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((address, 0))
        port = int(probe.getsockname()[1])
    with patch("ray.util.get_node_ip_address", return_value="10.0.0.7"):
        host = listen_host("token")
    server = ProgressServer(port, host=host)
    try:
        server.update(Progress(attempt=1, stage=Stage.TRAINING).model_dump_json().encode(), b"")
        assert asyncio.run(get(f"http://{url_host(address)}:{port}/progress")) == 200
    finally:
        server.close()
    with _listen("::", 0) as listener:
        socket.create_connection((address, listener.getsockname()[1]), timeout=5).close()
    assert asyncio.run(get_operator(address, port)) == 200


async def get(url: str) -> int:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status


async def get_operator(address: str, port: int) -> int:
    """Return the status of the operator's health endpoint."""
    health = Health(lambda: 0.0, lambda: 0.0, lambda: True)
    async with serve_probes(health, lambda: b"", port):
        return await get(f"http://{url_host(address)}:{port}/metrics")
