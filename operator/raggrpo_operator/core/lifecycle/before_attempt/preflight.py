"""Preflight: run once per spec, evaluate the result, retry during an outage. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from raggrpo_api.fields.base import format_time
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.recovery import Deadlines
from raggrpo_api.spec.resources import Device
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, PreflightStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.config import content_hash
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, Facts, PreflightResult
from raggrpo_operator.core.lifecycle.actions import DeletePreflight, StartPreflight
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
from raggrpo_operator.core.state.observed_time import elapsed

GPU_MEMORY_REASONS = frozenset(
    {
        Reason.TRAINING_STATE_DOES_NOT_FIT,
        Reason.WEIGHTS_DO_NOT_FIT,
        Reason.ACTIVATIONS_MAY_NOT_FIT,
        Reason.KV_CACHE_IS_SHORT,
        Reason.GPU_MEMORY_UNKNOWN,
    }
)
"""Reasons of the violations that the GpuMemory check reports."""
SERVICE_CHECKS = frozenset({CheckId.RETRIEVAL_REACHABLE, CheckId.REWARD_CODE, CheckId.AGENT_READY})
"""Checks that may fail because a retrieval endpoint, a judge or an application is down."""
OUTAGE_RETRY_SECONDS = 30.0
"""Seconds between preflight retries during an outage; each retry starts a pod."""
OBSERVATION_LAG_SECONDS = 10.0
"""Seconds for which the pod of a preflight that was just started may not be cached yet."""
MAX_PREFLIGHT_LOSSES = 3
"""Maximum retries of a preflight that exits without a result (evicted pod, broken image)."""


def spec_hash(job: RagGrpoJob) -> str:
    """Return the hash of the spec fields that affect preflight."""
    spec = job.manifest()["spec"]
    ignored = ("suspend", "output", "recovery", "ttlSecondsAfterFinished", "activeDeadlineSeconds")
    hashed = {key: value for key, value in spec.items() if key not in ignored}
    if "training" in hashed:
        lengths = ("totalSteps", "epochs")
        hashed["training"] = {k: v for k, v in hashed["training"].items() if k not in lengths}
    return content_hash(hashed)


def run_preflight(this: Round) -> Decision | None:
    """Run preflight once per spec hash; return None once preflight has passed."""
    expected, observed, status = spec_hash(this.job), this.observed.preflight, this.status
    if status.preflight.spec_hash == expected and is_true(status, ConditionType.PREFLIGHT_PASSED):
        if observed is not None:
            this.actions.append(DeletePreflight())
        return None
    is_current = status.preflight.spec_hash == expected
    if is_current and is_true(status, ConditionType.WAITING_FOR_ENDPOINT):
        if (remaining := remaining_wait(this, ConditionType.PREFLIGHT_PASSED)) > 0:
            if observed is not None:  # an earlier round evaluated the result
                this.actions.append(DeletePreflight())
            return this.decision(remaining + 0.1)
    elif observed is None or observed.spec_hash != expected:  # the first preflight of this spec
        this.store(outages.reset_timer(this.state.watch))
    losses = this.state.retry.preflight_losses
    if observed is not None and observed.cannot_start and observed.spec_hash == expected:
        return _fail_without_result(this, observed.problem, Cause.START_FAILED)
    if observed is not None and observed.problem and losses >= MAX_PREFLIGHT_LOSSES:
        return _fail_without_result(this, observed.problem)
    is_outdated = observed is not None and observed.spec_hash != expected
    if (observed is None and not _was_just_started(this.status, this.now)) or is_outdated:
        this.store(replace(this.state.launch, waiting_since=this.now))
    problem = observed.problem if observed is not None else ""
    waiting_for = observed.waiting_for if observed is not None else ""
    reason = observed.waiting_reason if observed and waiting_for else ConditionReason.RUNNING
    this.set_condition(ConditionType.PREFLIGHT_PASSED, None, reason, problem or waiting_for)
    limit = this.spec.recovery.deadlines.preflight_seconds
    is_timed_out = this.elapsed(this.state.launch.waiting_since) > limit
    if is_timed_out and (observed is None or observed.result is None):
        why = problem or waiting_for or "no result"
        message = (
            f"preflight did not finish within {limit} s: {why}; "
            "to wait longer, increase recovery.deadlines.preflightSeconds"
        )
        return _fail_without_result(this, message)
    if observed is None or observed.spec_hash != expected or problem:
        if (
            observed is not None
        ):  # keep the count if there is no pod: a lost pod may already be deleted
            losses = losses + 1 if problem else 0
            this.store(replace(this.state.retry, preflight_losses=losses))
            this.actions.append(DeletePreflight())
        this.actions.append(StartPreflight(this.pod_plan(), this.attempt_config(), expected))
        return this.decision(requeue_after=1.0 if observed is None else POLL_SECONDS)
    if observed.result is None:
        return this.decision(requeue_after=0.5)
    return _evaluate(this, observed.result, expected)


def _was_just_started(status: JobStatus, now: datetime) -> bool:
    """Return whether preflight was started too recently to be observed."""
    state = status.restart_state
    since = state.launch.waiting_since
    reason = get_condition(status, ConditionType.PREFLIGHT_PASSED).reason
    if reason != ConditionReason.RUNNING or since is None:
        return False
    return elapsed(since, state.watch, now) < OBSERVATION_LAG_SECONDS


def _fail_without_result(
    this: Round, message: str, cause: Cause = Cause.PREFLIGHT_FAILED
) -> Decision:
    """Fail the job because preflight returned no result."""
    this.set_condition(ConditionType.PREFLIGHT_PASSED, False, ConditionReason.NO_RESULT, message)
    return fail_before_attempt(this, cause, message)


def fail_before_attempt(this: Round, cause: Cause, message: str) -> Decision:
    """Fail the job before its next attempt; a spec change or the retry annotation reopens it."""
    # A failed job without attempts is reopened when its spec hash differs from the stored hash.
    preflight = replace(this.status.preflight, spec_hash=spec_hash(this.job))
    this.status = replace(this.status, preflight=preflight)
    this.store(replace(this.state.retry, preflight_losses=0))
    return recovery.fail(this, cause, message)


def _evaluate(this: Round, result: PreflightResult, expected: str) -> Decision | None:
    """Evaluate a preflight result; return None if no check failed.

    If checks failed only because services are down, the job waits. Otherwise the job fails with
    the evidence of all failed checks.
    """
    facts = _with_device(result.facts, this.observed.device)
    resolved = resolve(this.job, facts)
    all_violations = violations(this.job, resolved, facts, in_pods=this.observed.in_pods)
    fatal = errors(all_violations)
    fatal_lines = [violation.line() for violation in fatal]
    state = CheckState.FAILED if fatal else CheckState.PASSED
    rules = Check(id=CheckId.RULES_ON_FACTS, state=state, evidence="; ".join(fatal_lines)[:512])
    memory = _memory_check(this.spec, facts, all_violations)
    by_id = {c.id: c for c in result.checks} | {c.id: c for c in memory}
    checks = list((by_id | {rules.id: rules}).values())
    failed = [c for c in checks if c.state is CheckState.FAILED]
    pinned = replace(this.status.pinned, ray_version=this.job.status.ray_version)
    this.status = replace(
        this.status,
        pinned=pinned,
        preflight=PreflightStatus(spec_hash=expected, checks=checks, facts=facts),
        sizing=size(resolved.spec, facts),  # reported even if the job does not fit
    )
    update_warnings(this, all_violations)
    this.store(replace(this.state.retry, preflight_losses=0))
    this.actions.append(DeletePreflight())
    if failed and {c.id for c in failed} <= SERVICE_CHECKS and _is_outage(result):
        return wait_for_services(
            this, ConditionType.PREFLIGHT_PASSED, "; ".join(c.evidence for c in failed)
        )
    outages.clear_waiting(this, ConditionReason.ENDPOINT_RECOVERED)
    if failed:
        rule_checks = (rules.id, CheckId.GPU_MEMORY)
        check_lines = [f"{c.id}: {c.evidence}" for c in failed if c.id not in rule_checks]
        message = "\n".join(check_lines + fatal_lines)
        this.set_condition(ConditionType.PREFLIGHT_PASSED, False, failed[0].id, message)
        code = result.exit_code or ExitCode.PREFLIGHT_FAILED
        return recovery.fail(this, CAUSE_OF_EXIT.get(code, Cause.PREFLIGHT_FAILED), message)
    this.resolved = resolved
    if this.image:
        ray_version = pinned.ray_version or facts.ray_version
        image_id = pinned.image_id if pinned.image == this.image else ""
        pinned = replace(pinned, image=this.image, image_id=image_id, ray_version=ray_version)
        this.status = replace(this.status, pinned=pinned)
    this.store(outages.reset_timer(this.state.watch))
    unknown = [v.line() for v in all_violations if v.reason is Reason.GPU_MEMORY_UNKNOWN]
    unknown += [
        f"{check.id} was not evaluated: {check.evidence}"
        for check in checks
        if check.id is CheckId.AGENT_READY and check.state is CheckState.NOT_EVALUATED
    ]
    this.set_condition(
        ConditionType.PREFLIGHT_PASSED, True, ConditionReason.PASSED, "\n".join(unknown)
    )
    return None


def _with_device(facts: Facts, device: DeviceObserved | None) -> Facts:
    """Return `facts` with the GPU from node labels instead of the GPU in the preflight result."""
    observed = device or DeviceObserved(0, 0, "")
    return facts.model_copy(
        update={
            "gpu_memory_mib": observed.memory_mib,
            "gpu_compute_major": observed.compute_major,
            "gpu_product": observed.product,
        }
    )


def _memory_check(
    spec: JobSpec, facts: Facts, all_violations: Sequence[Violation]
) -> Iterator[Check]:
    """Yield the GpuMemory check, derived from rules because the preflight pod has no GPU."""
    if spec.resources.device is Device.CPU or not facts.parameters:
        return
    relevant = tuple(v for v in all_violations if v.reason in GPU_MEMORY_REASONS)
    if failed := errors(relevant):
        state = CheckState.FAILED
    else:
        is_known = Reason.GPU_MEMORY_UNKNOWN not in {v.reason for v in relevant}
        state = CheckState.PASSED if is_known else CheckState.NOT_EVALUATED
    available = gpu_memory.device_memory(spec, facts)
    source = "as specified" if spec.resources.gpu_memory_gib else facts.gpu_product
    fits = f"{format_size(available)} per GPU, {source}"
    lines = [v.line() for v in (failed or relevant)]
    yield Check(id=CheckId.GPU_MEMORY, state=state, evidence="; ".join(lines or [fits])[:512])


def _is_outage(result: PreflightResult) -> bool:
    return result.exit_code == ExitCode.RETRIEVAL_UNAVAILABLE


def wait_for_services(this: Round, kind: ConditionType, evidence: str) -> Decision:
    """Wait without any pods for services to recover; a later round retries the step before.

    `kind` is the condition of the step. Fails the job after recovery.deadlines.outageSeconds.
    """
    watch = this.state.watch
    this.store(replace(watch, outage_since=watch.outage_since or this.now))
    limit = this.spec.recovery.deadlines.outage_seconds
    if (timeout := outages.timeout_message(this.state.watch, limit, this.now)) is not None:
        this.set_condition(kind, False, ConditionReason.WAITING_FOR_ENDPOINT, evidence)
        return fail_before_attempt(this, Cause.ENDPOINT_DOWN, f"{timeout}: {evidence}")
    since = format_time(this.state.watch.outage_since)
    outages.set_waiting(this, f"{evidence}; since {since}")
    this.set_condition(kind, None, ConditionReason.WAITING_FOR_ENDPOINT, evidence)
    this.store(replace(this.state.launch, waiting_since=this.now))
    return this.decision(_retry_seconds(this.spec.recovery.deadlines))


def remaining_wait(this: Round, kind: ConditionType) -> float:
    """Return the seconds until the retry of a step that waits for services; 0 if it is due."""
    is_waiting = is_true(this.status, ConditionType.WAITING_FOR_ENDPOINT)
    reason = get_condition(this.status, kind).reason
    if not is_waiting or reason != ConditionReason.WAITING_FOR_ENDPOINT:
        return 0.0
    since = this.state.launch.waiting_since or this.now
    interval = _retry_seconds(this.spec.recovery.deadlines)
    remaining = interval - (this.now - since).total_seconds()
    return remaining if 0 < remaining <= interval else 0.0  # longer: the clock was set back


def _retry_seconds(deadlines: Deadlines) -> float:
    return min(OUTAGE_RETRY_SECONDS, deadlines.outage_seconds)
