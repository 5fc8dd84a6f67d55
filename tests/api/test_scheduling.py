"""Kubernetes' scheduler with a failed and another node, both without a kubelet."""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from raggrpo_operator.core.lifecycle.actions import PodPlan
from raggrpo_operator.core.lifecycle.before_attempt.launch import create_cluster
from raggrpo_operator.core.manifests.ray_cluster import render_ray_cluster
from raggrpo_operator.core.manifests.token_secret import TokenRef
from raggrpo_operator.core.sizing.size import size
from support.builders.operator.jobs import make_job
from support.builders.operator.manifests import SETTINGS, make_clustered_job
from support.fakes.fake_kuberay import Api, Manifest, path_of
from tools.kind.api_server import ApiServer
from tools.kind.go_programs import tool_folder
from tools.kind.program import Program

NODES = "/api/v1/nodes"
IMAGE = "trainer:test"
CPUS = 8


@pytest.fixture(scope="module")
def scheduler(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    command = [
        str(tool_folder("kube") / "kube-scheduler"),
        f"--kubeconfig={api_server.kubeconfig}",
        "--leader-elect=false",
        "--secure-port=0",
    ]
    program = Program("scheduler", command, tmp_path_factory.mktemp("s") / "scheduler.log")
    program.start()
    yield program
    program.stop()


@pytest_asyncio.fixture
async def api(api_server: ApiServer) -> AsyncIterator[Api]:
    """A client of the API server with two nodes; the image exists only on the failed node."""
    api = Api(api_server.kubeconfig)
    for name in ("failed", "other"):
        await api.create(NODES, {"metadata": {"name": name}})
        # No node controller runs here that would remove this taint.
        await api.patch(f"{NODES}/{name}", {"spec": {"taints": []}})
        images = [{"names": [IMAGE], "sizeBytes": 10 * 1024**3}] if name == "failed" else []
        room = {"cpu": str(CPUS), "memory": "64Gi", "pods": "10"}
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        status = {"capacity": room, "allocatable": room, "conditions": [ready], "images": images}
        await api.patch(f"{NODES}/{name}/status", {"status": status})
    yield api
    for name in ("failed", "other"):
        await api.delete(f"{NODES}/{name}")
    await api.close()


def make_ray_pod(name: str, cpus: int, *avoided: str) -> Manifest:
    """Return a pod with the affinity of a job that avoids these nodes."""
    job = make_clustered_job(make_job())
    plan = PodPlan(job.spec, IMAGE, size(job.spec))
    action = create_cluster(plan, job.status, avoided_nodes=avoided)
    cluster = render_ray_cluster(job.metadata, SETTINGS, action, TokenRef("token", "k1"))
    template = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    resources = {"requests": {"cpu": str(cpus), "memory": "1Gi"}}
    container = {"name": "ray", "image": IMAGE, "resources": resources}
    spec = {"containers": [container], "affinity": template.get("affinity", {})}
    spec["terminationGracePeriodSeconds"] = 0  # no kubelet would terminate it
    return {"metadata": {"name": name}, "spec": spec}


async def placed(api: Api, namespace: str, pod: Manifest) -> str:
    path = path_of("v1", "pods", namespace)
    await api.create(path, pod)
    async with asyncio.timeout(30):
        while True:
            stored = await api.get(f"{path}/{pod['metadata']['name']}")
            if stored is not None and (node := stored["spec"].get("nodeName")):
                return str(node)
            await asyncio.sleep(0.1)


@pytest.mark.row("B24")
@pytest.mark.usefixtures("scheduler")
async def test_failed_node_is_used_only_if_no_other_node_fits(api: Api, namespace: str) -> None:
    assert await placed(api, namespace, make_ray_pod("anywhere", 1)) == "failed", "it has the image"

    first = await placed(api, namespace, make_ray_pod("first", CPUS - 1, "failed"))
    second = await placed(api, namespace, make_ray_pod("second", CPUS - 1, "failed"))

    assert (first, second) == ("other", "failed")
