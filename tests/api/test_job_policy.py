"""The chart's `jobPolicy` on a real API server: limits for all jobs."""

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from support.builders.operator.jobs import KNOWN_TINY, make_job, make_raw_job
from support.builders.operator.manifests import make_clustered_job, objects_of
from support.kubernetes.chart_release import Account, Helm, wait_for_policies
from tools.kind.api_server import ApiServer

POLICY = {
    "allowedImages": ["mirror.example.com/raggrpo/"],
    "allowedPriorityClasses": ["research"],
    "allowedTolerationKeys": ["nvidia.com/gpu", "example.com/research"],
    "allowedClaims": ["work", "results"],
    "allowedSecrets": ["wandb"],
    "allowedEndpoints": ["https://rag.example.com/", "http://judge:8000/v1/"],
    "validations": [
        {
            "expression": "object.spec.training.?totalSteps.orValue(0) <= 5000",
            "message": "spec.training.totalSteps: at most 5000 here",
        }
    ],
}


@dataclass(frozen=True)
class Limited:
    """A namespace in which the policy applies."""

    server: ApiServer
    namespace: str
    operator: Account

    def refusal(self, changes: Mapping[str, Any], namespace: str = "") -> str:
        """Return the reason for a job's rejection, or "" if it is admitted."""
        raw = make_raw_job({"metadata": {"name": "small"}, **changes})
        ended = self.server.kubectl(
            "create", "--dry-run=server", "-n", namespace or self.namespace, "-f", "-",
            stdin=json.dumps(raw), check=False,
        )  # fmt: skip
        return ended.stderr


@pytest.fixture(scope="module")
def limited(api_server: ApiServer) -> Iterator[Limited]:
    with api_server.namespace("limited-jobs") as namespace:
        old = make_raw_job({"metadata": {"name": "old"}, "spec.image": "elsewhere/trainer:1"})
        api_server.apply(old, namespace=namespace)
        helm = Helm(api_server, namespace, release="limits")
        values = {"crds.install": False, "trainerImage.repository": "ours/trainer"}
        limits = POLICY | {"allowedNamespaces": [namespace]}
        helm.install_values(values | {f"jobPolicy.{key}": value for key, value in limits.items()})
        account = Account.of(helm)
        wait_for_policies(account)
        limited = Limited(api_server, namespace, account)
        yield limited
        account.http.close()
        helm("uninstall", helm.release)
        deadline = time.monotonic() + 60
        while "ValidatingAdmissionPolicy" in limited.refusal({}, "default"):
            assert time.monotonic() < deadline  # policies take effect with a delay
            time.sleep(0.2)


def make_endpoint(**more: Any) -> dict[str, Any]:
    endpoint = {"name": "kb", "url": "https://rag.example.com/retrieve"} | more
    return {"spec.retrieval": {"mode": "Search", "endpoints": [endpoint]}}


def make_reward(url: str) -> dict[str, Any]:
    return {"spec.reward": {"functions": [{"name": "Http", "url": url}]}}


def make_secret(name: str) -> dict[str, Any]:
    return {"name": "WANDB_API_KEY", "secretKeyRef": {"name": name, "key": "key"}}


def make_authorities(secret: str) -> dict[str, Any]:
    return {"secret": secret}


def make_claim(name: str) -> dict[str, Any]:
    work = {"name": "work", "claimName": "work", "mountPath": "/mnt/runs"}
    return {"spec.volumes": [work, {"name": "more", "claimName": name, "mountPath": "/mnt/more"}]}


def tolerating(**toleration: str) -> dict[str, Any]:
    return {"spec.scheduling": {"tolerations": [toleration]}}


ALLOWED: Mapping[str, dict[str, Any]] = {
    "nothing special": {},
    "image": {"spec.image": "mirror.example.com/raggrpo/trainer:0.1.0"},
    "priority class": {"spec.scheduling": {"priorityClassName": "research"}},
    "toleration": tolerating(key="example.com/research"),
    "claim": make_claim("results"),
    "secret": {"spec.env": [make_secret("wandb"), {"name": "A", "value": "b"}]},
    "pull secret": {"spec.imagePullSecrets": ["wandb"]},
    "secret of authorities": {"spec.caBundle": make_authorities("wandb")},
    "endpoint": make_endpoint(),
    "managed endpoint": make_endpoint(url="", managed={"corpus": "/mnt/runs/corpus.jsonl"}),
    "endpoint that is its prefix": make_endpoint(url="https://rag.example.com"),
    "reward": make_reward("http://judge:8000/v1/score"),
    "expression": {"spec.training.totalSteps": 5000},
}
REFUSED: Mapping[str, tuple[dict[str, Any], str]] = {
    "image": ({"spec.image": "elsewhere/trainer:1"}, "spec.image is not allowed"),
    "image of a longer name": (
        {"spec.image": "mirror.example.com/raggrpo-theirs/trainer:1"},
        "use one that starts with mirror.example.com/raggrpo/",
    ),
    "priority class": (
        {"spec.scheduling": {"priorityClassName": "urgent"}},
        "spec.scheduling.priorityClassName is not allowed: omit it or use research",
    ),
    "toleration": (
        tolerating(key="node-role.kubernetes.io/control-plane"),
        "spec.scheduling.tolerations: every key must be one of",
    ),
    "toleration of everything": (
        tolerating(operator="Exists"),
        "spec.scheduling.tolerations: every key must be one of",
    ),
    "toleration by way of GPUs": (
        {"spec.resources.gpuResourceName": "other.example.com/gpu"},
        "spec.resources.gpuResourceName is also a tolerated taint",
    ),
    "claim": (make_claim("theirs"), "spec.volumes: every claimName must be one of work, results"),
    "secret": ({"spec.env": [make_secret("theirs")]}, "every Secret must be one of wandb"),
    "pull secret": ({"spec.imagePullSecrets": ["theirs"]}, "every Secret must be one of wandb"),
    "secret of authorities": (
        {"spec.caBundle": make_authorities("theirs")}, "every Secret must be one of wandb",
    ),
    "secret of a header": (
        make_endpoint(headers=[make_secret("theirs") | {"name": "Authorization"}]),
        "every header's secretKeyRef.name must be one of wandb",
    ),
    "endpoint": (
        make_endpoint(url="http://169.254.169.254/latest"),
        "spec.retrieval.endpoints: every url must start with https://rag.example.com/",
    ),
    "endpoint of a longer name": (
        make_endpoint(url="https://rag.example.com.evil.example/"),
        "spec.retrieval.endpoints: every url must start with",
    ),
    "reward": (make_reward("http://judge:8000/v2"), "spec.reward.functions: every url must start"),
    "expression": ({"spec.training.totalSteps": 5001}, "spec.training.totalSteps: at most 5000"),
}  # fmt: skip


@pytest.mark.parametrize("changes", ALLOWED.values(), ids=ALLOWED)
def test_job_policy_allows_listed_values(limited: Limited, changes: dict[str, Any]) -> None:
    assert limited.refusal(changes) == ""


@pytest.mark.row("E9")
@pytest.mark.parametrize(("changes", "said"), REFUSED.values(), ids=REFUSED)
def test_job_policy_rejects_unlisted_values_with_field_and_remedy(
    limited: Limited, changes: dict[str, Any], said: str
) -> None:
    assert said in limited.refusal(changes)


def test_job_policy_allows_jobs_only_in_listed_namespaces(limited: Limited) -> None:
    assert "metadata.namespace: jobs may only run in limited-jobs" in limited.refusal({}, "default")


def test_job_policy_applies_to_existing_job_on_spec_change(limited: Limited) -> None:
    patch = ("patch", "rgj", "old", "-n", limited.namespace, "--type=merge", "-p")
    limited.server.kubectl(*patch, '{"metadata": {"labels": {"team": "a"}}}')
    limited.server.write_status("rgj", "old", {"phase": "Pending"}, limited.namespace)
    change = {"spec": {"suspend": True}}
    refused = limited.server.kubectl(*patch, json.dumps(change), check=False).stderr
    assert "spec.image is not allowed" in refused
    fixed = {"spec": {"suspend": True, "image": ""}}
    limited.server.kubectl(*patch, json.dumps(fixed))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image": "elsewhere/trainer:1"}, "jobPolicy.allowedImages"),
        ({"volumes": [make_claim("theirs")["spec.volumes"][1]]}, "jobPolicy.allowedClaims"),
        ({"env": [make_secret("theirs")]}, "jobPolicy.allowedSecrets"),
        ({"imagePullSecrets": ["theirs"]}, "jobPolicy.allowedSecrets"),
        ({"caBundle": make_authorities("theirs")}, "jobPolicy.allowedSecrets"),
        ({"image": "ours/trainer:0.1.0", "caBundle": make_authorities("wandb")}, ""),
        ({"scheduling.priorityClassName": "other"}, "jobPolicy.allowedPriorityClasses"),
        (
            {"scheduling.tolerations": [{"key": "node-role.kubernetes.io/control-plane"}]},
            "jobPolicy.allowedTolerationKeys",
        ),
        ({"image": "ours/trainer:0.1.0"}, ""),
    ],
)
def test_job_policy_applies_to_pods_created_by_operator(
    limited: Limited, changes: dict[str, Any], said: str
) -> None:
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "value": 1}
    limited.server.apply(priority | {"metadata": {"name": "other"}})
    job = make_clustered_job(make_job({"image": "ours/trainer:0.1.0", **changes}), KNOWN_TINY)
    metadata = job.metadata.model_copy(update={"namespace": limited.namespace})
    pod = objects_of(job.model_copy(update={"metadata": metadata}))["preflight"]
    pods = f"/api/v1/namespaces/{limited.namespace}/pods?dryRun=All"
    answer = limited.operator.call("POST", pods, pod)
    assert (answer.status_code, said in answer.text) == (403 if said else 201, True), answer.text
