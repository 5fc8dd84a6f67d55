"""Changes of a local job's file since its last run."""

from pathlib import Path

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_api.trainer.resume import Change, changes, resume_values
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve

from .job_folder import State


def changes_since_last_run(state: State, job: RagGrpoJob) -> list[Change]:
    """Return the changed values that checkpoints depend on, and a changed checkpoint path.

    A checkpoint path that was moved or copied with the newest checkpoint is no change. Returns []
    if this release cannot parse the recorded spec: the trainer compares the values with the
    checkpoint.
    """
    recorded = parse_job(job.manifest() | {"spec": state.spec})
    if not isinstance(recorded, RagGrpoJob):
        return []
    facts = state.status.preflight.known_facts
    old, new = (
        resume_values(resolve(each, facts).spec) | {"checkpoint.path": each.spec.checkpoint.path}
        for each in (recorded, job)
    )
    if _has_newest_checkpoint(Path(job.spec.checkpoint.path), state.status.checkpoint):
        old["checkpoint.path"] = job.spec.checkpoint.path
    return changes(old, new)


def _has_newest_checkpoint(path: Path, newest: CheckpointRef | None) -> bool:
    return newest is not None and (path / Path(newest.path).name).is_dir()
