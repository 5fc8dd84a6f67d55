"""The whole operator against a real API server; the test plays KubeRay, kubelet and Ray heads.

The operator has the service account, the permissions and the admission policies of its chart.
"""

import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from raggrpo_api import names
from raggrpo_api.names import KIND
from support.fakes.api_server_proxy import ApiServerProxy, open_proxy
from support.fakes.fake_kuberay import Api, Manifest, path_of
from support.fakes.fake_kueue import NODE_SELECTOR, fake_kueue
from support.fakes.fake_ray import Script
from support.kubernetes.chart_release import Account
from support.operator.operator_environment import (
    OperatorEnvironment,
    changes_by_operator,
    is_phase,
    leader,
    make_environment,
    make_operator,
    two_replicas,
)
from tools.kind.api_server import ApiServer
from tools.kind.jobs import condition


@pytest_asyncio.fixture
async def fake(
    api_server: ApiServer, operator_account: Account, namespace: str, tmp_path: Path
) -> AsyncIterator[OperatorEnvironment]:
    """A simulated cluster whose operator watches one namespace and is not running yet."""
    async with make_environment(api_server, operator_account, namespace, tmp_path) as played:
        yield played


@pytest.fixture
def environment(fake: OperatorEnvironment) -> OperatorEnvironment:
    """A simulated cluster with a running operator."""
    fake.operator.start()
    return fake


async def test_applied_job_succeeds_and_frees_resources(
    environment: OperatorEnvironment,
) -> None:
    await environment.apply()

    status = await environment.until(is_phase("Succeeded"))

    assert status["progress"]["step"] == 20
    assert environment.ray.submitted == ["small-a1"]
    assert [each["cause"] for each in status["attempts"]] == ["Succeeded"]

    async def clusters_are_gone() -> bool:
        return not await environment.all_of("ray.io/v1", "rayclusters")

    await environment.until_true(clusters_are_gone)
    events = await environment.all_of("events.k8s.io/v1", "events")
    notes = [(each["reason"], each["note"]) for each in events]
    assert len(notes) == len(set(notes)), notes
    assert ("TargetReached", "Complete: reached step 20") in notes


async def test_job_with_sources_stages_them_in_its_own_pod_before_preflight(
    environment: OperatorEnvironment,
) -> None:
    await environment.apply({"spec.model": {"source": "hf://org/model@main"}})

    status = await environment.until(is_phase("Succeeded"))

    [source] = status["staging"]["sources"]
    assert source["path"] == "/mnt/runs/staged/0"
    assert condition(status, "SourcesStaged")["reason"] == "Staged"
    [record] = [
        each
        for each in await environment.all_of("v1", "configmaps")
        if "config.json" in each.get("data", {})
    ]
    config = json.loads(record["data"]["config.json"])
    assert config["model"]["path"] == "/mnt/runs/staged/0"


async def test_complete_job_pushes_its_results_in_its_own_pod(
    environment: OperatorEnvironment,
) -> None:
    await environment.apply({"spec.output": {"push": "s3://bucket/result"}})

    status = await environment.until(
        lambda status: (
            is_phase("Succeeded")(status)
            and condition(status, "ResultPushed").get("status") == "True"
        )
    )

    pushed = status["push"]
    assert (pushed["url"], pushed["revision"]) == ("s3://bucket/result", "c0ffee")
    events = await environment.all_of("events.k8s.io/v1", "events")
    assert "Pushed" in [each["reason"] for each in events]


CLAIMS = ("v1", "persistentvolumeclaims")


@pytest_asyncio.fixture
async def releasing_claims(environment: OperatorEnvironment) -> AsyncIterator[OperatorEnvironment]:
    """The environment; at the end, does what the controller for claims in use would do."""
    yield environment
    for claim in await environment.all_of(*CLAIMS):
        path = path_of(*CLAIMS, environment.namespace, claim["metadata"]["name"])
        await environment.api.patch(path, {"metadata": {"finalizers": None}})


def make_created_volume(**template: Any) -> dict[str, Any]:
    template = {"size": "1Gi"} | template
    return {"name": "runs", "mountPath": "/mnt/runs", "claimTemplate": template}


async def test_kept_claim_is_used_by_next_job_with_same_name(
    releasing_claims: OperatorEnvironment,
) -> None:
    environment = releasing_claims
    for _ in range(2):
        await environment.apply({"spec.volumes": [make_created_volume()]})
        await environment.until(is_phase("Succeeded"))
        await environment.api.delete(environment.job_path)

    [claim] = await environment.all_of(*CLAIMS)
    assert claim["metadata"]["name"] == "small-runs"
    assert "deletionTimestamp" not in claim["metadata"]


async def test_other_claim_is_deleted_with_its_job(releasing_claims: OperatorEnvironment) -> None:
    environment = releasing_claims
    await environment.apply({"spec.volumes": [make_created_volume(keep=False)]})
    await environment.until(is_phase("Succeeded"))
    await environment.api.delete(environment.job_path)

    async def is_deleted() -> bool:
        claims = await environment.all_of(*CLAIMS)
        return all("deletionTimestamp" in each["metadata"] for each in claims)

    await environment.until_true(is_deleted)


async def test_job_does_not_use_claim_that_operator_did_not_create(
    releasing_claims: OperatorEnvironment,
) -> None:
    environment = releasing_claims
    theirs = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "small-runs"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    await environment.api.create(path_of(*CLAIMS, environment.namespace), theirs)
    await environment.apply({"spec.volumes": [make_created_volume()]})

    def is_refused(status: Manifest) -> bool:
        return "small-runs exists and is not owned by this job" in json.dumps(status)

    await environment.until(is_refused)
    assert not await environment.all_of("v1", "pods")


async def test_job_start_takes_twelve_writes(
    fake: OperatorEnvironment, operator_account: Account, api_server: ApiServer, tmp_path: Path
) -> None:
    # Progress is written once a minute; by then this job has started.
    fake.operator = make_operator(
        operator_account, tmp_path, fake.ray, fake.namespace, RAGGRPO_STATUS_SECONDS="60"
    )
    fake.operator.start()
    fake.ray.scripts["small-a1"] = Script(waits_at=0)
    await fake.apply()
    status = await fake.until(is_phase("Running"))

    async def has_reported() -> bool:
        return len(await fake.all_of("events.k8s.io/v1", "events")) >= 2

    await fake.until_true(has_reported)
    assert not status.get("warnings"), "each is an Event, too"
    writes = Counter(
        f"{each['verb']} {each['objectRef']['resource']}"
        for each in changes_by_operator(api_server, fake.namespace)
    )
    assert writes.pop("create leases") == 1, "one per namespace"
    assert writes == {
        "create networkpolicies": 1,
        "create pods": 1,
        "delete pods": 1,
        "create secrets": 1,
        "create rayclusters": 1,
        "create configmaps": 1,
        "patch raggrpojobs": 4,
        "create events": 2,
    }


DEPLOYMENTS = ("apps/v1", "deployments")


async def test_managed_retriever_is_deleted_after_job_succeeds(
    environment: OperatorEnvironment,
) -> None:
    endpoint = {"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}
    await environment.apply({"spec.retrieval": {"mode": "Search", "endpoints": [endpoint]}})
    deployments, services = ("apps/v1", "deployments"), ("v1", "services")

    async def there_is(kind: tuple[str, str]) -> bool:
        return bool(await environment.all_of(*kind))

    await environment.until_true(lambda: there_is(deployments))
    await environment.until_true(lambda: there_is(services))
    await roll_out(environment)
    await environment.until(is_phase("Succeeded"))

    async def both_are_gone() -> bool:
        return not await there_is(deployments) and not await there_is(services)

    await environment.until_true(both_are_gone)


async def roll_out(environment: OperatorEnvironment) -> Manifest:
    """Do what the controller of Deployments does for the only Deployment, and return it."""
    [deployment] = await environment.all_of(*DEPLOYMENTS)
    metadata, replicas = deployment["metadata"], deployment["spec"]["replicas"]
    counts = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    status = dict.fromkeys(counts, replicas) | {"observedGeneration": metadata["generation"]}
    path = path_of(*DEPLOYMENTS, environment.namespace, metadata["name"])
    await environment.api.patch(f"{path}/status", {"status": status})
    return deployment


CONTAINER = {"type": "Container", "identify": "Trace", "container": {"image": "app:1"}}


@pytest.mark.row("F2")
async def test_container_of_agent_is_started_restored_and_deleted_after_job_succeeds(
    environment: OperatorEnvironment,
) -> None:
    await environment.apply({"spec.rollout.agent": CONTAINER})
    deployments, services = ("apps/v1", "deployments"), ("v1", "services")

    async def there_is(kind: tuple[str, str]) -> bool:
        return bool(await environment.all_of(*kind))

    async def delete_deployment() -> None:
        [deployment] = await environment.all_of(*deployments)
        name = deployment["metadata"]["name"]
        await environment.api.delete(path_of(*deployments, environment.namespace, name))

    await environment.until_true(lambda: there_is(deployments))
    [first] = await environment.all_of(*deployments)
    await delete_deployment()

    async def is_restored() -> bool:
        uids = [each["metadata"]["uid"] for each in await environment.all_of(*deployments)]
        return bool(uids) and uids != [first["metadata"]["uid"]]

    await environment.until_true(is_restored)
    policies = await environment.all_of("networking.k8s.io/v1", "networkpolicies")
    assert len(policies) == 2
    await roll_out(environment)
    await environment.until(is_phase("Succeeded"))

    async def only_gateway_remains() -> bool:
        ports = [each["spec"]["ports"][0]["port"] for each in await environment.all_of(*services)]
        return not await there_is(deployments) and names.GATEWAY_PORT in ports and 8000 not in ports

    await environment.until_true(only_gateway_remains)


@pytest.mark.row("F2")
async def test_services_deleted_during_attempt_are_created_again(
    environment: OperatorEnvironment,
) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    await environment.apply({"spec.rollout.agent": CONTAINER})

    async def uids() -> dict[str, str]:
        services = await environment.all_of("v1", "services")
        return {each["metadata"]["name"]: each["metadata"]["uid"] for each in services}

    async def has_deployment() -> bool:
        return bool(await environment.all_of(*DEPLOYMENTS))

    await environment.until_true(has_deployment)
    await roll_out(environment)
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
    before = await uids()
    for name in before:
        await environment.api.delete(path_of("v1", "services", environment.namespace, name))

    async def are_restored() -> bool:
        after = await uids()
        return after.keys() == before.keys() and not set(after.values()) & set(before.values())

    await environment.until_true(are_restored)
    environment.ray.may_continue = True
    status = await environment.until(is_phase("Succeeded"))
    assert "small-gateway" in before
    assert [each["cause"] for each in status["attempts"]] == ["Succeeded"]


@pytest.mark.row("F2")
async def test_pods_of_existing_service_are_admitted_to_gateway(
    environment: OperatorEnvironment,
) -> None:
    agent = {
        "type": "Http",
        "url": "http://app.apps.svc:8000/",
        "identify": "Trace",
        "allowFrom": {"namespace": "apps", "podSelector": "app=support"},
    }
    await environment.apply({"spec.rollout.agent": agent})
    await environment.until(is_phase("Succeeded"))

    [policy] = await environment.all_of("networking.k8s.io/v1", "networkpolicies")
    admitted = policy["spec"]["ingress"][-1]
    assert admitted["ports"] == [{"port": names.GATEWAY_PORT, "protocol": "TCP"}]


async def test_failed_driver_is_resubmitted_on_warm_cluster(
    environment: OperatorEnvironment,
) -> None:
    environment.ray.scripts["small-a1"] = Script(fails_at=12, exit_code=12)
    await environment.apply()
    status = await environment.until(is_phase("Succeeded"))

    second, first = status["attempts"]
    assert (first["cause"], first["toStep"]) == ("TrainerRankLost", 12)
    assert (second["tier"], second["fromStep"]) == ("WarmCluster", 10)
    assert len(environment.kuberay.clusters_seen) == 1


async def test_baseline_is_reset_for_new_attempt(
    environment: OperatorEnvironment,
) -> None:
    """Server-side apply turns an emptied map into null unless the map is atomic."""
    environment.ray.scripts["small-a1"] = Script(waits_at=15, fails_at=17)
    await environment.apply()
    await environment.until(lambda status: bool(baseline(status).get("secondsByStage")))
    environment.ray.may_continue = True
    status = await environment.until(is_phase("Succeeded"))

    assert [each["cause"] for each in status["attempts"]] == ["Succeeded", "TrainerRankLost"]


def baseline(status: Manifest) -> Manifest:
    baseline: Manifest = status.get("restartState", {}).get("baseline", {})
    return baseline


@pytest.mark.parametrize("name", ["SIGTERM", "SIGKILL"])
async def test_restarted_operator_does_not_repeat_actions(
    environment: OperatorEnvironment, name: str
) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    await environment.apply()
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)

    process = environment.operator.process
    assert process is not None
    process.send_signal(signal.Signals[name])
    await asyncio.to_thread(process.wait, 30)
    environment.operator.start()
    environment.ray.may_continue = True

    status = await environment.until(is_phase("Succeeded"))
    assert environment.ray.submitted == ["small-a1"]
    assert len(environment.kuberay.clusters_seen) == 1
    assert status.get("restarts", {}).get("total", 0) == 0


@asynccontextmanager
async def interrupted(
    fake: OperatorEnvironment, account: Account, folder: Path
) -> AsyncIterator[ApiServerProxy]:
    """Run an operator whose connection to the API server can be interrupted."""
    async with open_proxy(account.kubeconfig, folder) as (proxy, kubeconfig):
        taken = {"KUBECONFIG": str(kubeconfig)}
        fake.operator = make_operator(account, folder, fake.ray, fake.namespace, **taken)
        fake.operator.start()
        try:
            yield proxy
        finally:
            fake.operator.stop()


async def test_restarted_operator_does_not_act_before_cache_sync(
    operator_account: Account, fake: OperatorEnvironment, tmp_path: Path
) -> None:
    fake.ray.scripts["small-a1"] = Script(waits_at=7)
    async with interrupted(fake, operator_account, tmp_path) as proxy:
        await fake.apply()
        await fake.until(lambda status: status.get("progress", {}).get("step") == 7)
        fake.operator.stop()
        before = await fake.status()
        proxy.hold("pods")
        fake.operator.start()

        async def is_waiting() -> bool:
            return proxy.lists_held > 0

        await fake.until_true(is_waiting)
        fake.ray.may_continue = True
        await asyncio.sleep(4)  # the absence of a write cannot be waited for
        assert (await fake.status()) == before
        proxy.release()
        status = await fake.until(is_phase("Succeeded"))

    assert fake.ray.submitted == ["small-a1"]
    assert (len(fake.kuberay.clusters_seen), status.get("restarts", {}).get("total", 0)) == (1, 0)


async def test_ray_cluster_deleted_during_operator_downtime_is_recreated(
    operator_account: Account, fake: OperatorEnvironment, tmp_path: Path
) -> None:
    fake.ray.scripts["small-a1"] = Script(waits_at=12)
    async with interrupted(fake, operator_account, tmp_path) as proxy:
        await fake.apply()
        await fake.until(lambda status: status.get("checkpoint", {}).get("step") == 10)
        cluster = await fake.cluster_name()
        proxy.hold("rayclusters", "pods")
        path = path_of("ray.io/v1", "rayclusters", fake.namespace, cluster)
        await fake.api.delete(path)

        async def is_gone() -> bool:
            return await fake.api.get(path) is None and proxy.lists_held > 1

        await fake.until_true(is_gone)
        proxy.release()
        status = await fake.until(is_phase("Succeeded"))

    assert [each["cause"] for each in status["attempts"][1:]] == ["HeadLost"]
    assert status["attempts"][0]["fromStep"] == 10


@pytest.mark.row("B17")
async def test_manually_deleted_ray_cluster_is_recreated(
    environment: OperatorEnvironment,
) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=12)
    await environment.apply()
    await environment.until(lambda status: status.get("checkpoint", {}).get("step") == 10)
    cluster = await environment.cluster_name()
    await environment.api.delete(
        path_of("ray.io/v1", "rayclusters", environment.namespace, cluster)
    )
    environment.ray.lose(cluster)

    status = await environment.until(is_phase("Succeeded"))
    second, first = status["attempts"]
    assert first["cause"] == "HeadLost"
    assert (second["tier"], second["cluster"], second["fromStep"]) == ("NewCluster", 2, 10)
    assert environment.kuberay.most_at_once == 1


async def test_changed_network_policy_is_restored_before_next_cluster(
    environment: OperatorEnvironment,
) -> None:
    policies = ("networking.k8s.io/v1", "networkpolicies")
    environment.ray.scripts = {"small-a1": Script(waits_at=12), "small-a2": Script(waits_at=17)}
    await environment.apply()
    await environment.until(lambda status: status.get("checkpoint", {}).get("step") == 10)
    [closed] = await environment.all_of(*policies)
    path = path_of(*policies, environment.namespace, closed["metadata"]["name"])
    await environment.api.patch(path, {"spec": {"ingress": [{}]}})
    cluster = await environment.cluster_name()
    await environment.api.delete(
        path_of("ray.io/v1", "rayclusters", environment.namespace, cluster)
    )
    environment.ray.lose(cluster)

    await environment.until(
        lambda status: (status["attempt"], status["progress"].get("step")) == (2, 17)
    )

    [now] = await environment.all_of(*policies)
    assert now["spec"] == closed["spec"]


@pytest.mark.row("C13")
async def test_next_cluster_uses_image_digest_of_first_cluster(
    environment: OperatorEnvironment,
) -> None:
    digest = f"sha256:{'1' * 64}"
    environment.kuberay.image_id = f"registry.example/library/trainer@{digest}"
    environment.ray.scripts = {"small-a1": Script(waits_at=12), "small-a2": Script(waits_at=17)}
    await environment.apply()
    await environment.until(lambda status: "imageId" in status.get("pinned", {}))
    await environment.until(lambda status: status.get("checkpoint", {}).get("step") == 10)
    cluster = await environment.cluster_name()
    await environment.api.delete(
        path_of("ray.io/v1", "rayclusters", environment.namespace, cluster)
    )
    environment.ray.lose(cluster)

    await environment.until(
        lambda status: (status["attempt"], status["progress"].get("step")) == (2, 17)
    )

    second = await environment.cluster_name()
    images = {
        pod["spec"]["containers"][0]["image"]
        for pod in await environment.all_of("v1", "pods")
        if pod["metadata"]["labels"].get("ray.io/cluster") == second
    }
    assert images == {f"trainer:test@{digest}"}


@pytest.mark.row("B3")
async def test_manually_deleted_config_map_is_restored(environment: OperatorEnvironment) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    job = await environment.apply()
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
    record = names.config_map_name("small", job.uid, 1)
    path = path_of("v1", "configmaps", environment.namespace, record)
    before = await environment.api.get(path)

    await environment.api.delete(path)

    async def is_back() -> bool:
        return await environment.api.get(path) is not None

    await environment.until_true(is_back)
    after = await environment.api.get(path)
    assert before is not None
    assert after is not None
    assert after["data"] == before["data"]
    assert after["metadata"]["uid"] != before["metadata"]["uid"]


@pytest.mark.row("B23")
async def test_suspended_job_saves_checkpoint_deletes_pods_and_resumes(
    environment: OperatorEnvironment,
) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    await environment.apply()
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)

    await environment.change({"spec": {"suspend": True}})
    await environment.until(is_phase("Suspended"))

    async def pods_are_gone() -> bool:
        return not await environment.all_of("v1", "pods")

    await environment.until_true(pods_are_gone)
    await environment.change({"spec": {"suspend": False}})
    status = await environment.until(is_phase("Succeeded"))
    assert len(status["attempts"]) == 2, status["attempts"]
    second, first = status["attempts"]
    assert first["cause"] == "Suspended"
    assert second["fromStep"] == 7
    assert status.get("restarts", {}).get("total", 0) == 0


async def configs_of(environment: OperatorEnvironment, job: str) -> list[dict[str, Any]]:
    """Return the recorded configurations of a job's attempts, oldest first."""
    configs = [
        json.loads(each["data"]["config.json"])
        for each in await environment.all_of("v1", "configmaps")
        if "config.json" in each.get("data", {})
    ]
    own = [config for config in configs if config["attempt"]["jobName"] == job]
    return sorted(own, key=lambda config: int(config["attempt"]["number"]))


@pytest.mark.row("A17")
async def test_values_change_only_while_job_is_suspended(environment: OperatorEnvironment) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    await environment.apply({"spec.rollout": {"n": 5}})
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)

    with pytest.raises(Exception, match="cannot change while the job is running"):
        await environment.change({"spec": {"rollout": {"n": 3}}})
    await environment.change({"spec": {"suspend": True}})
    await environment.until(is_phase("Suspended"))
    await environment.change({"spec": {"suspend": False, "rollout": {"n": 3}}})
    status = await environment.until(is_phase("Succeeded"))

    assert status["attempts"][0]["fromStep"] == 7
    configs = await configs_of(environment, "small")
    assert [config["rollout"]["n"] for config in configs] == [5, 3]


async def test_new_job_starts_from_checkpoints_of_job_that_it_names(
    environment: OperatorEnvironment,
) -> None:
    start = {"checkpoint": {"jobRef": "small"}, "step": 5}
    changes = {
        "spec.training.startFrom": start,
        "spec.training.totalSteps": 30,
        "spec.checkpoint.path": "/mnt/runs/checkpoints/next",
    }
    await environment.apply(changes, "next")

    def is_waiting(status: Manifest) -> bool:
        return bool(condition(status, "Progressing").get("reason") == "WaitingForStartJob")

    await environment.until(is_waiting, "next")
    await environment.apply()
    status = await environment.until(is_phase("Succeeded"), "next")

    assert status["pinned"]["startPath"] == "/mnt/runs/checkpoints"
    [config] = await configs_of(environment, "next")
    source = {"path": "/mnt/runs/checkpoints", "jobRef": None}
    assert config["training"]["startFrom"]["checkpoint"] == source
    assert config["training"]["startFrom"]["step"] == "5"


@pytest.mark.row("B2")
async def test_invalid_job_reports_all_violations_and_creates_no_objects(
    environment: OperatorEnvironment,
) -> None:
    # Violates a rule only together with the preset's values, which the API server does not know.
    await environment.apply(
        {
            "spec.data": {"trainFiles": ["/mnt/runs/train.jsonl"]},
            "spec.training.tokensPerMicroBatch": 16,
            "spec.resources": {"device": "CPU", "nodes": 8, "ranks": 64},
        }
    )

    status = await environment.until(is_phase("Invalid"))

    accepted = condition(status, "Accepted")
    assert accepted["status"] == "False"
    assert "spec.training.tokensPerMicroBatch" in accepted["message"]
    assert "spec.training.miniBatchPrompts" in accepted["message"]
    assert not environment.kuberay.clusters_seen
    assert not await environment.all_of("v1", "pods")


async def test_job_deletion_deletes_all_owned_objects(environment: OperatorEnvironment) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=7)
    await environment.apply()
    await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
    job = await environment.api.get(environment.job_path)
    assert job is not None
    assert "finalizers" not in job["metadata"]

    await environment.api.delete(environment.job_path)

    async def nothing_is_left() -> bool:
        kinds = [("v1", "pods"), ("v1", "configmaps"), ("v1", "secrets")]
        kinds += [("ray.io/v1", "rayclusters"), ("networking.k8s.io/v1", "networkpolicies")]
        left = [each for kind in kinds for each in await environment.all_of(*kind)]
        return not [e for e in left if KIND in str(e["metadata"].get("ownerReferences", ""))]

    await environment.until_true(nothing_is_left)


@pytest.mark.row("B18")
async def test_pod_start_failure_is_reported_and_fails_job(
    environment: OperatorEnvironment,
) -> None:
    words = "secret 'wandb' not found"
    environment.kuberay.pods_waiting = {"reason": "CreateContainerConfigError", "message": words}
    await environment.apply()
    status = await environment.until(is_phase("Failed"))

    failed = condition(status, "Failed")
    assert failed["reason"] == "StartFailed"
    assert words in failed["message"]

    async def has_event() -> bool:  # Events are posted after the status
        notes = [each["note"] for each in await environment.all_of("events.k8s.io/v1", "events")]
        return any(words in note and "Failed (StartFailed)" in note for note in notes)

    await environment.until_true(has_event)


async def test_ray_token_is_stored_only_in_its_secret(
    environment: OperatorEnvironment,
) -> None:
    await environment.apply()
    await environment.until(is_phase("Succeeded"))
    [token] = environment.ray.tokens()
    seen = [await environment.api.get(environment.job_path)]
    for kind in (("v1", "configmaps"), ("events.k8s.io/v1", "events")):
        seen.extend(await environment.all_of(*kind))

    assert token not in str(seen)
    assert token not in environment.operator.log_file.read_text()
    assert environment.ray.refused == 0


@pytest.mark.row("B25")
async def test_finished_job_is_deleted_after_ttl(environment: OperatorEnvironment) -> None:
    await environment.apply({"spec.ttlSecondsAfterFinished": 1})

    async def is_removed() -> bool:
        return await environment.api.get(environment.job_path) is None

    await environment.until_true(is_removed)
    assert environment.ray.submitted == ["small-a1"]


async def test_worker_oom_is_reported_as_cause_after_pod_deletion(
    environment: OperatorEnvironment,
) -> None:
    environment.ray.scripts["small-a1"] = Script(waits_at=12)
    await environment.apply()
    await environment.until(lambda status: status.get("checkpoint", {}).get("step") == 10)
    [worker] = [
        pod
        for pod in await environment.all_of("v1", "pods")
        if pod["metadata"]["labels"].get("ray.io/node-type") == "worker"
    ]
    name = worker["metadata"]["name"]
    ended = {"reason": "OOMKilled", "exitCode": 137, "finishedAt": time_ahead()}
    await environment.kuberay.set_state(name, worker, {"terminated": ended})
    await environment.api.delete(path_of("v1", "pods", environment.namespace, name))
    environment.ray.fail(await environment.cluster_name(), exit_code=12)

    status = await environment.until(is_phase("Succeeded"))

    second, first = status["attempts"]
    assert first["cause"] == "HostOutOfMemory"
    assert f"trainer pod {name}: ran out of memory" in first["message"]
    assert (second["tier"], second["fromStep"]) == ("NewCluster", 10)


async def test_job_waits_until_kuberay_crd_is_installed(
    operator_account: Account, fake: OperatorEnvironment, tmp_path: Path
) -> None:
    # Watches the whole cluster; otherwise a kind that is added later is not discovered.
    operator = make_operator(operator_account, tmp_path, fake.ray, "")
    fake.operator = operator
    crd = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rayclusters.ray.io"
    kept = await fake.api.get(crd)
    assert kept is not None
    await fake.api.delete(crd)
    await fake.until_true(lambda: is_gone(fake.api, crd))
    try:
        operator.start()
        await fake.apply()
        status = await fake.until(lambda s: condition(s, "Reconciling")["status"] == "True")
        assert "install KubeRay" in condition(status, "Reconciling")["message"]
    finally:
        fresh = {**kept, "metadata": {"name": kept["metadata"]["name"]}, "status": {}}
        await fake.api.create(crd.rpartition("/")[0], fresh)

    status = await fake.until(is_phase("Succeeded"))
    assert condition(status, "Reconciling")["status"] == "False"
    assert "install KubeRay" in operator.log_file.read_text()


async def test_other_replica_takes_over_after_leader_loss(
    operator_account: Account, fake: OperatorEnvironment, tmp_path: Path
) -> None:
    replicas = two_replicas(operator_account, tmp_path, fake.ray, fake.namespace)
    fake.ray.scripts["small-a1"] = Script(waits_at=7)
    try:
        for replica in replicas.values():
            replica.start()
        await fake.apply()
        fake.operator = replicas["one"]
        await fake.until(lambda status: status.get("progress", {}).get("step") == 7)
        first = await leader(fake.api, operator_account)
        fake.operator = replicas["two" if first == "one" else "one"]
        process = replicas[first].process
        assert process is not None
        process.kill()
        killed = time.monotonic()

        async def has_moved() -> bool:
            return await leader(fake.api, operator_account) not in ("", first)

        await fake.until_true(has_moved)
        assert time.monotonic() - killed < 20
        fake.ray.may_continue = True
        await fake.until(is_phase("Succeeded"))
    finally:
        for replica in replicas.values():
            replica.stop()

    assert fake.ray.submitted == ["small-a1"]
    assert len(fake.kuberay.clusters_seen) == 1


async def test_kueue_preemption_does_not_use_restart_budget(
    api_server: ApiServer, environment: OperatorEnvironment
) -> None:
    environment.ray.scripts |= {"small-a1": Script(waits_at=7), "small-a2": Script(waits_at=12)}
    async with fake_kueue(environment.api, environment.namespace) as kueue:
        queue = {"scheduling": {"queueName": "research"}, "recovery": {"maxRestarts": 0}}
        job = await environment.apply({f"spec.{block}": value for block, value in queue.items()})
        name = names.cluster_name("small", job.uid, 1)
        path = path_of("ray.io/v1", "rayclusters", environment.namespace, name)
        status = await environment.until(is_phase("Queued"))
        assert "queue research" in condition(status, "Suspended")["message"]
        assert not [pod for pod in await environment.all_of("v1", "pods") if is_of_ray(pod)]

        await kueue.admit(name)
        await environment.until(lambda status: status.get("progress", {}).get("step") == 7)
        await kueue.preempt(name)
        status = await environment.until(is_phase("Queued"))
        assert condition(status, "Ready")["status"] == "False"
        # Kueue takes longer than this to readmit a workload.
        await environment.until(lambda status: [a["number"] for a in status["attempts"]] == [2, 1])
        await kueue.admit(name)
        await environment.until(lambda status: status.get("progress", {}).get("step") == 12)
        cluster = await environment.api.get(path)
        environment.ray.may_continue = True
        status = await environment.until(is_phase("Succeeded"))
        await environment.until_true(lambda: is_gone(environment.api, path))

    second, first = status["attempts"]
    assert first["cause"] == "Preempted"
    assert (second["tier"], second["cluster"], second["fromStep"]) == ("NewCluster", 1, 7)
    assert status["restarts"].get("sinceProgress", 0) == 0
    assert len(environment.kuberay.clusters_seen) == 1
    assert cluster is not None
    assert cluster["spec"]["headGroupSpec"]["template"]["spec"]["nodeSelector"] == NODE_SELECTOR
    assert writes_of_operator(api_server, "rayclusters", environment.namespace) == [
        "create",
        "delete",
    ]


def is_of_ray(pod: Manifest) -> bool:
    """Return whether a pod belongs to a RayCluster."""
    return "ray.io/cluster" in pod["metadata"]["labels"]


def writes_of_operator(server: ApiServer, resource: str, namespace: str) -> list[str]:
    """Return the successful write verbs for a kind, without those of the simulated cluster."""
    return [
        each["verb"]
        for each in changes_by_operator(server, namespace)
        if each["objectRef"]["resource"] == resource
    ]


async def is_gone(api: Api, path: str) -> bool:
    return await api.get(path) is None


def time_ahead() -> str:
    """Return a time after the attempt was recorded, in whole seconds like the kubelet's."""
    return (datetime.now(UTC) + timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
