"""`reconcile`: observe, decide, one status write, perform. Both runtimes run exactly this."""

from datetime import datetime
from typing import Protocol

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import JobStatus
from raggrpo_operator.core.lifecycle.actions import Action
from raggrpo_operator.core.lifecycle.decide import decide
from raggrpo_operator.core.lifecycle.observed import Observed
from raggrpo_operator.core.lifecycle.round import Decision


class Runtime(Protocol):
    """What a runtime can do; the only place with effects."""

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Return a snapshot of everything that exists for this job."""
        ...

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        """Do one thing; doing it twice changes nothing."""
        ...

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:
        """Persist the status."""
        ...


async def reconcile(job: RagGrpoJob, runtime: Runtime, now: datetime) -> Decision:
    """Run one round.

    The status is written before the actions are performed, so that whatever was begun is known
    after a crash at any point.
    """
    observed = await runtime.observe(job)
    decision = decide(job, observed, now)
    if decision.status != job.status:
        await runtime.write_status(job, decision.status)
    current = job.model_copy(update={"status": decision.status})
    for action in decision.actions:
        await runtime.perform(current, action)
    return decision
