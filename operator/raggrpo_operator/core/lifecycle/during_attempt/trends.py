"""Trends of a running attempt: slower steps, growing memory, a trainer unlike its engine. Pure.

The first two compare with the attempt's own beginning. They warn; a job may ask to be restarted for
them. A mismatch only warns here: one of nats ends the attempt from inside.
"""

from collections.abc import Mapping
from dataclasses import replace

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import Baseline
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.sizing.size import sizing_for
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.state.conditions import get_condition, is_true

WARM_UP_STEPS = 10
"""Steps of an attempt before the baseline: caches fill and kernels are compiled in the first."""
SLOWER, RECOVERED = 1.3, 1.2
"""Multiples of the baseline's step time at which the condition begins and ends."""
SPAN_STEPS = 20
LEAST_GROWTH = 0.05
"""Share of the limit; less is noise, even if it would exceed the limit in the end."""
MOST_BYTES = 2.0**50
MEMORY = {PodRole.HEAD: "host_memory_bytes", PodRole.TRAINER: "rank_memory_bytes"}
"""Metric of each role's pods; the largest value where there are several."""
TREND_REASONS = {
    ConditionType.SLOWING_DOWN: {
        True: ConditionReason.STEP_TIME_INCREASED,
        False: ConditionReason.STEP_TIME_STABLE,
    },
    ConditionType.HOST_MEMORY_GROWING: {
        True: ConditionReason.MEMORY_GROWING,
        False: ConditionReason.MEMORY_STABLE,
    },
}


MISMATCH = "mismatch_mean"
MISMATCH_LIMITS = {"FP32": 0.01, "BF16": 0.1}
"""Mean |trainer - engine log-probability| per token in nats, by precision; healthy steps stay ten
times below. With `offPolicySteps` it includes one step of learning."""


def note_mismatch(this: Round, progress: Progress) -> None:
    """Keep PolicyMismatch up to date; it says from which step on the numbers were off."""
    found = next((_number(m.value) for m in progress.metrics if m.name == MISMATCH), None)
    if found is None:
        return
    limit = MISMATCH_LIMITS.get(this.status.pinned.precision, MISMATCH_LIMITS["BF16"])
    message = (
        f"trainer and engine differ by {found:.3g} nats per token at step {progress.step}, "
        f"limit {limit:g}: they do not compute the same model"
    )
    is_off = found > limit
    if is_off != is_true(this.status, ConditionType.POLICY_MISMATCH):
        reason = ConditionReason.LOGPROBS_DIFFER if is_off else ConditionReason.LOGPROBS_AGREE
        this.set_condition(ConditionType.POLICY_MISMATCH, is_off, reason, message if is_off else "")


def note_trends(this: Round, progress: Progress) -> None:
    """Take the baseline once per attempt, then keep both conditions up to date."""
    base, began = this.state.baseline, progress.started_from_step
    if progress.stage is not Stage.TRAINING or began is None:
        return
    if base.step:
        is_slow = is_true(this.status, ConditionType.SLOWING_DOWN)
        limits = {
            role: parse_quantity(sizing_for(this.status.sizing, role).memory) for role in MEMORY
        }
        _set(this, ConditionType.SLOWING_DOWN, slowdown_message(base, progress, is_slow=is_slow))
        _set(this, ConditionType.HOST_MEMORY_GROWING, memory_growth_message(base, progress, limits))
    elif progress.step - began >= WARM_UP_STEPS:
        this.state = replace(this.state, baseline=baseline_of(progress))
        _set(this, ConditionType.SLOWING_DOWN, "")
        _set(this, ConditionType.HOST_MEMORY_GROWING, "")


def degradation(status: JobStatus) -> str:
    """Return what a new attempt would fix; empty if nothing has degraded."""
    if not status.restart_state.baseline.step:  # conditions still describe the previous attempt
        return ""
    found = (get_condition(status, kind) for kind in TREND_REASONS)
    return "; ".join(f"{each.type}: {each.message}" for each in found if each.status == "True")


def baseline_of(progress: Progress) -> Baseline:
    """Return what later steps are compared with."""
    return Baseline(
        step=progress.step,
        seconds=round(progress.seconds_per_step, 3),
        seconds_by_stage={k: round(v, 3) for k, v in progress.seconds_by_stage.items()},
        host_memory=round(_memory(progress, PodRole.HEAD)),
        rank_memory=round(_memory(progress, PodRole.TRAINER)),
    )


def slowdown_message(base: Baseline, progress: Progress, *, is_slow: bool) -> str:
    """Return how the steps got slower, with the stage that grew most; empty when they did not."""
    limit = RECOVERED if is_slow else SLOWER
    if progress.seconds_per_step <= limit * base.seconds:
        return ""
    text = f"{progress.seconds_per_step:.2f} s per step, {base.seconds:.2f} s at step {base.step}"
    now, before = progress.seconds_by_stage, base.seconds_by_stage
    if not now:
        return text
    stage = max(now, key=lambda name: now[name] - before.get(name, 0.0))
    return f"{text}: {stage} grew from {before.get(stage, 0.0):.2f} to {now[stage]:.2f} s"


def memory_growth_message(
    base: Baseline, progress: Progress, limits: Mapping[PodRole, float]
) -> str:
    """Return when a pod will exceed its memory limit; empty if not within this job.

    `limits` are in bytes, 0 for none.
    """
    before = {PodRole.HEAD: base.host_memory, PodRole.TRAINER: base.rank_memory}
    found = (_grows(role, base.step, before[role], progress, limits[role]) for role in MEMORY)
    return "; ".join(filter(None, found))


def _grows(role: PodRole, since: int, before: int, progress: Progress, limit: float) -> str:
    now, steps = _memory(progress, role), progress.step - since
    grown = now - before
    if not (limit and now and before) or steps < SPAN_STEPS:
        return ""
    left = progress.total_steps - progress.step
    if grown < LEAST_GROWTH * limit or now + left * grown / steps <= limit:
        return ""
    last = progress.step + int(max(0.0, limit - now) * steps / grown)
    return (
        f"{role} pod: {now / GIB:.2f} GiB, {before / GIB:.2f} GiB at step {since}; "
        f"the limit of {limit / GIB:.2f} GiB is reached at about step {last}"
    )


def _set(this: Round, kind: ConditionType, message: str) -> None:
    """Set the condition only when it flips: its message changes with every step."""
    if bool(message) != is_true(this.status, kind):
        this.set_condition(kind, bool(message), TREND_REASONS[kind][bool(message)], message)


def _memory(progress: Progress, role: PodRole) -> float:
    return next((_bytes(m.value) for m in progress.metrics if m.name == MEMORY[role]), 0.0)


def _bytes(text: str) -> float:
    """Return what a pod reports as its memory, 0 for what no memory can be."""
    found = _number(text)
    return found if found is not None and 0 <= found <= MOST_BYTES else 0.0


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
