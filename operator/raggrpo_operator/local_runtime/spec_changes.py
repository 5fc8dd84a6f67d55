"""Changes of a local job's file since its last run."""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.resume import Change, changes, resume_values
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve

from .job_folder import State


def changes_since_last_run(state: State, job: RagGrpoJob) -> list[Change]:
    """Return the changed values that checkpoints depend on, and a changed checkpoint path.

    Returns [] if this release cannot parse the recorded spec: the trainer compares the values with
    the checkpoint.
    """
    recorded = parse_job(job.manifest() | {"spec": state.spec})
    if not isinstance(recorded, RagGrpoJob):
        return []
    facts = state.status.preflight.known_facts
    old, new = (
        resume_values(resolve(each, facts).spec) | {"checkpoint.path": each.spec.checkpoint.path}
        for each in (recorded, job)
    )
    return changes(old, new)
