"""Claims that the operator creates from the templates of a job."""

from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.manifests.claim import render_claims
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import Origin, resolve
from raggrpo_operator.core.spec.violation import Reason, errors
from support.builders.operator.jobs import make_job
from support.builders.operator.manifests import all_manifests, make_clustered_job
from support.kubernetes.kubernetes_schemas import violations_of_schemas


def make_volume(**template: Any) -> dict[str, Any]:
    return {"name": "runs", "mountPath": "/mnt/runs", "claimTemplate": {"size": "5Gi"} | template}


def test_claim_has_size_class_and_access_mode_of_template() -> None:
    volume = make_volume(storageClassName="fast", accessMode="ReadWriteMany")
    manifests = all_manifests(make_clustered_job(make_job({"volumes": [volume]})))

    claim = manifests["claim-runs"]
    assert claim["metadata"]["name"] == "small-runs"
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
        "storageClassName": "fast",
    }
    assert violations_of_schemas([claim]) == []


def test_claim_uses_default_class_if_unspecified() -> None:
    manifests = all_manifests(make_clustered_job(make_job({"volumes": [make_volume()]})))
    assert "storageClassName" not in manifests["claim-runs"]["spec"]


@pytest.mark.parametrize("keep", [True, False])
def test_claim_has_owner_only_if_it_is_deleted_with_job(keep: bool) -> None:
    job = make_clustered_job(make_job({"volumes": [make_volume(keep=keep)]}))
    claim = all_manifests(job)["claim-runs"]
    assert ("ownerReferences" in claim["metadata"]) is not keep


def test_pods_mount_created_claim() -> None:
    job = make_clustered_job(make_job({"volumes": [make_volume()]}))
    volumes = all_manifests(job)["preflight"]["spec"]["volumes"]
    named = {each["name"]: each for each in volumes}
    assert named["claim-runs"]["persistentVolumeClaim"]["claimName"] == "small-runs"


def test_resolved_spec_names_created_claim() -> None:
    job = make_job({"volumes": [make_volume()]})
    resolved = resolve(job)
    assert resolved.spec.volumes[0].claim_name == "small-runs"
    assert resolved.origins["volumes[0].claimName"] is Origin.SIZED
    assert resolve(job.model_copy(update={"spec": resolved.spec})).spec == resolved.spec


def make_job_without_volumes(changes: dict[str, Any] | None = None) -> RagGrpoJob:
    return make_job({"checkpoint": {}, "volumes": []} | (changes or {}))


SOURCES = {"model": {"source": "hf://org/model"}}


def test_job_without_volumes_gets_claims_for_checkpoints_and_downloads() -> None:
    job = make_job_without_volumes(SOURCES)

    spec = resolve(job).spec
    claims = dict(render_claims(job.metadata, spec))

    assert spec.checkpoint.path == "/mnt/runs/checkpoints"
    assert spec.staging.path == "/mnt/scratch/staged"
    assert {name: "ownerReferences" in each["metadata"] for name, each in claims.items()} == {
        "runs": False, "scratch": True
    }  # fmt: skip
    assert not errors(violations(job, resolve(job)))
    assert resolve(job.model_copy(update={"spec": spec})).spec == spec


@pytest.mark.parametrize(
    ("changes", "mounted"),
    [
        ({}, ["/mnt/runs"]),
        (SOURCES | {"staging": {"path": "/mnt/runs/shared"}}, ["/mnt/runs"]),
        (SOURCES | {"checkpoint": {"everySteps": 5}}, ["/mnt/runs", "/mnt/scratch"]),
        (SOURCES | {"checkpoint": {"path": "/mnt/runs/checkpoints"}}, []),
        ({"volumes": [make_volume()]}, ["/mnt/runs"]),
    ],
)
def test_default_volumes_are_added_only_where_they_are_needed(
    changes: dict[str, Any], mounted: list[str]
) -> None:
    spec = resolve(make_job_without_volumes(changes)).spec
    assert [each.mount_path for each in spec.volumes] == mounted


def test_default_checkpoint_path_must_be_on_specified_volume() -> None:
    job = make_job_without_volumes({"volumes": [make_volume() | {"mountPath": "/mnt/other"}]})
    [violation] = errors(violations(job, resolve(job)))
    assert (violation.path, violation.reason) == (
        "spec.checkpoint.path", Reason.CHECKPOINT_NOT_ON_VOLUME
    )  # fmt: skip
    assert "/mnt/runs/checkpoints" in violation.message


def test_volume_with_claim_name_creates_no_claim() -> None:
    job = make_job()
    assert not list(render_claims(job.metadata, resolve(job).spec))
