"""Edits of the container of an agent: the API server stores what a new container would have."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_operator.core.lifecycle.actions import PodPlan, StartAgent
from raggrpo_operator.core.lifecycle.before_attempt.services import agent_hash
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.errors import NotFound, TransientError
from raggrpo_operator.kube.client import DEPLOYMENTS, SERVICES, ApiServer
from raggrpo_operator.kube.user_client import connect_as_user
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    MountedKeys,
)
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.fakes.fake_kuberay import Manifest, path_of
from support.kubernetes.chart_release import Account
from support.operator.operator_environment import OperatorEnvironment, make_environment
from tools.kind.api_server import ApiServer as Server

MOUNTED = MountedKeys("now", {"now": b"an installation key for tests only"})
VALUE = {"name": "A", "value": "1"}
SECRET = {"name": "A", "secretKeyRef": {"name": "search", "key": "password"}}
EDITS: dict[str, tuple[Manifest, Manifest]] = {
    "image": ({}, {"image": "app:2"}),
    "command removed": ({"command": ["a"], "args": ["b"]}, {}),
    "health path removed": ({"healthPath": "/healthz"}, {}),
    "health path added": ({}, {"healthPath": "/healthz"}),
    "fewer replicas": ({"replicas": 2}, {"replicas": 1}),
    "more replicas": ({"replicas": 1}, {"replicas": 3}),
    "port": ({"port": 8000}, {"port": 9000}),
    "resources removed": ({"cpu": "2", "memory": "2Gi"}, {}),
    "variable removed": ({"env": [VALUE]}, {}),
    "value to Secret": ({"env": [VALUE]}, {"env": [SECRET]}),
    "Secret to value": ({"env": [SECRET]}, {"env": [VALUE]}),
}


@dataclass(frozen=True)
class Cluster:
    """The API server as the operator uses it; the operator itself does not run."""

    environment: OperatorEnvironment
    client: ApiServer
    children: Children

    async def deployment(self, job: Metadata) -> Manifest:
        name = names.agent_name(job.name, job.uid)
        return await self.client.get(DEPLOYMENTS, job.namespace, name)

    async def service(self, job: Metadata) -> Manifest:
        name = names.agent_name(job.name, job.uid)
        return await self.client.get(SERVICES, job.namespace, name)


@pytest_asyncio.fixture
async def cluster(
    api_server: Server, operator_account: Account, namespace: str, tmp_path: Path
) -> AsyncIterator[Cluster]:
    async with make_environment(api_server, operator_account, namespace, tmp_path) as environment:
        client = await connect_as_user(str(operator_account.kubeconfig))
        settings = ClusterSettings(
            trainer_image="trainer:test", operator_namespace=operator_account.namespace
        )
        keys = InstallationKeys(lambda: MOUNTED, "ops/key")
        yield Cluster(environment, client, Children(client, settings, keys))
        await client.close()


def make_start(changes: Manifest) -> StartAgent:
    container = {"image": "app:1", **changes}
    agent = {"type": "Container", "identify": "Trace", "container": container}
    spec = resolve(make_job({"rollout.agent": agent})).spec
    assert spec.rollout.agent is not None
    assert spec.rollout.agent.container is not None
    plan = PodPlan(spec, "trainer:test", size(spec, KNOWN_TINY))
    return StartAgent(plan, spec.rollout.agent.container, agent_hash(spec))


def without_names(value: Any, job: Metadata) -> Any:
    """Return the value without the name of the job, for comparison with another job's."""
    if isinstance(value, dict):
        return {key: without_names(each, job) for key, each in value.items()}
    if isinstance(value, list):
        return [without_names(each, job) for each in value]
    return value.replace(job.name, "JOB") if isinstance(value, str) else value


@pytest.mark.row("F2")
@pytest.mark.parametrize("case", EDITS)
async def test_edited_container_has_the_spec_of_a_new_one(cluster: Cluster, case: str) -> None:
    before, after = EDITS[case]
    edited = await cluster.environment.apply(name="edited")
    await cluster.children.start_agent(edited, make_start(before))
    old = await cluster.deployment(edited)

    await cluster.children.start_agent(edited, make_start(after))

    new = await cluster.deployment(edited)
    other = await cluster.environment.apply(name="other")
    await cluster.children.start_agent(other, make_start(after))
    expected = await cluster.deployment(other)
    assert without_names(new["spec"], edited) == without_names(expected["spec"], other)
    assert new["metadata"]["uid"] == old["metadata"]["uid"]
    assert new["metadata"]["generation"] == 2
    ports = (await cluster.service(edited))["spec"]["ports"]
    assert ports == (await cluster.service(other))["spec"]["ports"]


async def test_unchanged_container_is_not_rewritten(cluster: Cluster) -> None:
    job = await cluster.environment.apply()
    for _ in range(2):
        await cluster.children.start_agent(job, make_start({"replicas": 2, "healthPath": "/ok"}))

    assert (await cluster.deployment(job))["metadata"]["generation"] == 1


async def test_deployment_with_other_selector_is_created_again(cluster: Cluster) -> None:
    job = await cluster.environment.apply()
    await cluster.children.start_agent(job, make_start({}))
    ours = await cluster.deployment(job)
    labels = ours["spec"]["selector"]["matchLabels"] | {"app.kubernetes.io/part-of": "raggrpo"}
    path = path_of("apps/v1", "deployments", job.namespace)
    await cluster.environment.api.delete(f"{path}/{ours['metadata']['name']}")
    metadata = {key: ours["metadata"][key] for key in ("name", "labels", "ownerReferences")}
    spec = ours["spec"] | {"selector": {"matchLabels": labels}}
    older = await cluster.environment.api.create(
        path, {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}
    )

    with pytest.raises(TransientError, match="selector"):
        await cluster.children.start_agent(job, make_start({"image": "app:2"}))
    with pytest.raises(NotFound):
        await cluster.deployment(job)
    await cluster.children.start_agent(job, make_start({"image": "app:2"}))

    new = await cluster.deployment(job)
    assert new["metadata"]["uid"] != older["metadata"]["uid"]
    assert new["spec"]["template"]["spec"]["containers"][0]["image"] == "app:2"
