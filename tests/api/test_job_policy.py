"""The chart's `jobPolicy` on a real API server: limits for all jobs."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings

from raggrpo_api.fields.reach import HeaderName, SecretName, Server
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_operator.core.spec.marked_fields import marked_places
from raggrpo_operator.core.spec.parse import parse_job
from support.builders.operator.jobs import KNOWN_TINY, make_job, make_raw_job
from support.builders.operator.manifests import make_clustered_job, objects_of
from support.kubernetes.chart_release import Account, Helm, wait_for_policies
from support.kubernetes.job_policy import JobPolicy, changes
from tools.kind.api_server import ApiServer

POLICY: dict[str, Any] = {
    "allowedImages": ["mirror.example.com/raggrpo/"],
    "allowedPriorityClasses": ["research"],
    "allowedTolerationKeys": ["nvidia.com/gpu", "example.com/research"],
    "allowedClaims": ["work", "results", "small-results", "small-runs", "small-scratch"],
    "allowedSecrets": ["wandb"],
    "allowedEndpoints": ["https://rag.example.com/", "http://judge:8000/v1/", "s3://ours/"],
    "validations": [
        {
            "expression": "object.spec.training.?totalSteps.orValue(0) <= 5000",
            "message": "spec.training.totalSteps: at most 5000 here",
        }
    ],
}

MODEL = JobPolicy(tuple(POLICY["allowedEndpoints"]), tuple(POLICY["allowedSecrets"]))
"""What `POLICY` allows, as the property test of rendered objects assumes."""


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


def make_agent(url: str) -> dict[str, Any]:
    admitted = {"namespace": "apps", "podSelector": "app=support"}
    agent = {"type": "Http", "url": url, "identify": "Trace", "allowFrom": admitted}
    return {"spec.rollout.agent": agent}


def make_container(**values: Any) -> dict[str, Any]:
    container = {"image": "mirror.example.com/raggrpo/app:1"} | values
    return {
        "spec.rollout.agent": {"type": "Container", "identify": "Trace", "container": container}
    }


def make_container_env(**values: Any) -> dict[str, Any]:
    return make_container(env=[{"name": "A"} | values])


def make_forward(url: str, secret: str = "wandb") -> dict[str, Any]:
    key = {"name": secret, "key": "key"}
    forward = {"models": ["judge"], "url": url, "apiKeySecret": key}
    return {"spec.rollout.agent": {"python": "app:answer", "forward": [forward]}}


def make_judge(secret: str, **header: Any) -> dict[str, Any]:
    headers = [{"name": "Authorization", "secretKeyRef": {"name": secret, "key": "key"}} | header]
    judge = {"model": "m", "prompt": "Grade {completion}.", "headers": headers}
    url = "http://judge:8000/v1/chat/completions"
    return {"spec.reward": {"functions": [{"name": "Judge", "url": url, "judge": judge}]}}


def make_backup(url: str) -> dict[str, Any]:
    return {"spec.checkpoint.backup": {"url": url}}


def make_model(url: str) -> dict[str, Any]:
    return {"spec.model": {"source": url}}


def make_data(url: str) -> dict[str, Any]:
    return {"spec.data.trainFiles": [], "spec.data.sources": [url]}


def make_held_out(url: str) -> dict[str, Any]:
    return {"spec.data.validationSources": [url]}


def make_push(url: str) -> dict[str, Any]:
    return {"spec.output": {"push": url}}


def make_env(name: str, value: str) -> dict[str, Any]:
    return {"spec.env": [{"name": name, "value": value}]}


def make_secret(name: str) -> dict[str, Any]:
    return {"name": "WANDB_API_KEY", "secretKeyRef": {"name": name, "key": "key"}}


def make_authorities(secret: str) -> dict[str, Any]:
    return {"secret": secret}


def make_claim(name: str) -> dict[str, Any]:
    work = {"name": "work", "claimName": "work", "mountPath": "/mnt/runs"}
    return {"spec.volumes": [work, {"name": "more", "claimName": name, "mountPath": "/mnt/more"}]}


def make_created_claim(volume: str) -> dict[str, Any]:
    """Return volumes whose last one has a created claim, named JOB-VOLUME."""
    volumes = make_claim("work")["spec.volumes"]
    created = {"name": volume, "mountPath": "/mnt/more", "claimTemplate": {"size": "1Gi"}}
    return {"spec.volumes": [volumes[0], created]}


def tolerating(**toleration: str) -> dict[str, Any]:
    return {"spec.scheduling": {"tolerations": [toleration]}}


ALLOWED: Mapping[str, dict[str, Any]] = {
    "nothing special": {},
    "image": {"spec.image": "mirror.example.com/raggrpo/trainer:0.1.0"},
    "priority class": {"spec.scheduling": {"priorityClassName": "research"}},
    "toleration": tolerating(key="example.com/research"),
    "claim": make_claim("results"),
    "created claim": make_created_claim("results"),
    "no volumes": {"spec.checkpoint": {}, "spec.volumes": []},
    "secret": {"spec.env": [make_secret("wandb"), {"name": "A", "value": "b"}]},
    "pull secret": {"spec.imagePullSecrets": ["wandb"]},
    "secret of authorities": {"spec.caBundle": make_authorities("wandb")},
    "endpoint": make_endpoint(),
    "managed endpoint": make_endpoint(url="", managed={"corpus": "/mnt/runs/corpus.jsonl"}),
    "endpoint that is its prefix": make_endpoint(url="https://rag.example.com"),
    "reward": make_reward("http://judge:8000/v1/score"),
    "agent": make_agent("https://rag.example.com/answer"),
    "agent in a container": make_container(),
    "server of a container": make_container(egress=["https://rag.example.com/retrieve"]),
    "secret of a container": make_container_env(secretKeyRef={"name": "wandb", "key": "key"}),
    "variable of a container": make_container_env(value="https://rag.example.com/v1"),
    "forwarded models": make_forward("https://rag.example.com/v1"),
    "secret of a judge": make_judge("wandb"),
    "bucket": make_backup("s3://ours/runs"),
    "model in a bucket": make_model("s3://ours/model"),
    "bucket that is its prefix": make_backup("s3://ours"),
    "backup on a volume": make_backup("file:///mnt/runs/copies"),
    "other server": {"spec.egress": ["https://rag.example.com/proxy"]},
    "variable with a server": make_env("OPENAI_BASE_URL", "https://rag.example.com/v1"),
    "empty variable": make_env("https_proxy", ""),
    "exceptions of a proxy": make_env("NO_PROXY", "kb,10.0.0.0/8"),
    "bundle of authorities": make_env("CURL_CA_BUNDLE", "/mnt/runs/ca.crt"),
    "other header": make_endpoint(headers=[{"name": "X-Tenant", "value": "a"}]),
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
    "claim": (make_claim("theirs"), "spec.volumes: every claim must be one of work, results"),
    "created claim": (
        make_created_claim("theirs"),
        "spec.volumes: every claim must be one of work, results",
    ),
    "default claims": (
        {"spec.checkpoint": {}, "spec.volumes": [], "metadata.name": "other"},
        "a job without volumes gets JOB-runs and JOB-scratch",
    ),
    "secret": (
        {"spec.env": [make_secret("theirs")]},
        "spec.env[].secretKeyRef.name: every Secret must be one of wandb",
    ),
    "pull secret": (
        {"spec.imagePullSecrets": ["theirs"]}, "spec.imagePullSecrets[]: every Secret must be one",
    ),
    "secret of authorities": (
        {"spec.caBundle": make_authorities("theirs")}, "spec.caBundle.secret: every Secret must be",
    ),
    "secret of a header": (
        make_endpoint(headers=[make_secret("theirs") | {"name": "Authorization"}]),
        "spec.retrieval.endpoints[].headers[].secretKeyRef.name: every Secret must be one of wandb",
    ),
    "secret of a judge": (
        make_judge("theirs"),
        "spec.reward.functions[].judge.headers[].secretKeyRef.name: every Secret must be one of",
    ),
    "endpoint of another port": (
        make_endpoint(url="https://rag.example.com:8443/"), "spec.retrieval.endpoints[].url: every",
    ),
    "host header": (
        make_endpoint(headers=[{"name": "hOst", "value": "team-b.example.com"}]),
        "spec.retrieval.endpoints[].headers[].name: headers that select another service are not",
    ),
    "forwarded host of a judge": (
        make_judge("wandb", name="X-Forwarded-Host"),
        "spec.reward.functions[].judge.headers[].name: headers that select another service",
    ),
    "W&B": (
        {"spec.monitoring.wandb": {"project": "p"}}, "spec.monitoring.wandb.project: every server",
    ),
    "bucket": (make_backup("s3://theirs/runs"), "spec.checkpoint.backup.url: every server must"),
    "bucket of a longer name": (make_backup("s3://ours-too/"), "spec.checkpoint.backup.url:"),
    "bucket of another provider": (make_backup("gs://ours/"), "spec.checkpoint.backup.url:"),
    "other server": ({"spec.egress": ["http://proxy:3128"]}, "spec.egress[]: every server must"),
    **{
        f"variable {name} = {value}": (make_env(name, value), "spec.env: every variable with a")
        for name, value in (
            ("https_proxy", "http://proxy:3128"), ("HTTPS_PROXY", "proxy:3128"),
            ("All_Proxy", "socks5h://proxy"), ("AWS_ENDPOINT_URL", "http://s3"),
            ("aws_endpoint_url_s3", "http://s3"), ("HF_ENDPOINT", "https://hub"),
            ("WANDB_BASE_URL", "https://wandb"), ("OPENAI_BASE_URL", "https://api"),
            ("OPENAI_API_BASE", "api:1"), ("STORAGE_EMULATOR_HOST", "gcs:1"),
            ("HOSTALIASES", "/mnt/runs/a"),
            ("AWS_CONFIG_FILE", "/mnt/runs/aws"), ("FSSPEC_S3", "{}"), ("PIP_INDEX_URL", "http://i"),
            ("ANY", "http://team-b.svc:8443/"), ("ANY", "x https://rag.example.com/ ftp://b"),
            ("ANY_URL", "https://rag.example.com/ http://b"), ("ANY_URL", "https://rag.example.com/@b/"),
            ("ANY_URL", "https://rag.example.com/../b"), ("ANY_URL", "https://rag.example.com/%2e%2E/b"),
            ("ANY_URL", "https://rag.example.com.b/"), ("ANY_URL", "HTTPS://rag.example.com/"),
        )
    },
    "variable with a server from a Secret": (
        {"spec.env": [make_secret("wandb") | {"name": "https_proxy"}]},
        "spec.env: every variable with a server must have a value",
    ),
    "endpoint": (
        make_endpoint(url="http://169.254.169.254/latest"),
        "spec.retrieval.endpoints[].url: every server must start with https://rag.example.com/",
    ),
    "endpoint of a longer name": (
        make_endpoint(url="https://rag.example.com.evil.example/"),
        "spec.retrieval.endpoints[].url: every server must start with",
    ),
    "reward": (make_reward("http://judge:8000/v2"), "spec.reward.functions[].url: every server"),
    "agent": (make_agent("http://theirs/"), "spec.rollout.agent.url: every server must"),
    "image of a container": (
        make_container(image="other.example.com/app:1"),
        "spec.rollout.agent.container.image is not allowed",
    ),
    "server of a container": (
        make_container(egress=["https://theirs.example.com/"]),
        "spec.rollout.agent.container.egress[]: every server must",
    ),
    "secret of a container": (
        make_container_env(secretKeyRef={"name": "other", "key": "key"}),
        "spec.rollout.agent.container.env[].secretKeyRef.name: every Secret must be one of",
    ),
    "variable of a container": (
        make_container_env(name="https_proxy", value="http://theirs:3128"),
        "spec.rollout.agent.container.env: every variable with a server must have a value",
    ),
    "variable of a container with a URL": (
        make_container_env(value="http://theirs/"),
        "spec.rollout.agent.container.env: every variable with a server must have a value",
    ),
    "forwarded models": (
        make_forward("http://theirs/v1"), "spec.rollout.agent.forward[].url: every server must",
    ),
    "secret of forwarded models": (
        make_forward("https://rag.example.com/v1", "theirs"),
        "spec.rollout.agent.forward[].apiKeySecret.name: every Secret must be one of wandb",
    ),
    "model source": (make_model("hf://theirs/model"), "spec.model.source: every server"),
    "data source": (make_data("hf://datasets/a/b"), "spec.data.sources[]: every server"),
    "push": (make_push("oci://theirs.example.com/x"), "spec.output.push: every server"),
    "held-out source": (make_held_out("gs://a/b"), "spec.data.validationSources[]: every server"),
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


@pytest.mark.parametrize("kind", [Server, SecretName, HeaderName])
def test_rejected_cases_cover_fields_that_reach_servers_and_secrets(kind: type) -> None:
    reported = " ".join(said for _, said in REFUSED.values())
    assert [
        place for place, _ in marked_places(JobSpec, kind) if f"{place}: " not in reported
    ] == []


OTHER_PATHS = (
    "../team-b/", "%2e%2e/team-b/", "%2E./team-b/", ".%2e/team-b", "%252e%252e/team-b/",
    "..%2fteam-b", "..\\team-b", "..%5cteam-b", "..;/team-b", "..;a=b/team-b", "..%3b/team-b", "..",
)  # fmt: skip
MAKERS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "spec.retrieval.endpoints[].url": lambda url: make_endpoint(url=url),
    "spec.reward.functions[].url": make_reward,
    "spec.rollout.agent.url": make_agent,
    "spec.rollout.agent.container.egress[]": lambda url: make_container(egress=[url]),
    "spec.rollout.agent.forward[].url": make_forward,
    "spec.checkpoint.backup.url": make_backup,
    "spec.model.source": make_model,
    "spec.data.sources[]": make_data,
    "spec.data.validationSources[]": make_held_out,
    "spec.output.push": make_push,
    "spec.egress[]": lambda url: {"spec.egress": [url]},
}


@pytest.mark.parametrize("end", OTHER_PATHS)
@pytest.mark.parametrize(
    "place", [at for at, each in marked_places(JobSpec, Server) if not each.url]
)
def test_urls_that_lead_to_another_path_are_rejected(
    limited: Limited, place: str, end: str
) -> None:
    in_bucket = place in ("spec.checkpoint.backup.url", "spec.output.push")
    start = "s3://ours/a/" if in_bucket else "https://rag.example.com/a/"
    assert "as the URL of another path" in limited.refusal(MAKERS[place](start + end))


@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
@given(changes())
def test_job_policy_and_its_model_reject_same_jobs(
    limited: Limited, http: httpx.Client, changed: dict[str, Any]
) -> None:
    raw = make_raw_job({f"spec.{place}": value for place, value in changed.items()})
    job = parse_job(raw)
    assert isinstance(job, RagGrpoJob)
    path = f"/apis/raggrpo.io/v1alpha1/namespaces/{limited.namespace}/raggrpojobs"
    answer = http.post(path, params={"dryRun": "All"}, json=raw)
    if MODEL.refuses(job):
        assert answer.is_client_error, raw["spec"]
    else:  # the CRD has further rules
        assert "ValidatingAdmissionPolicy" not in answer.text, answer.text


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
