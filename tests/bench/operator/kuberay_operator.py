"""KubeRay's own operator against an API server without nodes, for jobs of ours and for RayJobs."""

import asyncio
import copy
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psutil

from support.fakes.fake_kuberay import Api, Manifest, path_of
from support.fakes.fake_kuberay_watch import FakeKubeRayWatch
from support.fakes.fake_ray import FakeRay
from support.processes.ports import free_port
from tools.kind.api_server import ApiServer
from tools.kind.go_programs import tool_folder
from tools.kind.program import Program

NAMESPACE = "rayjobs"
USER_AGENT = "manager/"
AT_ONCE = 10
"""Rounds under way for each kind; KubeRay's default is one."""
LIMIT_SECONDS = 1800.0


class PlayedKubelet(FakeKubeRayWatch):
    """Lets every pod get ready once; KubeRay itself makes the pods."""

    async def _begin(self, cluster: Manifest) -> None:
        await self._expect_token(cluster)


@asynccontextmanager
async def running_kuberay(server: ApiServer, namespace: str) -> AsyncIterator[psutil.Process]:
    """Run KubeRay's operator for one namespace."""
    crds = tool_folder("kuberay-config") / "crd" / "bases"
    server.kubectl("apply", "--server-side", "-f", str(crds))
    command = [
        str(tool_folder("kuberay") / "manager"),
        f"--kubeconfig={server.kubeconfig}",
        "--metrics-addr=0",
        f"--health-probe-bind-address=127.0.0.1:{free_port()}",
        "--enable-leader-election=false",
        f"--reconcile-concurrency={AT_ONCE}",
        f"--watch-namespace={namespace}",
    ]
    program = Program("kuberay", command, server.folder / "kuberay.log")
    program.start()
    try:
        assert program.process is not None
        yield psutil.Process(program.process.pid)
        if program.process.poll() is not None:
            raise RuntimeError(program.log_file.read_text()[-3000:])
    finally:
        await asyncio.to_thread(program.stop)


async def rayjobs_begin(
    server: ApiServer, api: Api, cluster_spec: Manifest, num_jobs: int
) -> dict[str, Any]:
    """Return what it takes until so many RayJobs run whose pods are those of one of our jobs.

    A RayJob runs, as KubeRay has it, once its cluster is ready and its submitter Job is made; the
    submission itself would be that Job's work.
    """
    spec = copy.deepcopy(cluster_spec)
    del spec["authOptions"]
    server.kubectl("create", "namespace", NAMESPACE)
    states: dict[str, str] = {}
    path = path_of("ray.io/v1", "rayjobs", NAMESPACE)

    async def follow() -> None:
        async for _, job in api.watch(path):
            found = job.get("status", {}).get("jobDeploymentStatus", "")
            states[job["metadata"]["name"]] = found

    async with asyncio.TaskGroup() as group, running_kuberay(server, NAMESPACE) as kuberay:
        players = [
            group.create_task(PlayedKubelet(api, NAMESPACE, FakeRay()).run()),
            group.create_task(follow()),
        ]
        free = asyncio.Semaphore(16)

        async def one(name: str) -> None:
            async with free:
                await api.create(path, _rayjob(name, spec))

        began, cpu = time.monotonic(), cpu_seconds(kuberay)
        await asyncio.gather(*(one(f"job-{number:04}") for number in range(num_jobs)))
        async with asyncio.timeout(LIMIT_SECONDS):
            while list(states.values()).count("Running") < num_jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        result = {
            "seconds": round(time.monotonic() - began, 1),
            "kuberay_cpu_seconds": round(cpu_seconds(kuberay) - cpu, 1),
            "kuberay_mib": round(kuberay.memory_info().rss / 2**20),
        }
        for player in players:
            player.cancel()
    return result


def cpu_seconds(process: psutil.Process) -> float:
    """Return what a process has used, its children left out."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _rayjob(name: str, cluster_spec: Manifest) -> Manifest:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {"entrypoint": "true", "rayClusterSpec": cluster_spec},
    }
