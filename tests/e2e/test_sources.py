"""Jobs that download from a hub: the sample in an empty namespace, and failures."""

import uuid
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from support.builders.operator.jobs import SAMPLES, changed, make_manifest
from support.processes.waiting import wait_for
from support.servers.hub_program import LARGE_BYTES, LARGE_FILE, RESULT
from support.servers.hub_server import TOKEN
from tools.kind import kind_cluster
from tools.kind.hub import Hub, start_hub
from tools.kind.images import Images
from tools.kind.jobs import condition, has_ended, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_claim
from tools.kind.training_job import CLAIM

pytestmark = pytest.mark.timeout(1200)  # the first test waits for cluster and images

[SAMPLE] = [path for path in SAMPLES if path.stem == "hub"]
PART_BYTES = 32 * 2**20
END_SECONDS = 300
SMALL: dict[str, Any] = {
    "spec.data.trainBatchSize": 4,
    "spec.data.maxPromptLength": 16,
    "spec.data.maxResponseLength": 8,
    "spec.rollout": {"n": 4, "temperature": 1.0},
    "spec.training": {"totalSteps": 2, "learningRate": 1e-3, "precision": "FP32"},
    "spec.resources": {"device": "CPU", "cpu": "100m"},
}
"""Values for the tiny model of the hub on CPUs."""
SHARED: dict[str, Any] = {
    "spec.volumes": [
        {"name": "runs", "mountPath": "/mnt/runs", "claimTemplate": {"size": "1Gi"}},
        {"name": "scratch", "mountPath": "/mnt/scratch", "claimName": "hub-scratch"},
    ],
    "spec.staging": {"path": "/mnt/scratch/staged"},
}
"""Volumes of a job that uses the downloads of the sample."""
SECRET: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "hub"},
    "stringData": {"token": TOKEN},
}
WITH_TOKEN = [{"name": "HF_TOKEN", "secretKeyRef": {"name": "hub", "key": "token"}}]

FAILURES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "revision": (
        "hf://Qwen/Qwen3-0.6B@v9",
        "UnknownRevision",
        ("hf://Qwen/Qwen3-0.6B has no revision v9", "specify a branch, tag or commit"),
    ),
    "token": ("hf://org/private", "TokenMissing", ("hf://org/private", "HF_TOKEN")),
    "gated": ("hf://org/gated", "GatedModel", ("hf://org/gated is gated; accept its conditions",)),
    "checksum": (
        "hf://org/damaged",
        "ChecksumMismatch",
        ("damaged.safetensors differs from its checksum", "start again if the download was"),
    ),
    "disk": ("hf://org/huge", "DiskFull", ("hf://org/huge needs", "request more storage")),
}
"""Source, reason and words of the message, by the name of the job."""
UNKNOWN_SCHEME = ("scheme", "ftp://org/name")


@pytest.fixture(scope="module")
def hub(cluster: Kubernetes, operator: Images, model: Any) -> Iterator[Hub]:
    """The hub, in a namespace without jobs."""
    with cluster.namespace(f"e2e-hub-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        yield start_hub(cluster, name, operator.operator, model)


@pytest.fixture(scope="module")
def downloads(cluster: Kubernetes, hub: Hub) -> Iterator[str]:
    """A namespace in which all other downloads have started."""
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        cluster.apply(make_claim(CLAIM), SECRET, namespace=name)
        sources = {job: source for job, (source, _, _) in FAILURES.items()}
        sources |= {"large": "hf://org/large", UNKNOWN_SCHEME[0]: UNKNOWN_SCHEME[1]}
        cluster.apply(*(make_download(hub, *each) for each in sources.items()), namespace=name)
        yield name


@pytest.fixture(scope="module")
def trained(
    cluster: Kubernetes, operator: Images, hub: Hub, downloads: str
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The namespace and the final status of the sample."""
    assert downloads  # start in parallel
    with cluster.namespace(f"e2e-{uuid.uuid4().hex[:8]}", restricted=True) as name:
        cluster.apply(SECRET, make_sample_job(hub), namespace=name)
        yield name, wait_for_status(cluster, name, "hub", is_pushed, END_SECONDS)


def make_sample_job(hub: Hub) -> dict[str, Any]:
    """Return the sample, which also pushes its result."""
    env = [*hub.settings["spec.env"], *WITH_TOKEN, {"name": "HF_HUB_DISABLE_XET", "value": "1"}]
    push = {"spec.output": {"push": f"hf://{RESULT}"}, "spec.env": env}
    return changed(yaml.safe_load(SAMPLE.read_text()), SMALL | hub.settings | push)


def make_download(hub: Hub, name: str, source: str) -> dict[str, Any]:
    """Return a job whose model is `source`; only that of the gated model has a token."""
    volume = {"name": "work", "claimName": CLAIM, "mountPath": "/mnt/runs"}
    job = make_manifest(
        name,
        {
            "model": {"source": source},
            "data": {"sources": ["hf://datasets/google-research-datasets/nq_open#split=train"]},
            "checkpoint": {"path": f"/mnt/runs/{name}"},
            "volumes": [volume],
        },
    )
    env = hub.settings["spec.env"] + (WITH_TOKEN if name == "gated" else [])
    return changed(job, SMALL | hub.settings | {"spec.env": env})


def is_staged(status: Mapping[str, Any]) -> bool:
    return condition(status, "SourcesStaged")["status"] == "True" or has_ended(status)


def is_pushed(status: Mapping[str, Any]) -> bool:
    return condition(status, "ResultPushed")["status"] != "Unknown" or (
        has_ended(status) and status["phase"] != "Succeeded"
    )


def staged_paths(status: Mapping[str, Any]) -> list[str]:
    return [each["path"] for each in status["staging"]["sources"]]


def claims(cluster: Kubernetes, namespace: str) -> list[str]:
    items = cluster.read("persistentvolumeclaims", "-n", namespace)["items"]
    return sorted(
        each["metadata"]["name"] for each in items if "deletionTimestamp" not in each["metadata"]
    )


@pytest.mark.row("F3")
def test_killed_download_continues_with_missing_parts(
    cluster: Kubernetes, hub: Hub, downloads: str
) -> None:
    wait_for(lambda: hub.sent().get(LARGE_FILE, 0) >= LARGE_BYTES // 2, END_SECONDS)
    labels = ("-l", "raggrpo.io/job-name=large,raggrpo.io/role=staging", "-n", downloads)
    cluster.kubectl("delete", "pods", *labels, "--grace-period=0", "--force")
    hub.release()

    status = wait_for_status(cluster, downloads, "large", is_staged, END_SECONDS)

    assert condition(status, "SourcesStaged")["status"] == "True", status
    assert LARGE_BYTES <= hub.sent()[LARGE_FILE] < LARGE_BYTES + PART_BYTES
    cluster.kubectl("delete", "rgj", "large", "-n", downloads)


@pytest.mark.parametrize("name", list(FAILURES))
def test_failed_download_reports_field_and_remedy(
    cluster: Kubernetes, downloads: str, name: str
) -> None:
    _, reason, words = FAILURES[name]

    status = wait_for_status(cluster, downloads, name, has_ended, END_SECONDS)

    staged, failed = condition(status, "SourcesStaged"), condition(status, "Failed")
    assert (status["phase"], failed["reason"], staged["reason"]) == (
        "Failed", "StagingFailed", reason
    )  # fmt: skip
    for word in ("spec.model.source", *words):
        assert word in failed["message"]


def test_unknown_scheme_is_reported_with_known_schemes(cluster: Kubernetes, downloads: str) -> None:
    status = wait_for_status(cluster, downloads, UNKNOWN_SCHEME[0], has_ended, END_SECONDS)
    message = condition(status, "Accepted")["message"]
    assert status["phase"] == "Invalid"
    assert "spec.model.source" in message
    assert "s3://bucket/key" in message


def test_failed_downloads_create_no_preflight_pods_and_ray_clusters(
    cluster: Kubernetes, downloads: str
) -> None:
    for name in (*FAILURES, UNKNOWN_SCHEME[0]):
        wait_for_status(cluster, downloads, name, has_ended, END_SECONDS)
    created = [
        (event["objectRef"]["resource"], event["objectRef"].get("name", ""))
        for event in kind_cluster.audit_events()
        if event["verb"] == "create" and event.get("objectRef", {}).get("namespace") == downloads
    ]
    assert [each for each in created if each[0] == "rayclusters"] == []
    of_preflight = [name for kind, name in created if kind == "pods" and "-preflight-" in name]
    assert [name for name in of_preflight if not name.startswith("large-")] == []


@pytest.mark.row("F3")
def test_sample_trains_in_empty_namespace(
    cluster: Kubernetes, trained: tuple[str, Mapping[str, Any]]
) -> None:
    namespace, status = trained
    assert (status["phase"], status["progress"]["step"]) == ("Succeeded", 2), status
    assert [len(each["revision"]) for each in status["staging"]["sources"]] == [40, 40]
    assert claims(cluster, namespace) == ["hub-runs", "hub-scratch"]


def test_result_is_pushed_to_new_repository(
    hub: Hub, trained: tuple[str, Mapping[str, Any]]
) -> None:
    _, status = trained
    assert condition(status, "ResultPushed")["status"] == "True", status
    assert {"model.safetensors", "README.md", "report.html", "summary.json"} <= set(hub.result())


@pytest.mark.row("F3")
def test_second_job_uses_staged_files(
    cluster: Kubernetes, hub: Hub, trained: tuple[str, Mapping[str, Any]]
) -> None:
    namespace, first = trained
    before = hub.sent()
    job = changed(make_sample_job(hub), {"metadata.name": "second"} | SHARED)
    cluster.apply(job, namespace=namespace)

    status = wait_for_status(cluster, namespace, "second", is_staged, END_SECONDS)

    assert staged_paths(status) == staged_paths(first)
    downloaded = {name: size - before.get(name, 0) for name, size in hub.sent().items()}
    assert downloaded["model.safetensors"] == downloaded["train.jsonl"] == 0
    cluster.kubectl("delete", "rgj", "second", "-n", namespace)


def test_claim_of_checkpoints_is_kept_when_job_is_deleted(
    cluster: Kubernetes, trained: tuple[str, Mapping[str, Any]]
) -> None:
    namespace, _ = trained
    cluster.kubectl("delete", "rgj", "hub", "-n", namespace)
    wait_for(lambda: "hub-scratch" not in claims(cluster, namespace), 60)
    assert "hub-runs" in claims(cluster, namespace)
