import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.job_status import Pinned
from raggrpo_api.status.sizing import PodRole, PodSizing
from raggrpo_api.trainer.preflight import Facts
from raggrpo_cli.manifests_text import as_yaml
from raggrpo_operator.core.lifecycle.actions import PodPlan
from raggrpo_operator.core.lifecycle.before_attempt.launch import create_cluster
from raggrpo_operator.core.manifests.policy_selectors import job_pods
from raggrpo_operator.core.manifests.ray_cluster import render_ray_cluster
from raggrpo_operator.core.manifests.token_secret import (
    TokenRef,
    job_token,
    render_token_secret,
    secret_name,
)
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from support.builders.operator.jobs import (
    KNOWN_7B,
    KNOWN_TINY,
    SAMPLES,
    make_job,
    make_raw_job,
    make_sample,
)
from support.builders.operator.manifests import (
    SETTINGS,
    UID,
    all_manifests,
    make_clustered_job,
    objects_of,
    pod_templates,
    sizing_of,
)
from support.kubernetes.kubernetes_schemas import violations_of_schemas
from support.kubernetes.pod_security import violations_of_restricted

Golden = Callable[[str, str], None]
EACH_SAMPLE = pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)

NAMES = st.from_regex(r"[a-z]([-a-z0-9]{0,42}[a-z0-9])?", fullmatch=True) | st.sampled_from(
    ["a" * 44, "b" * 44, "c" * 43]
)
MEMORIES = st.sampled_from(["", "512Mi", "7Gi", "1.5Gi"])
REFERENCES = st.fixed_dictionaries({"name": NAMES, "key": NAMES})
MANAGED = st.fixed_dictionaries({"corpus": st.just("/mnt/runs/corpus.jsonl"), "memory": MEMORIES})
ENDPOINTS = st.lists(
    st.fixed_dictionaries(
        {
            "name": NAMES,
            "managed": MANAGED,
            "headers": st.lists(
                st.fixed_dictionaries({"name": st.just("X-Key"), "secretKeyRef": REFERENCES}),
                max_size=2,
            ),
        }
    ),
    max_size=3,
    unique_by=lambda endpoint: str(endpoint["name"]),
)
ENV = st.lists(
    st.one_of(
        st.fixed_dictionaries({"name": st.sampled_from(["HOME", "A", "RAY_DEDUP_LOGS"])}),
        st.fixed_dictionaries({"name": st.just("B"), "value": st.text("ab{}$", max_size=5)}),
        st.fixed_dictionaries({"name": st.just("C"), "secretKeyRef": REFERENCES}),
    ),
    max_size=4,
    unique_by=lambda variable: str(variable["name"]),
)
SPECS = st.fixed_dictionaries(
    {
        "resources": st.fixed_dictionaries(
            {
                "device": st.sampled_from(["GPU", "CPU"]),
                "nodes": st.integers(1, 4),
                "gpusPerNode": st.integers(1, 8),
                "ranks": st.integers(1, 4),
                "placement": st.sampled_from(["Colocated", "Disaggregated"]),
                "rolloutGpus": st.integers(0, 8),
                "gpuResourceName": st.sampled_from(["nvidia.com/gpu", "habana.ai/gaudi"]),
                "cpu": st.sampled_from(["", "200m", "8"]),
                "memory": st.sampled_from(["", "8Gi", "512Gi"]),
                "shmSize": st.sampled_from(["", "1Gi"]),
            }
        ),
        "rollout.tensorParallelSize": st.integers(1, 8),
        "data.trainBatchSize": st.integers(1, 4096),
        "image": st.sampled_from(["", "other:1"]),
        "imagePullSecrets": st.lists(NAMES, max_size=2, unique=True),
        "volumes": st.lists(
            st.builds(
                lambda name, claim, read_only: {
                    "name": name,
                    "claimName": claim,
                    "mountPath": f"/mnt/{name}",
                    "readOnly": read_only,
                },
                NAMES,
                NAMES,
                st.booleans(),
            ),
            max_size=3,
            unique_by=lambda volume: volume["name"],
        ),
        "env": ENV,
        "retrieval.endpoints": ENDPOINTS,
        "reward.codeFrom": st.sampled_from([{}, {"configMap": "code"}]),
        "scheduling": st.fixed_dictionaries(
            {
                "queueName": st.sampled_from(["", "research"]),
                "priorityClassName": st.sampled_from(["", "high"]),
                "nodeSelector": st.sampled_from([{}, {"zone": "a"}]),
                "tolerations": st.sampled_from([[], [{"key": "gpu"}], [{"key": "nvidia.com/gpu"}]]),
            }
        ),
    }
)


@st.composite
def jobs(draw: st.DrawFn) -> RagGrpoJob:
    """Strategy of jobs that parse; the rules would reject some of them."""
    changes = {f"spec.{place}": value for place, value in draw(SPECS).items()}
    job = parse_job(make_raw_job(changes | {"metadata.name": draw(NAMES)}))
    assert isinstance(job, RagGrpoJob), job
    return make_clustered_job(job, draw(st.sampled_from([Facts(), KNOWN_TINY, KNOWN_7B])))


def container_of(template: dict[str, Any]) -> dict[str, Any]:
    [container] = template["spec"]["containers"]
    return dict(container)


def pods_with_sizing(job: RagGrpoJob) -> list[tuple[dict[str, Any], PodSizing]]:
    pods = []
    sizes = {(each.role, each.name): each for each in sizing_of(job).pods}
    for manifest in all_manifests(job).values():
        for template in pod_templates(manifest):
            labels = template["metadata"]["labels"]
            role = PodRole(labels[names.LABEL_ROLE])
            key = (role, labels.get(names.LABEL_RETRIEVER, ""))
            pods.append((template, sizes[key]))
    return pods


@pytest.mark.row("B3")
@EACH_SAMPLE
def test_manifests_of_samples_match_golden_files(path: Path, golden: Golden) -> None:
    job = make_clustered_job(make_sample(path), KNOWN_7B)

    for name, manifest in all_manifests(job).items():
        golden(f"{path.stem}/{name}.yaml", as_yaml(manifest))


@EACH_SAMPLE
def test_manifests_match_kubernetes_schemas(path: Path) -> None:
    job = make_clustered_job(make_sample(path), KNOWN_7B)

    assert violations_of_schemas(objects_of(job).values()) == []


@pytest.mark.parametrize(
    ("resources", "cpus"),
    [
        ({"gpusPerNode": 8}, ["18"]),
        ({"device": "CPU", "ranks": 2}, ["5"]),
        ({"gpusPerNode": 4, "placement": "Disaggregated", "rolloutGpus": 4}, ["10", "3"]),
    ],
)
def test_ray_cpus_cover_ranks_engines_and_spares(
    resources: dict[str, Any], cpus: list[str]
) -> None:
    manifests = all_manifests(make_clustered_job(make_job({"resources": resources})))
    groups = manifests["raycluster"]["spec"]["workerGroupSpecs"]
    assert [each["rayStartParams"]["num-cpus"] for each in groups] == cpus


def test_volume_mounts_reference_volumes_and_reward_code_is_restricted() -> None:
    kb = {"name": "kb", "managed": {"corpus": "/mnt/runs/c.jsonl"}}
    retrieval = {"mode": "Prompt", "endpoints": [kb]}
    job = make_job({"retrieval": retrieval, "reward.codeFrom": {"configMap": "code"}})
    with_code = set()
    for manifest in all_manifests(make_clustered_job(job)).values():
        for template in pod_templates(manifest) if "spec" in manifest else ():
            mounted = {each["name"] for each in container_of(template)["volumeMounts"]}
            assert mounted == {each["name"] for each in template["spec"]["volumes"]}
            for mount in container_of(template)["volumeMounts"]:
                if mount["name"] == "reward-code":
                    assert mount["readOnly"] is True
                    with_code.add(template["metadata"]["labels"][names.LABEL_ROLE])
    assert with_code == {PodRole.HEAD, PodRole.PREFLIGHT}


def test_retriever_service_selects_deployment() -> None:
    kb = {"name": "kb", "managed": {"corpus": "/mnt/runs/c.jsonl"}}
    job = make_job({"retrieval": {"mode": "Prompt", "endpoints": [kb]}})
    manifests = all_manifests(make_clustered_job(job))

    assert list(manifests) == [
        "networkpolicy",
        "preflight",
        "retriever-kb-service",
        "retriever-kb",
        "raycluster",
        "configmap",
    ]
    service, deployment = manifests["retriever-kb-service"], manifests["retriever-kb"]
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"].items() <= labels.items()
    assert service["spec"]["selector"] == deployment["spec"]["selector"]["matchLabels"]
    [port] = service["spec"]["ports"]
    [served] = container_of(deployment["spec"]["template"])["ports"]
    assert (port["targetPort"], port["port"]) == (served["name"], served["containerPort"])


@settings(max_examples=40)
@given(job=jobs())
def test_pods_are_restricted_without_service_account_token(job: RagGrpoJob) -> None:
    for template, _ in pods_with_sizing(job):
        assert violations_of_restricted(template["spec"]) == []
        assert template["spec"]["automountServiceAccountToken"] is False
        assert container_of(template)["securityContext"]["readOnlyRootFilesystem"] is True


@pytest.mark.row("B5")
@settings(max_examples=40)
@given(job=jobs())
def test_resource_requests_match_sizing_and_memory_limit_equals_request(job: RagGrpoJob) -> None:
    for template, sizing in pods_with_sizing(job):
        resources = container_of(template)["resources"]
        gpus = {job.spec.resources.gpu_resource_name: str(sizing.gpus)} if sizing.gpus else {}
        assert resources["requests"] == {"cpu": sizing.cpu, "memory": sizing.memory} | gpus
        assert resources["limits"] == {"memory": sizing.memory} | gpus


@settings(max_examples=40)
@given(job=jobs())
def test_objects_have_owner_and_job_labels(job: RagGrpoJob) -> None:
    for manifest in all_manifests(job).values():
        metadata = manifest["metadata"]
        [owner] = metadata["ownerReferences"]
        assert owner["uid"] == UID
        assert owner["controller"] is True
        assert (
            owner["blockOwnerDeletion"] is False
        )  # otherwise foreground deletion of the job would block
        assert metadata["namespace"] == "research"
        assert metadata["labels"][names.LABEL_JOB] == job.metadata.name
        assert metadata["labels"][names.LABEL_MANAGED_BY] == "raggrpo-operator"
        assert "finalizers" not in metadata


@settings(max_examples=40)
@given(job=jobs())
def test_names_and_labels_fit_kubernetes_limits(job: RagGrpoJob) -> None:
    for manifest in all_manifests(job).values():
        assert len(manifest["metadata"]["name"]) <= names.MAX_CHILD_NAME
        labels = [manifest["metadata"]["labels"]]
        labels += [template["metadata"]["labels"] for template in pod_templates(manifest)]
        assert all(len(value) <= 63 for each in labels for value in each.values())


@settings(max_examples=40)
@given(job=jobs())
def test_lists_merged_by_key_have_unique_keys(job: RagGrpoJob) -> None:
    for template, _ in pods_with_sizing(job):
        container = container_of(template)
        for items, key in (
            (container["env"], "name"),
            (container["volumeMounts"], "mountPath"),
            (template["spec"]["volumes"], "name"),
            (container.get("ports", []), "name"),
        ):
            keys = [item[key] for item in items]
            assert len(keys) == len(set(keys))
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted == {volume["name"] for volume in template["spec"]["volumes"]}


@pytest.mark.row("A5")
@settings(max_examples=40)
@given(job=jobs())
def test_shared_memory_volume_fits_object_store(job: RagGrpoJob) -> None:
    for template, sizing in pods_with_sizing(job):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        if not sizing.shm:
            assert "shared-mem" not in volumes
            continue
        assert volumes["shared-mem"]["emptyDir"] == {"medium": "Memory", "sizeLimit": sizing.shm}
        mounts = {m["mountPath"]: m["name"] for m in container_of(template)["volumeMounts"]}
        assert mounts["/dev/shm"] == "shared-mem"
        assert sizing.object_store <= 0.95 * parse_quantity(sizing.shm)
        if not job.spec.resources.memory:
            assert parse_quantity(sizing.shm) < parse_quantity(sizing.memory)


@settings(max_examples=40)
@given(job=jobs())
def test_ray_resources_fit_ranks_and_engines(job: RagGrpoJob) -> None:
    cluster = all_manifests(job)["raycluster"]["spec"]

    world = trainer_config(job, resolve(job), number=1).world
    head = cluster["headGroupSpec"]["rayStartParams"]
    assert (head["num-cpus"], head["num-gpus"]) == ("0", "0")
    for group, sizing in zip(
        cluster["workerGroupSpecs"],
        [s for s in sizing_of(job).pods if s.role in (PodRole.TRAINER, PodRole.ROLLOUT)],
        strict=True,
    ):
        params = group["rayStartParams"]
        assert group["groupName"] == sizing.role
        assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
        assert params["object-store-memory"] == str(sizing.object_store)
        assert params["num-gpus"] == str(sizing.gpus)
        if sizing.role is PodRole.TRAINER:
            per_pod = -(-world.num_ranks // group["replicas"])
            assert int(params["num-cpus"]) >= per_pod * world.cpus_per_rank + 1
        else:
            assert group["replicas"] == world.num_engines
            assert sizing.gpus == world.gpus_per_engine


@pytest.mark.row("B22")
@settings(max_examples=40)
@given(job=jobs())
def test_queue_label_is_set_on_ray_cluster_only(job: RagGrpoJob) -> None:
    queue = job.spec.scheduling.queue_name
    for manifest in all_manifests(job).values():
        own = manifest["metadata"]["labels"].get("kueue.x-k8s.io/queue-name", "")
        assert own == (queue if manifest["kind"] == "RayCluster" else "")
        for template in pod_templates(manifest):
            assert "kueue.x-k8s.io/queue-name" not in template["metadata"]["labels"]


@settings(max_examples=40)
@given(job=jobs())
def test_ray_token_is_required(job: RagGrpoJob) -> None:
    cluster = all_manifests(job)["raycluster"]

    auth = cluster["spec"]["authOptions"]
    assert auth == {"mode": "token", "secretName": f"{job.metadata.name}-token-{'0' * 16}"}
    for template in pod_templates(cluster):
        assert "RAY_AUTH_MODE" not in {each["name"] for each in container_of(template)["env"]}


@pytest.mark.row("B24")
def test_node_avoidance_is_preferred_not_required() -> None:
    job = make_clustered_job(make_job())
    plan = PodPlan(job.spec, "trainer:1", size(job.spec))
    action = create_cluster(plan, job.status, avoided_nodes=("gpu-7", "gpu-9"))

    cluster = render_ray_cluster(job.metadata, SETTINGS, action, TokenRef("token", "k1"))

    terms = [
        {
            "weight": 100,
            "preference": {
                "matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
            },
        }
        for node in ("gpu-7", "gpu-9")
    ]
    for template in pod_templates(cluster):
        # A required affinity could leave the job without a node.
        assert template["spec"]["affinity"] == {
            "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": terms}
        }


def test_ray_token_is_derived_from_uid_and_installation_key() -> None:
    job = make_clustered_job(make_job())
    token = job_token(b"key", UID)

    secret = render_token_secret(job.metadata, name="small-token-1", token=token)

    assert secret["immutable"] is True
    assert secret["data"]["auth_token"] != token  # base64
    assert secret["metadata"]["name"] == "small-token-1"
    assert len({token, job_token(b"key", UID[:-1]), job_token(b"kez", UID)}) == 3
    # HMAC-SHA256 of a published test vector (RFC 4231, case 2).
    assert job_token(b"Jefe", "what do ya want for nothing?").startswith("5bdcc146bf60754e")


def test_token_secret_name_depends_on_installation_key() -> None:
    job = make_clustered_job(make_job()).metadata
    other = job.model_copy(update={"uid": UID[:-1]})
    secret_names = [secret_name(key, of) for key in (b"key", b"kez") for of in (job, other)]

    assert len(set(secret_names)) == 4
    assert all(re.fullmatch("small-token-[0-9a-f]{16}", name) for name in secret_names)
    assert not {name[-16:] for name in secret_names} & {job_token(b"key", UID)[:16]}


def test_secrets_of_services_are_passed_to_driver_and_preflight_only() -> None:
    ref, key = {"name": "rag", "key": "token"}, {"name": "models", "key": "token"}
    job = make_clustered_job(
        make_job(
            {
                "env": [{"name": "WANDB_API_KEY", "secretKeyRef": {"name": "wandb", "key": "key"}}],
                "retrieval.endpoints": [
                    {
                        "name": "kb",
                        "managed": {"corpus": "/mnt/runs/corpus.jsonl"},
                        "headers": [{"name": "Authorization", "secretKeyRef": ref}],
                    }
                ],
                "rollout.agent": {
                    "python": "app:answer",
                    "forward": [{"models": ["j"], "url": "http://j/v1", "apiKeySecret": key}],
                },
            }
        )
    )
    secrets = {
        template["metadata"]["labels"][names.LABEL_ROLE]: {
            each["name"]
            for each in container_of(template)["env"]
            if "secretKeyRef" in each.get("valueFrom", {})
        }
        for template, _ in pods_with_sizing(job)
    }

    both = {"WANDB_API_KEY", "RAGGRPO_SECRET_RAG_TOKEN", "RAGGRPO_SECRET_MODELS_TOKEN"}
    assert secrets == {
        "head": both,
        "preflight": both,
        "trainer": {"WANDB_API_KEY"},
        "retriever": set(),
    }


def test_job_env_overrides_defaults() -> None:
    job = make_clustered_job(make_job({"env": [{"name": "RAY_DEDUP_LOGS", "value": "1"}]}))
    [head, _] = pod_templates(all_manifests(job)["raycluster"])

    env = {each["name"]: each.get("value") for each in container_of(head)["env"]}
    assert env["RAY_DEDUP_LOGS"] == "1"
    assert env["RAY_JOB_STOP_WAIT_TIME_S"] == "30"


def test_grace_period_exceeds_pre_stop_hook_timeout() -> None:
    job = make_clustered_job(make_job())
    for template in pod_templates(all_manifests(job)["raycluster"]):
        command = container_of(template)["lifecycle"]["preStop"]["exec"]["command"][-1]
        assert " --seconds 30 " in command
        assert template["spec"]["terminationGracePeriodSeconds"] > 30


def test_reward_code_is_mounted_in_driver_and_preflight_only() -> None:
    job = make_clustered_job(make_job({"reward.codeFrom": {"configMap": "tone"}}))
    roles = set()
    for template, _ in pods_with_sizing(job):
        volumes = {volume["name"]: volume for volume in template["spec"]["volumes"]}
        if "reward-code" in volumes:
            assert volumes["reward-code"]["configMap"] == {"name": "tone"}
            env = {each["name"]: each.get("value") for each in container_of(template)["env"]}
            assert env["PYTHONPATH"] == "/opt/raggrpo/reward-code"
            roles.add(template["metadata"]["labels"][names.LABEL_ROLE])
    assert roles == {"head", "preflight"}


def test_image_is_taken_from_job_then_pinned_then_operator_default() -> None:
    def image(job: RagGrpoJob) -> str:
        return str(all_manifests(job)["preflight"]["spec"]["containers"][0]["image"])

    plain, own = make_clustered_job(make_job()), make_clustered_job(make_job({"image": "own:1"}))
    pinned = Pinned(image="own@sha256:1", ray_version="2.59.0")
    status = replace(plain.status, pinned=pinned)
    later, fixed = (job.model_copy(update={"status": status}) for job in (plain, own))
    assert image(plain) == SETTINGS.trainer_image
    assert image(own) == "own:1"
    assert image(later) == "own@sha256:1"
    assert image(fixed) == "own:1"
    assert all_manifests(later)["raycluster"]["spec"]["rayVersion"] == "2.59.0"


@pytest.mark.row("C13")
def test_ray_version_matches_image() -> None:
    plain = make_clustered_job(make_job())
    read = plain.status.preflight.facts.model_copy(update={"ray_version": "2.61.1"})
    status = replace(plain.status, preflight=replace(plain.status.preflight, facts=read))
    other = plain.model_copy(update={"status": status})
    assert all_manifests(other)["raycluster"]["spec"]["rayVersion"] == "2.61.1"


USUAL_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("changes", "tolerating"),
    [
        ({}, {"trainer"}),
        ({"scheduling": {"nodeSelector": {"gpu": "h100"}}}, {"head", "trainer", "preflight"}),
        ({"resources.device": "CPU", "scheduling": {"nodeSelector": {"zone": "a"}}}, set()),
    ],
)
def test_gpu_taint_is_tolerated_by_gpu_pods_and_pods_with_node_selector(
    changes: dict[str, Any], tolerating: set[str]
) -> None:
    job = make_clustered_job(make_job(changes))

    actual = {
        template["metadata"]["labels"][names.LABEL_ROLE]
        for template, _ in pods_with_sizing(job)
        if USUAL_TAINT in template["spec"].get("tolerations", [])
    }
    assert actual == tolerating


def test_network_policy_admits_job_operator_and_scrapers() -> None:
    job = make_clustered_job(make_job())
    own, operator, scrapers = all_manifests(job)["networkpolicy"]["spec"]["ingress"]

    # No namespaceSelector: pods of this name in this namespace.
    assert own == {"from": [{"podSelector": job_pods(job.metadata)}]}
    assert [port["port"] for port in operator["ports"]] == [8265, 8090]
    namespace = operator["from"][0]["namespaceSelector"]["matchLabels"]
    assert namespace == {"kubernetes.io/metadata.name": "raggrpo-system"}
    assert [port["port"] for port in scrapers["ports"]] == [8090]


@pytest.mark.row("E11")
def test_url_queries_are_not_stored_in_objects() -> None:
    kb, judge = "http://kb:8000/retrieve?tenant=c4n4ry", "http://judge:8000/score?of=c4n4ry"
    endpoint = {
        "name": "kb",
        "url": kb,
        "extraBody": {"callback": "see http://me:8000/done?by=c4n4ry now"},
        "headers": [{"name": "Referer", "value": "http://me:8000/#c4n4ry"}],
    }
    job = make_clustered_job(
        make_job(
            {
                "retrieval": {"mode": "Prompt", "endpoints": [endpoint]},
                "reward.functions": [{"name": "Http", "url": judge}],
            }
        )
    )
    config = trainer_config(job, resolve(job), number=1)
    record = all_manifests(job)["configmap"]["data"]["config.json"]

    assert "c4n4ry" not in record
    assert "http://kb:8000/retrieve" in record
    assert "http://judge:8000/score" in record
    assert json.loads(record)["attempt"] == json.loads(config.to_json())["attempt"]
    assert "see http://me:8000/done now" in record
    assert config.to_json().count("c4n4ry") == 4


@pytest.mark.row("E11")
def test_endpoint_headers_and_bodies_are_not_stored_in_objects() -> None:
    """This applies even to jobs that were admitted before a rule detected such secrets."""
    kb = {
        "name": "kb",
        "url": "http://kb:8000/retrieve",
        "headers": [{"name": "X-Tenant", "value": "c4n4ry"}],
        "extraBody": {
            "tenant_id": "t1",
            "dbPass": "c4n4ry",
            "callback": "see http://h/x?of=c4n4ry",
            "store": "Server=h;Password=c4n4ry",
        },
    }
    search = {
        "name": "search",
        "url": "http://search:9200/_search",
        "protocol": "Http",
        "role": "Actor",
        "body": {"query": [{"clientSecret": "c4n4ry"}, "Server=h;Password=c4n4ry", "{question}"]},
    }
    judge = {
        "model": "grader",
        "prompt": "{completion}",
        "headers": [{"name": "X-Tenant", "value": "c4n4ry"}],
        "extraBody": {"metadata": {"apiKey": "c4n4ry", "top_p": 1}},
    }
    term = {"name": "Judge", "url": "http://grader:8000/hooks/c4n4ry", "judge": judge}
    endpoints = {"mode": "Prompt", "endpoints": [kb, search]}
    job = make_clustered_job(make_job({"retrieval": endpoints, "reward.functions": [term]}))
    config = trainer_config(job, resolve(job), number=1)
    record = all_manifests(job)["configmap"]["data"]["config.json"]

    assert config.to_json().count("c4n4ry") == 9
    assert "c4n4ry" not in record
    shown, searched = json.loads(record)["retrieval"]["endpoints"]
    assert searched["body"] == {"query": [{"clientSecret": "(hidden)"}, "(hidden)", "{question}"]}
    [graded] = json.loads(record)["reward"]["functions"]
    assert graded["judge"]["extraBody"] == {"metadata": {"apiKey": "(hidden)", "top_p": 1}}
    assert graded["judge"]["headers"][0]["value"] == "(hidden)"
    assert graded["url"] == "http://grader:8000/hooks/(hidden)"
    assert shown["extraBody"] == {
        "tenant_id": "t1",
        "dbPass": "(hidden)",
        "callback": "see http://h/x",
        "store": "(hidden)",
    }
    [header] = shown["headers"]
    assert (header["name"], header["value"]) == ("X-Tenant", "(hidden)")


DENSE = {"corpus": "/mnt/runs/c.jsonl", "index": "Dense", "embedding": {"path": "/mnt/runs/e5"}}


@pytest.mark.row("D8")
@pytest.mark.parametrize(
    ("given", "writable"),
    [
        ({"corpus": "/mnt/runs/c.jsonl"}, []),
        (DENSE, [("/mnt/runs/demo/indexes", "demo/indexes")]),
        (DENSE | {"indexPath": "/mnt/runs/shared/i/"}, [("/mnt/runs/shared/i", "shared/i")]),
    ],
)
def test_retriever_mounts_only_index_writable(
    given: dict[str, Any], writable: list[tuple[str, str]]
) -> None:
    changes = {
        "retrieval": {"mode": "Prompt", "endpoints": [{"name": "kb", "managed": given}]},
        "checkpoint.path": "/mnt/runs/demo",
        "volumes": [{"name": "runs", "claimName": "runs", "mountPath": "/mnt/runs"}],
    }
    job = make_clustered_job(make_job(changes), KNOWN_TINY)
    container = container_of(all_manifests(job)["retriever-kb"]["spec"]["template"])

    of_claim = [each for each in container["volumeMounts"] if each["name"] == "claim-runs"]
    assert of_claim[0] == {"name": "claim-runs", "mountPath": "/mnt/runs", "readOnly": True}
    assert [(each["mountPath"], each["subPath"]) for each in of_claim[1:]] == writable
    assert not any(each.get("readOnly") for each in of_claim[1:])
