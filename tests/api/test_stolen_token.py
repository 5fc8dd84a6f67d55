"""Requests of an attacker with the operator's token, on a real API server.

Admission policies of the chart deny requests that RBAC allows. The last test shows that most of
these requests succeed without the policies.
"""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.resources import ClaimTemplate, Volume
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from support.builders.operator.jobs import KNOWN_TINY, SAMPLES, make_sample
from support.builders.operator.manifests import SETTINGS, make_clustered_job, objects_of
from support.kubernetes.chart_release import Account, Helm
from support.kubernetes.stolen_token_cases import (
    Attempt,
    Manifest,
    Target,
    create,
    foreign_objects,
    in_owner,
)
from support.kubernetes.stolen_token_cases_by_policy import BY_POLICY, CLAIM, OPERATOR_OBJECTS, POD
from support.kubernetes.stolen_token_cases_by_rbac import BY_RBAC
from tools.kind.api_server import ApiServer

FORBIDDEN = 403
[SAMPLE] = [path for path in SAMPLES if path.stem == "prompt-rag"]


@pytest.fixture(scope="module")
def target(api_server: ApiServer, operator_account: Account) -> Iterator[Target]:
    """Create objects of another owner, and a job whose objects the operator would render."""
    with api_server.namespace("stolen-token") as namespace:
        raw = {**RagGrpoJob.manifest(make_sample(SAMPLE)), "metadata": {"name": "demo"}}
        api_server.apply(raw, *foreign_objects(), namespace=namespace)
        uid = api_server.read("rgj", "demo", "-n", namespace)["metadata"]["uid"]
        settings = replace(SETTINGS, operator_namespace=operator_account.namespace)
        yield Target(namespace, operator_account, rendered(namespace, uid, settings))


def rendered(namespace: str, uid: str, settings: ClusterSettings) -> dict[str, Manifest]:
    job = make_clustered_job(make_sample(SAMPLE), KNOWN_TINY)
    own = {"namespace": namespace, "uid": uid, "name": "demo"}
    created = Volume(
        name="runs", mount_path="/mnt/created", claim_template=ClaimTemplate(size="1Gi")
    )
    spec = job.spec.model_copy(update={"volumes": [*job.spec.volumes, created]})
    job = job.model_copy(update={"metadata": job.metadata.model_copy(update=own), "spec": spec})
    return objects_of(job, settings)


@pytest.mark.parametrize("name", [*OPERATOR_OBJECTS, CLAIM])
def test_objects_rendered_by_operator_pass_admission_policies(target: Target, name: str) -> None:
    answer = target.answer(create(name, name, lambda _: None))
    assert answer.status_code == 201, answer.text


def test_kueue_changes_to_ray_cluster_pass_admission_policies(target: Target) -> None:
    def as_its_webhook_writes_it(cluster: Manifest) -> None:
        cluster["metadata"]["name"] += "-queued"
        cluster["spec"]["suspend"] = True
        for group in cluster["spec"]["workerGroupSpecs"]:
            group["scaleStrategy"] = {}

    made = create("a RayCluster in a queue", "raycluster", as_its_webhook_writes_it)
    answer = target.answer(made)
    assert answer.status_code == 201, answer.text


@pytest.mark.row("E9")
@pytest.mark.parametrize("attempt", BY_POLICY, ids=lambda attempt: attempt.what)
def test_admission_policy_rejects_stolen_token_request(target: Target, attempt: Attempt) -> None:
    answer = target.answer(attempt)
    assert answer.status_code == FORBIDDEN, answer.text
    assert "ValidatingAdmissionPolicy 'rights-raggrpo-operator-" in answer.text


@pytest.mark.parametrize("attempt", BY_RBAC, ids=lambda attempt: attempt.what)
def test_rbac_rejects_stolen_token_request(target: Target, attempt: Attempt) -> None:
    answer = target.answer(attempt)
    assert answer.status_code == FORBIDDEN, answer.text
    assert "is forbidden: User" in answer.text or "cannot" in answer.text


def test_operator_cannot_impersonate_other_users(target: Target) -> None:
    admin = {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"}
    answer = target.attacker.call("GET", "/api/v1/nodes", None, **admin)
    assert answer.status_code == FORBIDDEN, answer.text


def test_pod_owned_by_missing_job_is_garbage_collected(
    api_server: ApiServer, target: Target
) -> None:
    method, path, body = create(
        "", POD, in_owner(uid="00000000-0000-0000-0000-000000000000")
    ).request(target)
    body["metadata"]["name"] = "without-job"
    assert target.attacker.call(method, path, body).status_code == 201
    api_server.kubectl(
        "wait", "--for=delete", "pod/without-job", "-n", target.namespace, "--timeout=60s"
    )


def test_admission_policy_expressions_use_existing_fields(
    api_server: ApiServer, target: Target
) -> None:
    kind = "validatingadmissionpolicies.admissionregistration.k8s.io"
    for part in ("ownership", "pods", "objects"):
        policy = f"{kind}/rights-raggrpo-operator-{part}"
        api_server.kubectl("wait", "--for=jsonpath={.status.typeChecking}", policy)
        checked = api_server.read(policy)["status"]["typeChecking"]
        assert checked.get("expressionWarnings", []) == [], json.dumps(checked, indent=1)


@pytest.mark.row("E9")
def test_rbac_without_admission_policies_allows_most_stolen_token_requests(
    api_server: ApiServer, target: Target
) -> None:
    """Without this test, the requests above could have been denied for another reason."""
    with api_server.namespace("without-policies") as name:
        helm = Helm(api_server, name, release="bare")
        helm.install_values({"crds.install": False, "admissionPolicies.enabled": False})
        bare = replace(target, attacker=Account.of(helm))
        open_to_it = {each.what for each in BY_POLICY if bare.answer(each).is_success}
        bare.attacker.http.close()
        helm("uninstall", helm.release)
    assert {
        "a pod with all privileges",
        "a pod with host path",
        "a pod with another service account",
        "a Deployment of pods with host path",
        "a RayCluster with a head with all privileges",
        "a pod in kube-system",
        "a service account token",
        "a Service that has an external IP",
        "open a foreign NetworkPolicy",
        "delete pods",
        "delete a job without ttlSecondsAfterFinished",
    } <= open_to_it
    assert len(open_to_it) > 0.9 * len(BY_POLICY), {e.what for e in BY_POLICY} - open_to_it
