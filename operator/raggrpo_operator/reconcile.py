"""`reconcile`: observe, decide, write the status, perform actions. Used by both runtimes."""

from datetime import datetime
from typing import Protocol

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.actions import Action
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.lifecycle.round import Decision


class Runtime(Protocol):
    """Interface for the side effects of a reconcile."""

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Return a snapshot of all objects and processes of the job."""
        ...

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        """Perform one action. Implementations must be idempotent."""
        ...

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:
        """Persist the status."""
        ...


async def reconcile(job: RagGrpoJob, runtime: Runtime, now: datetime) -> Decision:
    """Run one round: observe, decide, write the status, then perform the actions.

    After a crash, the status thus shows which actions may have been performed.
    """
    observed = await runtime.observe(job)
    decision = decide(job, observed, now)
    if decision.status != job.status:
        await runtime.write_status(job, decision.status)
    current = job.model_copy(update={"status": decision.status})
    for action in decision.actions:
        await runtime.perform(current, action)
    return decision
