"""What must be ready before an attempt: the preflight's verdict and managed retrievers. Pure."""

from dataclasses import replace

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import Cause, ConditionType
from raggrpo_api.trainer_config import content_hash
from raggrpo_operator.core.state.conditions import is_true

from . import recovery
from .actions import DeletePreflight, StartPreflight, StartRetriever
from .round import PODS_WAITING, POLL_SECONDS, Decision, Round

MAX_PREFLIGHT_LOSSES = 3
"""Preflights that may end without a result; an evicted pod is one, a broken image is all."""


def spec_hash(job: RagGrpoJob) -> str:
    """Return the hash of the part of the spec that preflight judges."""
    spec = job.manifest()["spec"]
    unjudged = ("suspend", "recovery", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
    judged = {key: value for key, value in spec.items() if key not in unjudged}
    if "training" in judged:
        training = {
            k: v for k, v in judged["training"].items() if k not in ("totalSteps", "epochs")
        }
        judged["training"] = training
    return content_hash(judged)


def preflight(this: Round) -> Decision | None:
    """Run the checks once per spec; None when they have passed."""
    wanted, seen = spec_hash(this.job), this.observed.preflight
    status = this.status
    if status.preflight.spec_hash == wanted and is_true(status, ConditionType.PREFLIGHT_PASSED):
        if seen is not None:
            this.actions.append(DeletePreflight())
        return None
    losses = this.state.retry.preflight_losses
    if seen is not None and seen.problem and losses >= MAX_PREFLIGHT_LOSSES:
        return _give_up_preflight(this, wanted, seen.problem)
    if seen is None or seen.spec_hash != wanted:
        this.start_waiting()
    problem = seen.problem if seen is not None else ""
    waiting_for = seen.waiting_for if seen is not None else ""
    reason = PODS_WAITING if waiting_for else "Running"
    this.condition(ConditionType.PREFLIGHT_PASSED, None, reason, problem or waiting_for)
    limit = this.resolved.spec.recovery.deadlines.preflight_seconds
    is_late = this.elapsed(this.state.launch.waiting_since) > limit
    if is_late and (seen is None or seen.result is None):
        message = (
            f"the checks did not finish within {limit} s: {problem or waiting_for or 'no result'}"
        )
        return _give_up_preflight(this, wanted, message)
    if seen is None or seen.spec_hash != wanted or problem:
        if seen is not None:  # a lost one may be gone already when the next is started
            this.note_preflight_losses(losses + 1 if problem else 0)
            this.actions.append(DeletePreflight())
        config = this.attempt_config()
        this.actions.append(StartPreflight(this.pod_plan(), config, wanted))
        return this.end(requeue_after=1.0 if seen is None else POLL_SECONDS)
    if seen.result is None:
        return this.end(requeue_after=0.5)
    return recovery.judge_preflight(this, seen.result, wanted)


def _give_up_preflight(this: Round, wanted: str, message: str) -> Decision:
    """End the job without a result, until its spec is mended or the user asks for a retry."""
    preflight = replace(this.status.preflight, spec_hash=wanted)
    this.status = replace(this.status, preflight=preflight)
    this.note_preflight_losses(0)
    this.condition(ConditionType.PREFLIGHT_PASSED, False, "NoResult", message)
    return recovery.fail(this, Cause.PREFLIGHT_FAILED, message)


def retrievers(this: Round) -> Decision | None:
    """Start managed retrievers and wait for them; None when all are ready."""
    managed = keep_retrievers(this)
    if not managed:
        return None
    seen = {r.name: r for r in this.observed.retrievers}
    waiting = [name for name in managed if name not in seen or not seen[name].is_ready]
    if not waiting:
        this.condition(ConditionType.RETRIEVER_READY, True, "Ready", ", ".join(managed))
        return None
    problems = "; ".join(f"{n}: {seen[n].problem}" for n in waiting if n in seen)
    if not seen:
        this.start_waiting()
    this.condition(ConditionType.RETRIEVER_READY, False, "Loading", problems)
    for retriever in this.observed.retrievers:
        if retriever.cause is not None:
            return recovery.fail(this, retriever.cause, f"{retriever.name}: {retriever.problem}")
    limit = this.resolved.spec.recovery.deadlines.provisioning_seconds
    if this.elapsed(this.state.launch.waiting_since) > limit:
        message = f"the managed retriever was not ready after {limit} s: {problems}"
        return recovery.fail(this, Cause.START_FAILED, message)
    return this.end(requeue_after=0.5)


def keep_retrievers(this: Round) -> list[str]:
    """Start the managed retrievers that do not run; returns the names of all."""
    endpoints = this.resolved.spec.retrieval.endpoints
    managed = {each.name: each.managed for each in endpoints if each.managed is not None}
    alive = {r.name for r in this.observed.retrievers if not r.has_ended}
    if missing := managed.keys() - alive:
        plan = this.pod_plan()
        this.actions.extend(
            StartRetriever(plan, name, managed[name]) for name in managed if name in missing
        )
    return list(managed)
