"""Claims that the operator creates from the templates of a job."""

from typing import Any

import pytest

from raggrpo_operator.core.manifests.claim import render_claims
from raggrpo_operator.core.spec.resolve import Origin, resolve
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


def test_volume_with_claim_name_creates_no_claim() -> None:
    job = make_job()
    assert not list(render_claims(job.metadata, resolve(job).spec))
