"""Objects that a job does not own are left unchanged, of any kind and at any time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    PodPlan,
    StartPreflight,
    StartRetriever,
)
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.config_map import render_config_map
from raggrpo_operator.core.manifests.metadata import owner_reference
from raggrpo_operator.core.manifests.network_policy import render_network_policies
from raggrpo_operator.core.manifests.preflight_pod import render_preflight_pod
from raggrpo_operator.core.manifests.ray_cluster import render_ray_cluster
from raggrpo_operator.core.manifests.retriever import render_deployment, render_service
from raggrpo_operator.core.manifests.token_secret import TokenRef, render_token_secret, secret_name
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.errors import AlreadyExists, Conflict, NameTaken, NotFound
from raggrpo_operator.kube.client import ApiServer, KubeClient, resource_of
from raggrpo_operator.kube.user_client import connect_as_user
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    MountedKeys,
)
from raggrpo_operator.kubernetes_runtime.rounds.children import Children
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.fakes.fake_kuberay import FOREIGN, Manifest, path_of
from support.fakes.fake_ray import Script
from support.kubernetes.chart_release import Account
from support.operator.operator_environment import OperatorEnvironment, is_phase, make_environment
from tools.kind.api_server import ApiServer as Server
from tools.kind.jobs import condition

CORPUS = {"corpus": "/mnt/runs/corpus.jsonl"}
RETRIEVER = {"mode": "Prompt", "endpoints": [{"name": "kb", "managed": CORPUS}]}
MANAGED = ManagedRetriever.model_validate(CORPUS)
JOB = make_job({"retrieval": RETRIEVER})
PLAN = PodPlan(resolve(JOB).spec, "trainer:test", size(resolve(JOB).spec, KNOWN_TINY))
CONFIG = trainer_config(JOB, resolve(JOB), number=1)
SETTINGS = ClusterSettings(trainer_image="trainer:test", operator_namespace="ops")
MOUNTED = MountedKeys("now", {"now": b"an installation key for tests only"})
KEYS = InstallationKeys(lambda: MOUNTED, "ops/key")
PREFLIGHT = StartPreflight(PLAN, CONFIG, "hash")
START = StartRetriever(PLAN, "kb", MANAGED)


def make_cluster(job: Metadata) -> CreateCluster:
    return CreateCluster(PLAN, 1, names.cluster_name(job.name, job.uid, 1), "2.60.0", 30)


def config_of(job: Metadata) -> Any:
    update = {"job_name": job.name, "namespace": job.namespace, "job_uid": job.uid}
    return CONFIG.model_copy(update={"attempt": CONFIG.attempt.model_copy(update=update)})


@dataclass(frozen=True)
class Kind:
    """A kind that the operator writes, with the functions that render and write it."""

    render: Callable[[Metadata], Manifest]
    write: Callable[[Children, Metadata], Awaitable[None]]
    changes: dict[str, Any]
    """Changes of a job that make the operator write this kind."""


KINDS = {
    "NetworkPolicy": Kind(
        lambda job: render_network_policies(job, SETTINGS, PLAN.spec)[0],
        lambda children, job: children.start_preflight(job, PREFLIGHT),
        {},
    ),
    "Pod": Kind(
        lambda job: render_preflight_pod(job, SETTINGS, PREFLIGHT),
        lambda children, job: children.start_preflight(job, PREFLIGHT),
        {},
    ),
    "Service": Kind(
        lambda job: render_service(job, "kb"),
        lambda children, job: children.start_retriever(job, START),
        {"spec.retrieval": RETRIEVER},
    ),
    "Deployment": Kind(
        lambda job: render_deployment(job, SETTINGS, START),
        lambda children, job: children.start_retriever(job, START),
        {"spec.retrieval": RETRIEVER},
    ),
    "RayCluster": Kind(
        lambda job: render_ray_cluster(job, SETTINGS, make_cluster(job), TokenRef("token", "k1")),
        lambda children, job: children.create_cluster(job, make_cluster(job)),
        {},
    ),
    "ConfigMap": Kind(
        lambda job: render_config_map(job, config=config_of(job)),
        lambda children, job: children.record_config(job, config_of(job), []),
        {},
    ),
}
EACH_KIND = pytest.mark.parametrize("kind", KINDS)
APPLIED = ("NetworkPolicy", "Service", "Deployment")


def owners_of(job: Metadata, other: Metadata) -> dict[str, list[Manifest]]:
    """Return existing owners: objects with missing owners would be garbage collected."""
    return {
        "unowned": [],
        "another job": [owner_reference(other)],
        "not the controller": [owner_reference(job) | {"controller": False}],
        "with another controller": [
            owner_reference(job) | {"controller": False},
            owner_reference(other),
        ],
    }


def make_foreign(manifest: Manifest, owners: list[Manifest]) -> Manifest:
    """Return an object that differs from the job's own only in its owner."""
    metadata = manifest["metadata"] | {"ownerReferences": owners, "annotations": {FOREIGN: "yes"}}
    return manifest | {"metadata": metadata}


class Cluster:
    """The API server through the operator's client, and a job."""

    def __init__(self, environment: OperatorEnvironment, client: ApiServer) -> None:
        self.environment, self.client = environment, client
        environment.kuberay.is_active = False

    def start_operator(self) -> None:
        self.environment.kuberay.is_active = True
        self.environment.operator.start()

    async def read(self, manifest: Manifest) -> Manifest | None:
        metadata = manifest["metadata"]
        try:
            return await self.client.get(
                resource_of(manifest), metadata["namespace"], metadata["name"]
            )
        except NotFound:
            return None

    async def replace(self, manifest: Manifest) -> Manifest:
        """Replace an object of the same name; return the stored object."""
        while True:
            if (old := await self.read(manifest)) is not None:
                await self.delete(old)
            with suppress(AlreadyExists):  # the operator recreated it
                return await self.client.create(manifest)

    async def delete(self, thing: Manifest) -> None:
        metadata = thing["metadata"]
        place = (metadata["namespace"], metadata["name"], metadata["uid"])
        with suppress(NotFound):
            await self.client.delete(resource_of(thing), *place)


@pytest_asyncio.fixture
async def cluster(
    api_server: Server, operator_account: Account, namespace: str, tmp_path: Path
) -> AsyncIterator[Cluster]:
    """A simulated cluster whose operator is not running yet."""
    async with make_environment(api_server, operator_account, namespace, tmp_path) as environment:
        client = await connect_as_user(str(api_server.kubeconfig))
        yield Cluster(environment, client)
        await client.close()


class RacingClient:
    """A client with a concurrent change right before a call."""

    def __init__(self, client: KubeClient, verb: str, act: Callable[[Manifest], Awaitable[Any]]):
        self._client, self._verb, self._act = client, verb, act

    def __getattr__(self, verb: str) -> Any:
        call = getattr(self._client, verb)
        if verb != self._verb:
            return call

        async def call_after_change(*arguments: Any) -> Any:
            await self._act(arguments[0])
            return await call(*arguments)

        return call_after_change


def children(client: Any) -> Children:
    return Children(client, SETTINGS, KEYS)


async def apply_two_jobs(cluster: Cluster) -> tuple[Metadata, Metadata]:
    one = await cluster.environment.apply({"spec.retrieval": RETRIEVER})
    return one, await cluster.environment.apply(name="other")


@pytest.mark.row("E1")
@EACH_KIND
async def test_existing_foreign_object_is_left_unchanged(cluster: Cluster, kind: str) -> None:
    _, other = await apply_two_jobs(cluster)
    for number, whose in enumerate(owners_of(other, other)):
        job = await cluster.environment.apply(name=f"job-{number}")
        theirs = make_foreign(KINDS[kind].render(job), owners_of(job, other)[whose])
        kept = await cluster.replace(theirs)

        for _ in range(2):
            with pytest.raises(NameTaken) as caught:
                await KINDS[kind].write(children(cluster.client), job)
        await children(cluster.client).owned.delete(job, resource_of(theirs), kept)

        place = f"{kind} {job.namespace}/{theirs['metadata']['name']} exists"
        assert str(caught.value).startswith(place), whose
        assert await cluster.read(theirs) == kept, whose


@pytest.mark.row("E1")
@EACH_KIND
async def test_foreign_object_created_before_write_is_left_unchanged(
    cluster: Cluster, kind: str
) -> None:
    job, other = await apply_two_jobs(cluster)
    theirs = make_foreign(KINDS[kind].render(job), [owner_reference(other)])
    stored = []

    async def replace_first(written: Manifest) -> None:
        if written["kind"] == kind:
            stored.append(await cluster.replace(theirs))

    client = RacingClient(cluster.client, "create", replace_first)
    with pytest.raises(NameTaken):
        await KINDS[kind].write(children(client), job)

    assert await cluster.read(theirs) == stored[-1]


async def write_without_labels(cluster: Cluster, kind: str, job: Metadata) -> None:
    """Write the job's object, then remove the labels that the next apply would restore."""
    await KINDS[kind].write(children(cluster.client), job)
    ours = KINDS[kind].render(job)
    await cluster.replace(ours | {"metadata": ours["metadata"] | {"labels": {}}})


@pytest.mark.parametrize("kind", APPLIED)
async def test_foreign_object_created_before_apply_is_left_unchanged(
    cluster: Cluster, kind: str
) -> None:
    job, other = await apply_two_jobs(cluster)
    theirs = make_foreign(KINDS[kind].render(job), [owner_reference(other)])
    stored = []
    await write_without_labels(cluster, kind, job)

    async def replace_first(written: Manifest) -> None:
        if written["kind"] == kind:
            stored.append(await cluster.replace(theirs))

    client = RacingClient(cluster.client, "replace", replace_first)
    with pytest.raises(Conflict):
        await KINDS[kind].write(children(client), job)

    assert await cluster.read(theirs) == stored[-1]


@pytest.mark.parametrize("kind", APPLIED)
async def test_object_deleted_before_apply_is_not_recreated(cluster: Cluster, kind: str) -> None:
    job, _ = await apply_two_jobs(cluster)
    await write_without_labels(cluster, kind, job)

    async def remove(written: Manifest) -> None:
        if written["kind"] == kind:
            existing = await cluster.read(written)
            assert existing is not None
            await cluster.delete(existing)

    with pytest.raises(NotFound):
        await KINDS[kind].write(children(RacingClient(cluster.client, "replace", remove)), job)
    assert await cluster.read(KINDS[kind].render(job)) is None


@pytest.mark.row("E1")
@EACH_KIND
async def test_foreign_replacement_of_owned_object_is_left_unchanged(
    cluster: Cluster, kind: str
) -> None:
    job, other = await apply_two_jobs(cluster)
    await KINDS[kind].write(children(cluster.client), job)
    ours = await cluster.read(KINDS[kind].render(job))
    assert ours is not None
    kept = await cluster.replace(make_foreign(KINDS[kind].render(job), [owner_reference(other)]))

    await children(cluster.client).owned.delete(job, resource_of(ours), ours)
    with pytest.raises(NameTaken):
        await KINDS[kind].write(children(cluster.client), job)

    assert await cluster.read(ours) == kept


async def test_drifted_owned_object_is_repaired(cluster: Cluster) -> None:
    job, _ = await apply_two_jobs(cluster)
    job_children = children(cluster.client)
    for _ in range(2):
        await job_children.start_retriever(job, START)
    before = {kind: await cluster.read(KINDS[kind].render(job)) for kind in APPLIED}
    await job_children.start_retriever(job, START)
    assert {kind: await cluster.read(KINDS[kind].render(job)) for kind in APPLIED} == before

    policy, service = KINDS["NetworkPolicy"].render(job), KINDS["Service"].render(job)
    for drifted, spec in ((policy, {"ingress": [{}]}), (service, {"selector": {"app": "theirs"}})):
        where = path_of(
            drifted["apiVersion"],
            resource_of(drifted).plural,
            job.namespace,
            drifted["metadata"]["name"],
        )
        await cluster.environment.api.patch(where, {"spec": spec})
    await job_children.start_retriever(job, START)

    for expected, field in ((policy, "ingress"), (service, "selector")):
        repaired = await cluster.read(expected)
        assert repaired is not None
        assert repaired["spec"][field] == expected["spec"][field]


@pytest.mark.row("E1")
async def test_existing_secret_is_not_read_or_changed(cluster: Cluster) -> None:
    job, other = await apply_two_jobs(cluster)
    name = secret_name(MOUNTED.by_id["now"], job)
    guessed = render_token_secret(job, name=f"small-token-now-{job.uid[:8]}", token="guessed")
    theirs = make_foreign(guessed, [owner_reference(other)])
    kept = [await cluster.client.create(theirs)]
    await children(cluster.client).create_cluster(job, make_cluster(job))
    # The name can be read only from the RayCluster, which is created after the Secret.
    replaced = make_foreign(render_token_secret(job, name=name, token="theirs"), [])
    kept.append(await cluster.replace(replaced))

    await children(cluster.client).create_cluster(job, make_cluster(job))

    assert [await cluster.read(each) for each in (theirs, replaced)] == kept


def reports_conflict(name: str) -> Callable[[Manifest], bool]:
    """Return a predicate: whether a status reports a conflict for `name`."""

    def is_reported(status: Mapping[str, Any]) -> bool:
        reconciling = condition(status, "Reconciling")
        has_conflict = (reconciling["status"], reconciling["reason"]) == ("True", "NameConflict")
        return has_conflict and name in reconciling["message"]

    return is_reported


@pytest.mark.row("E1")
async def test_name_conflict_is_reported_until_name_is_free(
    cluster: Cluster,
) -> None:
    environment, theirs, kept = cluster.environment, {}, {}
    other = await environment.apply({"spec.suspend": True}, "other")
    for kind, about in KINDS.items():
        job = await environment.apply({"spec.suspend": True, **about.changes}, f"t-{kind.lower()}")
        theirs[kind] = make_foreign(about.render(job), [owner_reference(other)])
        kept[kind] = await cluster.client.create(theirs[kind])

    cluster.start_operator()
    for kind in KINDS:
        await environment.change({"spec": {"suspend": False}}, f"t-{kind.lower()}")
    for kind, each in theirs.items():
        place = f"{kind} {environment.namespace}/{each['metadata']['name']} exists"
        await environment.until(reports_conflict(place), f"t-{kind.lower()}")
    await asyncio.sleep(4)  # several rounds
    assert {kind: await cluster.read(each) for kind, each in theirs.items()} == kept

    for kind in ("RayCluster", "Service", "Deployment"):
        await environment.api.delete(environment.path_of_job(f"t-{kind.lower()}"))
    freed = ("Pod", "NetworkPolicy", "ConfigMap")
    for kind in freed:
        await cluster.delete(kept[kind])
        await environment.change(
            {"metadata": {"annotations": {"reconcile": "now"}}}, f"t-{kind.lower()}"
        )
    for kind in freed:
        status = await environment.until(is_phase("Succeeded"), f"t-{kind.lower()}")
        assert condition(status, "Reconciling")["status"] == "False"
    for kind in ("RayCluster", "Service", "Deployment"):
        assert await cluster.read(theirs[kind]) == kept[kind]


async def test_replaced_attempt_config_map_is_reported_while_attempt_continues(
    cluster: Cluster,
) -> None:
    environment = cluster.environment
    cluster.start_operator()
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    job, other = await environment.apply(), await environment.apply({"spec.suspend": True}, "other")
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
    theirs = make_foreign(KINDS["ConfigMap"].render(job), [owner_reference(other)])

    kept = await cluster.replace(theirs)
    await environment.until(reports_conflict(theirs["metadata"]["name"]))
    environment.ray.may_continue = True
    await environment.until(is_phase("Succeeded"))

    assert await cluster.read(theirs) == kept


async def test_rejected_ray_token_is_reported_with_secret_name(cluster: Cluster) -> None:
    environment = cluster.environment
    cluster.start_operator()
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    job = await environment.apply()
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
    environment.ray.expect(await environment.cluster_name(), "another token")

    def is_rejected(status: Mapping[str, Any]) -> bool:
        return condition(status, "Reconciling")["reason"] == "AccessDenied"

    message = condition(await environment.until(is_rejected), "Reconciling")["message"]
    assert f"Secret {job.namespace}/small-token-" in message


async def test_objects_with_spoofed_labels_are_ignored(cluster: Cluster) -> None:
    """Objects have the operator's labels, some of them malformed; some are owned by the job."""
    environment = cluster.environment
    cluster.start_operator()
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    job, other = await environment.apply(), await environment.apply({"spec.suspend": True}, "other")
    owners = {"unowned": [], "other": [owner_reference(other)], "small": [owner_reference(job)]}
    kept = []
    for whose, owner in owners.items():
        for kind, about in KINDS.items():
            malformed = make_foreign(about.render(job), owner)
            metadata = malformed["metadata"]
            metadata["name"] = f"{kind.lower()}-{whose}"
            wrong = (names.LABEL_CLUSTER, names.LABEL_ATTEMPT, names.LABEL_SPEC_HASH)
            metadata["labels"] = {
                names.LABEL_MANAGED_BY: names.MANAGER,
                names.LABEL_JOB: job.name,
                **(dict.fromkeys(wrong, "x1") if whose != "unowned" else {}),
            }
            kept.append(await cluster.client.create(malformed))

    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
    environment.ray.may_continue = True
    status = await environment.until(is_phase("Succeeded"))

    assert condition(status, "Reconciling")["status"] != "True"
    assert len(status["attempts"]) == 1
    assert "internal error" not in environment.operator.log_file.read_text()
    assert [await cluster.read(each) for each in kept] == kept
