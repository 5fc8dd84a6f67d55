"""Resolve the job that a new job starts from (`training.startFrom.checkpoint.jobRef`). Pure."""

from dataclasses import replace
from pathlib import PurePosixPath

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_operator.core.lifecycle.observed import StartObserved
from raggrpo_operator.core.lifecycle.round import Decision, Round
from raggrpo_operator.core.spec.claims import named_volumes
from raggrpo_operator.core.spec.path_fields import volume_of

RETRY_SECONDS = 15.0
"""Seconds between two reads of the other job."""


def unresolved_job(job: RagGrpoJob) -> str:
    """Return the name of the job whose checkpoint path is needed, or "" if none is.

    The path is pinned in the status, and the job's first checkpoint replaces it.
    """
    start = job.spec.training.start_from
    if start is None or job.status.pinned.start_path or job.status.checkpoint is not None:
        return ""
    return start.checkpoint.job_ref or ""


def resolve_start(this: Round) -> Decision | None:
    """Pin the path of the other job's checkpoints; return None once no path is needed."""
    name, observed = unresolved_job(this.job), this.observed.start
    if not name:
        return None
    if observed is not None and observed.path:
        this.status = replace(
            this.status, pinned=replace(this.status.pinned, start_path=observed.path)
        )
        return None
    problem = observed.problem if observed is not None else f"job {name} was not read"
    message = f"spec.training.startFrom.checkpoint.jobRef: {problem}"
    this.set_condition(
        ConditionType.PROGRESSING, False, ConditionReason.WAITING_FOR_START_JOB, message
    )
    return this.decision(RETRY_SECONDS)


def start_path(job: RagGrpoJob, other: RagGrpoJob) -> StartObserved:
    """Return where `job` mounts the checkpoints of `other`, or why it does not."""
    name, path = other.metadata.name, other.spec.checkpoint.path
    if name == job.metadata.name:
        return StartObserved(problem=f"job {name} is the job itself: specify another job")
    source = volume_of(path, named_volumes(other))
    if source is None:
        return StartObserved(path=path)  # in both images, or on the host
    claim = source.claim_name
    mounted = next((each for each in named_volumes(job) if each.claim_name == claim), None)
    if mounted is None:
        return StartObserved(
            problem=f"the checkpoints of job {name} are on claim {claim}, which this job does not "
            "mount: add it to spec.volumes"
        )
    inside = PurePosixPath(path).relative_to(source.mount_path)
    return StartObserved(path=str(PurePosixPath(mounted.mount_path) / inside))
