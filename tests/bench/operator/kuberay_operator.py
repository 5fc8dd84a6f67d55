"""KubeRay's operator on an API server without nodes, for RagGrpoJobs and RayJobs."""

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
"""Concurrent reconciles per kind; KubeRay's default is 1."""
LIMIT_SECONDS = 1800.0


class FakeKubelet(FakeKubeRayWatch):
    """Makes every pod ready once; KubeRay creates the pods."""

    async def _start_pods(self, cluster: Manifest) -> None:
        await self._expect_token(cluster)


@asynccontextmanager
async def running_kuberay(server: ApiServer, namespace: str) -> AsyncIterator[psutil.Process]:
    """Yield the process of KubeRay's operator for one namespace."""
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


async def start_rayjobs(
    server: ApiServer, api: Api, cluster_spec: Manifest, num_jobs: int
) -> dict[str, Any]:
    """Return the cost of starting `num_jobs` RayJobs with the pods of a RagGrpoJob.

    KubeRay reports a RayJob as running once its cluster is ready and its submitter Job exists; the
    submission itself is the work of that Job.
    """
    spec = copy.deepcopy(cluster_spec)
    del spec["authOptions"]
    server.kubectl("create", "namespace", NAMESPACE)
    states: dict[str, str] = {}
    path = path_of("ray.io/v1", "rayjobs", NAMESPACE)

    async def follow() -> None:
        async for _, job in api.watch(path):
            state = job.get("status", {}).get("jobDeploymentStatus", "")
            states[job["metadata"]["name"]] = state

    async with asyncio.TaskGroup() as group, running_kuberay(server, NAMESPACE) as kuberay:
        tasks = [
            group.create_task(FakeKubelet(api, NAMESPACE, FakeRay()).run()),
            group.create_task(follow()),
        ]
        free = asyncio.Semaphore(16)

        async def one(name: str) -> None:
            async with free:
                await api.create(path, _rayjob(name, spec))

        start, cpu = time.monotonic(), cpu_seconds(kuberay)
        await asyncio.gather(*(one(f"job-{number:04}") for number in range(num_jobs)))
        async with asyncio.timeout(LIMIT_SECONDS):
            while list(states.values()).count("Running") < num_jobs:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        result = {
            "seconds": round(time.monotonic() - start, 1),
            "kuberay_cpu_seconds": round(cpu_seconds(kuberay) - cpu, 1),
            "kuberay_mib": round(kuberay.memory_info().rss / 2**20),
        }
        for task in tasks:
            task.cancel()
    return result


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU seconds of a process, without its children."""
    times = process.cpu_times()
    return float(times.user + times.system)


def _rayjob(name: str, cluster_spec: Manifest) -> Manifest:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": name},
        "spec": {"entrypoint": "true", "rayClusterSpec": cluster_spec},
    }
