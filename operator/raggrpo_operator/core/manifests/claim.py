"""PersistentVolumeClaims that the operator creates from the templates of a job."""

from collections.abc import Iterator

from raggrpo_api.job import Metadata
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import ClaimTemplate

from .metadata import Manifest, child_metadata


def render_claims(job: Metadata, spec: JobSpec) -> Iterator[tuple[str, Manifest]]:
    """Yield (volume, claim) for each volume of the resolved spec that has a template."""
    for volume in spec.volumes:
        if volume.claim_template is not None:
            yield volume.name, _claim(job, volume.claim_name, volume.claim_template)


def _claim(job: Metadata, name: str, template: ClaimTemplate) -> Manifest:
    metadata = child_metadata(job, name)
    if template.keep:  # without an owner, the garbage collector does not delete the claim
        del metadata["ownerReferences"]
    spec: Manifest = {
        "accessModes": [str(template.access_mode)],
        "resources": {"requests": {"storage": template.size}},
    }
    if template.storage_class_name:
        spec["storageClassName"] = template.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": metadata,
        "spec": spec,
    }
