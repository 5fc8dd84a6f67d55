"""PersistentVolumeClaims of a job: named by the job, or created from a template."""

from raggrpo_api import names
from raggrpo_api.job import Metadata, RagGrpoJob
from raggrpo_api.spec.resources import Volume


def claim_name(job: Metadata, volume: Volume) -> str:
    """Return the claim of a volume: the specified one, or the one that the operator creates."""
    return volume.claim_name or names.claim_name(job.name, volume.name)


def named_volumes(job: RagGrpoJob) -> list[Volume]:
    """Return the volumes of a job, each with the name of its claim."""
    return [
        volume.model_copy(update={"claim_name": claim_name(job.metadata, volume)})
        for volume in job.spec.volumes
    ]
