"""What must be ready before an attempt: the preflight's verdict and managed retrievers. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from raggrpo_api.fields.base import format_time
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.spec.resources import Device
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import PreflightStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.config import content_hash
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, Facts, PreflightResult
from raggrpo_operator.core.lifecycle.actions import DeletePreflight, StartPreflight, StartRetriever
from raggrpo_operator.core.lifecycle.after_attempt import recovery
from raggrpo_operator.core.lifecycle.after_attempt.classification import CAUSE_OF_EXIT
from raggrpo_operator.core.lifecycle.deadlines import outages
from raggrpo_operator.core.lifecycle.observed import DeviceObserved
from raggrpo_operator.core.lifecycle.round import POLL_SECONDS, Decision, Round
from raggrpo_operator.core.lifecycle.warnings import update_warnings
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.quantity import format_size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, Violation, errors
from raggrpo_operator.core.state.conditions import get_condition, is_true

OF_GPU_MEMORY = frozenset(
    {
        Reason.TRAINING_STATE_DOES_NOT_FIT,
        Reason.WEIGHTS_DO_NOT_FIT,
        Reason.ACTIVATIONS_MAY_NOT_FIT,
        Reason.KV_CACHE_IS_SHORT,
        Reason.GPU_MEMORY_UNKNOWN,
    }
)
"""What the check GpuMemory consists of."""
OF_SERVICES = frozenset({CheckId.RETRIEVAL_REACHABLE, CheckId.REWARD_CODE})
"""Checks that may fail because a service is down: an endpoint, or a judge."""
OUTAGE_RETRY_SECONDS = 30.0
"""Between two checks of services that are down; each takes a pod."""
UNSEEN_SECONDS = 10.0
"""How long the API server's news of a preflight that was started may take to arrive."""
MAX_PREFLIGHT_LOSSES = 3
"""Preflights that may end without a result, such as evicted pods; a broken image exhausts them."""


def spec_hash(job: RagGrpoJob) -> str:
    """Return the hash of the part of the spec that preflight judges."""
    spec = job.manifest()["spec"]
    unjudged = ("suspend", "recovery", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
    judged = {key: value for key, value in spec.items() if key not in unjudged}
    if "training" in judged:
        lengths = ("totalSteps", "epochs")
        judged["training"] = {k: v for k, v in judged["training"].items() if k not in lengths}
    return content_hash(judged)


def preflight(this: Round) -> Decision | None:
    """Run the checks once per spec; None when they have passed."""
    wanted, seen, status = spec_hash(this.job), this.observed.preflight, this.status
    if status.preflight.spec_hash == wanted and is_true(status, ConditionType.PREFLIGHT_PASSED):
        if seen is not None:
            this.actions.append(DeletePreflight())
        return None
    if status.preflight.spec_hash == wanted and is_true(status, ConditionType.WAITING_FOR_ENDPOINT):
        is_paused = (
            get_condition(status, ConditionType.PREFLIGHT_PASSED).reason
            == ConditionReason.WAITING_FOR_ENDPOINT
        )
        if is_paused and (decision := _pause(this)) is not None:
            return decision
    elif seen is None or seen.spec_hash != wanted:  # the first check, or one of another spec
        this.store(outages.forgotten(this.state.watch))
    losses = this.state.retry.preflight_losses
    if seen is not None and seen.problem and losses >= MAX_PREFLIGHT_LOSSES:
        return _give_up_preflight(this, seen.problem)
    if (seen is None and not _was_just_started(this)) or (seen and seen.spec_hash != wanted):
        this.store(replace(this.state.launch, waiting_since=this.now))
    problem = seen.problem if seen is not None else ""
    waiting_for = seen.waiting_for if seen is not None else ""
    reason = seen.waiting_reason if seen and seen.waiting_for else ConditionReason.RUNNING
    this.set_condition(ConditionType.PREFLIGHT_PASSED, None, reason, problem or waiting_for)
    limit = this.spec.recovery.deadlines.preflight_seconds
    is_late = this.elapsed(this.state.launch.waiting_since) > limit
    if is_late and (seen is None or seen.result is None):
        why = problem or waiting_for or "no result"
        message = f"the checks did not finish within {limit} s: {why}"
        return _give_up_preflight(this, message)
    if seen is None or seen.spec_hash != wanted or problem:
        if seen is not None:  # a lost one may already be gone when the next is started
            losses = losses + 1 if problem else 0
            this.store(replace(this.state.retry, preflight_losses=losses))
            this.actions.append(DeletePreflight())
        this.actions.append(StartPreflight(this.pod_plan(), this.attempt_config(), wanted))
        return this.decision(requeue_after=1.0 if seen is None else POLL_SECONDS)
    if seen.result is None:
        return this.decision(requeue_after=0.5)
    return _judge(this, seen.result, wanted)


def _was_just_started(this: Round) -> bool:
    """Return whether a preflight that is not seen may only not be seen yet: its clock runs."""
    since = this.state.launch.waiting_since
    is_running = (
        get_condition(this.status, ConditionType.PREFLIGHT_PASSED).reason == ConditionReason.RUNNING
    )
    return is_running and since is not None and this.elapsed(since) < UNSEEN_SECONDS


def _give_up_preflight(this: Round, message: str) -> Decision:
    """End the job without a result."""
    this.set_condition(ConditionType.PREFLIGHT_PASSED, False, ConditionReason.NO_RESULT, message)
    return fail_before_attempt(this, Cause.PREFLIGHT_FAILED, message)


def fail_before_attempt(this: Round, cause: Cause, message: str) -> Decision:
    """End the job between two attempts, until its spec is fixed or the user asks for a retry."""
    # The spec that must differ before a job that has not begun is tried again.
    preflight = replace(this.status.preflight, spec_hash=spec_hash(this.job))
    this.status = replace(this.status, preflight=preflight)
    this.store(replace(this.state.retry, preflight_losses=0))
    return recovery.fail(this, cause, message)


def _judge(this: Round, result: PreflightResult, wanted: str) -> Decision | None:
    """Fail the job and name every check that failed, or None: its checks and facts are fine."""
    facts = _with_device(result.facts, this.observed.device)
    resolved = resolve(this.job, facts)
    judged = violations(this.job, resolved, facts, in_pods=this.observed.in_pods)
    found = errors(judged)
    lines = [violation.line() for violation in found]
    state = CheckState.FAILED if found else CheckState.PASSED
    rules = Check(id=CheckId.RULES_ON_FACTS, state=state, evidence="; ".join(lines)[:512])
    memory = _memory_check(this, facts, judged)
    told = {c.id: c for c in result.checks} | {c.id: c for c in memory}
    checks = list((told | {rules.id: rules}).values())
    failed = [c for c in checks if c.state is CheckState.FAILED]
    pinned = replace(this.status.pinned, ray_version=this.job.status.ray_version)
    this.status = replace(
        this.status,
        pinned=pinned,
        preflight=PreflightStatus(spec_hash=wanted, checks=checks, facts=facts),
        sizing=size(resolved.spec, facts),  # also shows what does not fit
    )
    update_warnings(this, judged)
    this.store(replace(this.state.retry, preflight_losses=0))
    this.actions.append(DeletePreflight())
    if failed and {c.id for c in failed} <= OF_SERVICES and _is_outage(result):
        return _await_services(this, "; ".join(c.evidence for c in failed))
    outages.over(this, ConditionReason.ENDPOINT_RECOVERED)
    if failed:
        of_rules = (rules.id, CheckId.GPU_MEMORY)
        named = [f"{c.id}: {c.evidence}" for c in failed if c.id not in of_rules]
        message = "\n".join(named + lines)
        this.set_condition(ConditionType.PREFLIGHT_PASSED, False, failed[0].id, message)
        code = result.exit_code or ExitCode.PREFLIGHT_FAILED
        return recovery.fail(this, CAUSE_OF_EXIT.get(code, Cause.PREFLIGHT_FAILED), message)
    this.resolved = resolved
    if this.image:
        ray_version = pinned.ray_version or facts.ray_version
        known = pinned.image_id if pinned.image == this.image else ""
        pinned = replace(pinned, image=this.image, image_id=known, ray_version=ray_version)
        this.status = replace(this.status, pinned=pinned)
    this.store(outages.forgotten(this.state.watch))
    unknown = [v.line() for v in judged if v.reason is Reason.GPU_MEMORY_UNKNOWN]
    this.set_condition(
        ConditionType.PREFLIGHT_PASSED, True, ConditionReason.PASSED, "\n".join(unknown)
    )
    return None


def _with_device(facts: Facts, device: DeviceObserved | None) -> Facts:
    """Return the facts with the device that the operator saw, whatever the image said of it."""
    seen = device or DeviceObserved(0, 0, "")
    return facts.model_copy(
        update={
            "gpu_memory_mib": seen.memory_mib,
            "gpu_compute_major": seen.compute_major,
            "gpu_product": seen.product,
        }
    )


def _memory_check(this: Round, facts: Facts, judged: Sequence[Violation]) -> Iterator[Check]:
    """Yield the check GpuMemory as the rules decide it; preflight itself knows no device."""
    if this.spec.resources.device is Device.CPU or not facts.parameters:
        return
    found = tuple(v for v in judged if v.reason in OF_GPU_MEMORY)
    if failed := errors(found):
        state = CheckState.FAILED
    else:
        known = Reason.GPU_MEMORY_UNKNOWN not in {v.reason for v in found}
        state = CheckState.PASSED if known else CheckState.NOT_EVALUATED
    whole = gpu_memory.device_memory(this.spec, facts)
    source = "as given" if this.spec.resources.gpu_memory_gib else facts.gpu_product
    fits = f"{format_size(whole)} per GPU, {source}"
    lines = [v.line() for v in (failed or found)]
    yield Check(id=CheckId.GPU_MEMORY, state=state, evidence="; ".join(lines or [fits])[:512])


def _is_outage(result: PreflightResult) -> bool:
    return result.exit_code == ExitCode.RETRIEVAL_UNAVAILABLE


def _await_services(this: Round, evidence: str) -> Decision:
    """Wait for services that are down, with no pod of the job; the checks are made again."""
    watch = this.state.watch
    this.store(replace(watch, outage_since=watch.outage_since or this.now))
    if (late := outages.overdue(this)) is not None:
        this.set_condition(
            ConditionType.PREFLIGHT_PASSED, False, ConditionReason.WAITING_FOR_ENDPOINT, evidence
        )
        return recovery.fail(this, Cause.ENDPOINT_DOWN, f"{late}: {evidence}")
    since = format_time(this.state.watch.outage_since)
    outages.waiting(this, f"{evidence}; since {since}")
    this.set_condition(
        ConditionType.PREFLIGHT_PASSED, None, ConditionReason.WAITING_FOR_ENDPOINT, evidence
    )
    this.store(replace(this.state.launch, waiting_since=this.now))
    return this.decision(_pause_seconds(this))


def _pause(this: Round) -> Decision | None:
    """Wait before the checks are made again for a service that was down; None when it is time."""
    since, seen = this.state.launch.waiting_since or this.now, this.observed.preflight
    pause = _pause_seconds(this)
    left = pause - (this.now - since).total_seconds()
    if not 0 < left <= pause:  # over, or the clock was set back
        return None
    if seen is not None:  # its result has been judged
        this.actions.append(DeletePreflight())
    return this.decision(left + 0.1)


def _pause_seconds(this: Round) -> float:
    return min(OUTAGE_RETRY_SECONDS, this.spec.recovery.deadlines.outage_seconds)


def retrievers(this: Round) -> Decision | None:
    """Start managed retrievers and wait for them; None when all are ready."""
    if not (managed := ensure_retrievers(this)):
        return None
    seen = {r.name: r for r in this.observed.retrievers}
    waiting = [name for name in managed if name not in seen or not seen[name].is_ready]
    if not waiting:
        this.set_condition(
            ConditionType.RETRIEVER_READY, True, ConditionReason.READY, ", ".join(managed)
        )
        return None
    problems = "; ".join(f"{n}: {seen[n].problem}" for n in waiting if n in seen)
    if not seen:
        this.store(replace(this.state.launch, waiting_since=this.now))
    this.set_condition(
        ConditionType.RETRIEVER_READY, False, ConditionReason.RETRIEVER_NOT_READY, problems
    )
    for retriever in this.observed.retrievers:
        if retriever.cause is not None:
            return recovery.fail(this, retriever.cause, f"{retriever.name}: {retriever.problem}")
    limit = this.spec.recovery.deadlines.provisioning_seconds
    if this.elapsed(this.state.launch.waiting_since) > limit:
        message = (
            f"the managed retriever was not ready after {limit} s: {problems}; "
            "recovery.deadlines.provisioningSeconds gives it more time"
        )
        return recovery.fail(this, Cause.START_FAILED, message)
    return this.decision(requeue_after=0.5)


def ensure_retrievers(this: Round) -> list[str]:
    """Start the managed retrievers that do not run; returns the names of all."""
    managed = this.spec.retrieval.managed
    alive = {r.name for r in this.observed.retrievers if not r.has_ended}
    if missing := [name for name in managed if name not in alive]:
        plan = this.pod_plan()
        this.actions.extend(StartRetriever(plan, name, managed[name]) for name in missing)
    return list(managed)
