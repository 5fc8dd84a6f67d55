"""PersistentVolumeClaims of a job: named by the job, or created from a template."""

from raggrpo_api import names
from raggrpo_api.job import Metadata, RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import ClaimTemplate, Volume

from .sources import STAGING_DIR, source_urls

DEFAULT_SIZE = "100Gi"
SCRATCH = "/mnt/scratch"
DEFAULT_VOLUMES = (
    Volume(
        name="runs",
        mount_path="/mnt/runs",
        claim_template=ClaimTemplate(size=DEFAULT_SIZE),
    ),
    Volume(
        name="scratch",
        mount_path=SCRATCH,
        claim_template=ClaimTemplate(size=DEFAULT_SIZE, keep=False),
    ),
)
"""Volumes of a job that specifies neither volumes nor checkpoint.path; the second for downloads."""


def with_default_volumes(spec: JobSpec) -> JobSpec:
    """Return the spec with volumes for checkpoints and downloads if the user specified none."""
    if spec.volumes or "path" in spec.checkpoint.model_fields_set:
        return spec
    if not source_urls(spec) or spec.staging.path:
        return spec.model_copy(update={"volumes": [DEFAULT_VOLUMES[0]]})
    staging = spec.staging.model_copy(update={"path": f"{SCRATCH}/{STAGING_DIR}"})
    return spec.model_copy(update={"volumes": [*DEFAULT_VOLUMES], "staging": staging})


def claim_name(job: Metadata, volume: Volume) -> str:
    """Return the claim of a volume: the specified one, or the one that the operator creates."""
    return volume.claim_name or names.claim_name(job.name, volume.name)


def named_volumes(job: RagGrpoJob) -> list[Volume]:
    """Return the volumes of a job, each with the name of its claim."""
    return [
        volume.model_copy(update={"claim_name": claim_name(job.metadata, volume)})
        for volume in with_default_volumes(job.spec).volumes
    ]
