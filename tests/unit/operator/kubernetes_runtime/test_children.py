import copy
from dataclasses import replace

import pytest

from raggrpo_api import names
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    PodPlan,
    StartAgent,
    StartPreflight,
    StartRetriever,
)
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.metadata import owner_reference
from raggrpo_operator.core.manifests.network_policy import render_network_policies
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.errors import (
    AlreadyExists,
    NameTaken,
    NotFound,
    OperatorError,
    PermanentError,
    TransientError,
)
from raggrpo_operator.kube.client import CONFIG_MAPS, DEPLOYMENTS, PODS, RAY_CLUSTERS, SERVICES
from raggrpo_operator.kubernetes_runtime.process.installation_keys import (
    InstallationKeys,
    MountedKeys,
)
from raggrpo_operator.kubernetes_runtime.rounds.children import MAX_RECORDS, Children
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_kube import FakeKube
from support.fakes.fake_runtime import make_scenario_job

MOUNTED = MountedKeys("now", {"now": b"a key of many bytes"})
KEYS = InstallationKeys(lambda: MOUNTED, "ops/key")


JOB = make_scenario_job()
METADATA = JOB.metadata
CLUSTER = names.cluster_name("small", METADATA.uid, 1)
PREFLIGHT = names.preflight_name("small", METADATA.uid)
RETRIEVER = names.retriever_name("small", METADATA.uid, "kb")
NETWORK = names.network_policy_name("small", METADATA.uid)


def make_plan(changes: dict[str, object] | None = None) -> PodPlan:
    spec = resolve(make_scenario_job(changes)).spec
    return PodPlan(spec, "trainer:test", size(spec, KNOWN_TINY))


def make_cluster(grace_seconds: int = 30) -> CreateCluster:
    return CreateCluster(make_plan(), 1, CLUSTER, ray_version="", grace_seconds=grace_seconds)


def children() -> tuple[FakeKube, Children]:
    kube = FakeKube()
    settings = ClusterSettings(trainer_image="trainer:test", operator_namespace="ops")
    return kube, Children(kube, settings, KEYS)


async def test_ray_cluster_is_created_once_and_never_updated() -> None:
    kube, makes = children()
    await makes.create_cluster(METADATA, make_cluster())
    before = await kube.get(RAY_CLUSTERS, "default", CLUSTER)

    await makes.create_cluster(METADATA, make_cluster())

    assert kube.named("rayclusters") == [CLUSTER]
    assert await kube.get(RAY_CLUSTERS, "default", CLUSTER) == before
    assert len(kube.named("secrets")) == 1
    assert ("apply", "rayclusters", CLUSTER) not in kube.calls


async def test_ray_pods_have_grace_period_for_saving() -> None:
    kube, makes = children()

    await makes.create_cluster(METADATA, make_cluster(grace_seconds=75))

    cluster = await kube.get(RAY_CLUSTERS, "default", CLUSTER)
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]
    [ray] = head["containers"]
    assert "--seconds 75" in ray["lifecycle"]["preStop"]["exec"]["command"][-1]
    assert {"name": "RAY_JOB_STOP_WAIT_TIME_S", "value": "75"} in ray["env"]
    assert head["terminationGracePeriodSeconds"] == 90


async def test_secrets_are_created_but_never_updated() -> None:
    kube, makes = children()
    for _ in range(2):
        await makes.create_cluster(METADATA, make_cluster())
    assert {verb for verb, plural, _ in kube.calls if plural == "secrets"} == {"create"}


async def test_token_secret_is_created_before_ray_cluster() -> None:
    kube, makes = children()
    await makes.create_cluster(METADATA, make_cluster())
    created = [plural for verb, plural, _ in kube.calls if verb == "create"]
    assert created == ["networkpolicies", "secrets", "rayclusters"]


async def test_missing_kuberay_error_names_remedy() -> None:
    kube, makes = children()

    def refuse(verb: str, plural: str) -> None:
        if plural == "rayclusters":
            raise NotFound("HTTP 404 page not found")

    kube.before = refuse
    with pytest.raises(NotFound, match=r"install KubeRay 1\.6\.0 or newer"):
        await makes.create_cluster(METADATA, make_cluster())


async def test_unchanged_objects_are_not_rewritten() -> None:
    kube, makes = children()
    policy = render_network_policies(METADATA, makes.settings, make_plan().spec)[0]
    for _ in range(2):
        await makes.owned.apply(METADATA, policy)
    assert writes(kube) == ["create"]

    place = ("networkpolicies", "default", NETWORK)
    kube.objects[place]["spec"]["egress"].append({})
    await makes.owned.apply(METADATA, policy)
    del kube.objects[place]["metadata"]["labels"]
    await makes.owned.apply(METADATA, policy)
    assert writes(kube) == ["create", "replace", "replace"]


def writes(kube: FakeKube) -> list[str]:
    return [verb for verb, _, _ in kube.calls if verb != "get"]


async def test_preflight_waits_for_deletion_of_previous_preflight() -> None:
    kube, makes = children()
    config = trainer_config(JOB, resolve(JOB), number=0)
    old, new = (StartPreflight(make_plan(), config, spec_hash) for spec_hash in ("old", "new"))
    await makes.start_preflight(METADATA, old)
    await makes.start_preflight(METADATA, old)
    with pytest.raises(OperatorError, match="to terminate"):
        await makes.start_preflight(METADATA, new)

    await makes.owned.delete(METADATA, PODS, await kube.get(PODS, "default", PREFLIGHT))
    await makes.start_preflight(METADATA, new)
    pod = await kube.get(PODS, "default", PREFLIGHT)
    assert pod["metadata"]["labels"][names.LABEL_SPEC_HASH] == "new"


async def test_newest_attempt_records_are_kept() -> None:
    kube, makes = children()
    for number in range(1, MAX_RECORDS + 4):
        records = await kube.list_all(CONFIG_MAPS, "default")
        await makes.record_config(
            METADATA, trainer_config(JOB, resolve(JOB), number=number), records
        )
    kept = range(4, MAX_RECORDS + 4)
    assert kube.named("configmaps") == [
        names.config_map_name("small", METADATA.uid, number) for number in kept
    ]


async def test_object_recreated_with_another_uid_is_not_deleted() -> None:
    kube, makes = children()
    await makes.create_cluster(METADATA, make_cluster())
    ray_cluster = await kube.get(RAY_CLUSTERS, "default", CLUSTER)
    ray_cluster["metadata"]["uid"] = "an earlier one"

    await makes.owned.delete(METADATA, RAY_CLUSTERS, ray_cluster)

    assert kube.named("rayclusters") == [CLUSTER]


async def test_retrievers_are_created_and_deleted_with_services() -> None:
    kube, makes = children()
    managed = ManagedRetriever(corpus="/mnt/runs/corpus.jsonl")
    endpoint = {"name": "kb", "managed": managed.model_dump(by_alias=True)}
    plan = make_plan({"retrieval": {"mode": "Prompt", "endpoints": [endpoint]}})
    for _ in range(2):
        await makes.start_retriever(METADATA, StartRetriever(plan, "kb", managed))
    assert kube.named("deployments") == kube.named("services") == [RETRIEVER]
    foreign = await kube.get(SERVICES, "default", RETRIEVER)
    assert foreign["metadata"]["ownerReferences"][0]["uid"] == METADATA.uid

    deployments = [
        manifest for (kind, _, _), manifest in kube.objects.items() if kind == "deployments"
    ]
    await makes.stop_servers(METADATA, deployments)
    assert kube.named("deployments") == kube.named("services") == []


def make_agent() -> StartAgent:
    agent = {"type": "Container", "identify": "Trace", "container": {"image": "app:1"}}
    plan = make_plan({"rollout.agent": agent})
    assert plan.spec.rollout.agent is not None
    assert plan.spec.rollout.agent.container is not None
    return StartAgent(plan, plan.spec.rollout.agent.container, "hash")


async def test_agent_is_created_and_deleted_with_its_service_and_policy() -> None:
    kube, makes = children()
    action = make_agent()
    own = names.agent_name("small", METADATA.uid)
    for _ in range(2):
        await makes.start_agent(METADATA, action)
    gateway = names.gateway_name("small")
    assert kube.named("services") == [gateway, own]
    created = [name for verb, plural, name in kube.calls if (verb, plural) != ("get", "services")]
    assert created.index(gateway) < created.index(own)
    assert kube.named("deployments") == [own]
    policy = names.agent_policy_name("small", METADATA.uid)
    assert sorted(kube.named("networkpolicies")) == sorted([policy, NETWORK])

    await makes.stop_servers(METADATA, [await kube.get(DEPLOYMENTS, "default", own)])

    assert kube.named("deployments") == []
    assert kube.named("services") == [gateway]


async def test_attempt_of_agent_has_services_of_gateway_and_container() -> None:
    kube, makes = children()
    agent = make_agent().plan.spec.rollout.agent

    await makes.ensure_services(METADATA, {}, agent)

    expected = [names.gateway_name("small"), names.agent_name("small", METADATA.uid)]
    assert sorted(kube.named("services")) == sorted(expected)


EARLIER = METADATA.model_copy(update={"uid": "that of a deleted job"})
OWNERS: dict[str, list[dict[str, object]]] = {
    "no one": [],
    "another job": [owner_reference(EARLIER) | {"name": "other"}],
    "not the controller": [owner_reference(METADATA) | {"controller": False}],
}


@pytest.mark.parametrize("whose", OWNERS)
async def test_foreign_service_is_kept_and_retriever_is_not_started(
    whose: str,
) -> None:
    kube, makes = children()
    owned = {"name": RETRIEVER, "namespace": "default", "ownerReferences": OWNERS[whose]}
    theirs = {"apiVersion": "v1", "kind": "Service", "metadata": owned, "spec": {"mine": True}}
    kept = copy.deepcopy(kube.put(theirs))

    action = StartRetriever(make_plan(), "kb", ManagedRetriever(corpus="/mnt/runs/corpus.jsonl"))
    with pytest.raises(NameTaken, match=f"Service default/{RETRIEVER} exists and is not owned by"):
        await makes.start_retriever(METADATA, action)
    with pytest.raises(NameTaken):
        await makes.ensure_services(METADATA, {"kb": RETRIEVER}, None)
    await makes.owned.delete(METADATA, SERVICES, kept)

    assert await kube.get(SERVICES, "default", RETRIEVER) == kept
    assert kube.named("deployments") == []


async def test_service_of_earlier_job_of_this_name_is_awaited() -> None:
    kube, makes = children()
    name = names.gateway_name("small")
    owned = {"name": name, "namespace": "default", "ownerReferences": [owner_reference(EARLIER)]}
    kube.put({"apiVersion": "v1", "kind": "Service", "metadata": owned, "spec": {}})

    with pytest.raises(TransientError, match=f"Service {name} of an earlier job of this name"):
        await makes.ensure_services(METADATA, {}, make_agent().plan.spec.rollout.agent)


async def test_deployment_with_change_that_is_not_allowed_is_created_again() -> None:
    kube, makes = children()
    await makes.start_agent(METADATA, make_agent())
    own = names.agent_name("small", METADATA.uid)
    before = await kube.get(DEPLOYMENTS, "default", own)

    def refuse(verb: str, plural: str) -> None:
        if (verb, plural) == ("replace", "deployments"):
            raise PermanentError("spec.selector: Invalid value: field is immutable")

    kube.before = refuse
    changed = replace(make_agent(), spec_hash="other")
    with pytest.raises(TransientError, match="to create it with the change"):
        await makes.start_agent(METADATA, changed)
    await makes.start_agent(METADATA, changed)

    after = await kube.get(DEPLOYMENTS, "default", own)
    assert before["metadata"]["uid"] != after["metadata"]["uid"]
    assert after["metadata"]["labels"][names.LABEL_SPEC_HASH] == "other"


async def test_deployment_whose_change_is_invalid_is_kept() -> None:
    kube, makes = children()
    await makes.start_agent(METADATA, make_agent())

    def refuse(verb: str, plural: str) -> None:
        if (verb, plural) == ("replace", "deployments"):
            raise PermanentError("spec.template.spec.containers[0].image: Required value")

    kube.before = refuse
    with pytest.raises(PermanentError, match="Required value"):
        await makes.start_agent(METADATA, replace(make_agent(), spec_hash="other"))
    assert kube.named("deployments") == [names.agent_name("small", METADATA.uid)]


@pytest.mark.row("E12")
async def test_network_policy_is_created_before_pods() -> None:
    managed = ManagedRetriever(corpus="/mnt/runs/corpus.jsonl")
    endpoint = {"name": "kb", "managed": managed.model_dump(by_alias=True)}
    plan = make_plan({"retrieval": {"mode": "Prompt", "endpoints": [endpoint]}})
    config = trainer_config(JOB, resolve(JOB), number=0)
    kube, makes = children()
    for create in (
        lambda: makes.start_preflight(METADATA, StartPreflight(make_plan(), config, "hash")),
        lambda: makes.start_retriever(METADATA, StartRetriever(plan, "kb", managed)),
        lambda: makes.start_agent(METADATA, make_agent()),
        lambda: makes.create_cluster(METADATA, make_cluster()),
    ):
        kube.objects.clear()
        kube.calls.clear()
        await create()
        written = [call for call in kube.calls if call[0] != "get"]
        assert written[0] == ("create", "networkpolicies", NETWORK)


async def test_already_exists_error_is_transient_when_object_was_deleted() -> None:
    kube, makes = children()

    def refuse(verb: str, plural: str) -> None:
        if (verb, plural) == ("create", "rayclusters"):
            raise AlreadyExists("exists")

    kube.before = refuse
    with pytest.raises(TransientError, match="but it was deleted"):
        await makes.create_cluster(METADATA, make_cluster())
