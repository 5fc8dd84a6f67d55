"""Managed retrievers: start them and wait until they are ready. Pure."""

from dataclasses import replace

from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_operator.core.lifecycle.actions import StartRetriever
from raggrpo_operator.core.lifecycle.after_attempt import recovery
from raggrpo_operator.core.lifecycle.round import Decision, Round


def wait_for_retrievers(this: Round) -> Decision | None:
    """Start the managed retrievers and wait for them; return None once all are ready."""
    if not (managed := ensure_retrievers(this)):
        return None
    observed = {r.name: r for r in this.observed.retrievers}
    not_ready = [name for name in managed if name not in observed or not observed[name].is_ready]
    if not not_ready:
        this.set_condition(
            ConditionType.RETRIEVER_READY, True, ConditionReason.READY, ", ".join(managed)
        )
        return None
    problems = "; ".join(f"{n}: {observed[n].problem}" for n in not_ready if n in observed)
    if not observed:
        this.store(replace(this.state.launch, waiting_since=this.now))
    reasons = [observed[n].reason for n in not_ready if n in observed]
    reason = next(iter(reasons), ConditionReason.RETRIEVER_NOT_READY)
    this.set_condition(ConditionType.RETRIEVER_READY, False, reason, problems)
    for retriever in this.observed.retrievers:
        if retriever.cause is not None:
            return recovery.fail(this, retriever.cause, f"{retriever.name}: {retriever.problem}")
    limit = this.spec.recovery.deadlines.provisioning_seconds
    if this.elapsed(this.state.launch.waiting_since) > limit:
        message = (
            f"managed retrievers were not ready within {limit} s: {problems}; "
            "to wait longer, increase recovery.deadlines.provisioningSeconds"
        )
        return recovery.fail(this, Cause.START_FAILED, message)
    return this.decision(requeue_after=0.5)


def ensure_retrievers(this: Round) -> list[str]:
    """Start the managed retrievers that are not running; return the names of all of them."""
    managed = this.spec.retrieval.managed
    running = {r.name for r in this.observed.retrievers if not r.has_ended}
    if missing := [name for name in managed if name not in running]:
        plan = this.pod_plan()
        this.actions.extend(StartRetriever(plan, name, managed[name]) for name in missing)
    return list(managed)
