"""Trend conditions of a running attempt. Pure.

SlowingDown and HostMemoryGrowing compare the attempt with a baseline taken after its first steps;
with `recovery.restartWhenDegraded`, either condition restarts the attempt. The baseline is scaled
to the current numbers of tokens, because a step with longer completions, or with more groups to
train on, takes longer although nothing is slow. PolicyMismatch only warns: the trainer itself exits
on a larger mismatch.
"""

from collections.abc import Iterator, Mapping

from raggrpo_api.memory.arithmetic import GIB
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.status.restart_state import Baseline
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.sizing.size import sizing_for
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.state.conditions import ConditionChange, get_condition, is_true

WARM_UP_STEPS = 10
"""Steps before the baseline is taken; the first steps fill caches and compile kernels."""
SLOW_RATIO = 1.3
"""Step time relative to the scaled baseline at which SlowingDown becomes True."""
RECOVERED_RATIO = 1.2
"""Step time relative to the scaled baseline at which SlowingDown becomes False again."""
MIN_SPAN_STEPS = 20
"""Minimum number of steps since the baseline for extrapolating memory growth."""
MIN_GROWTH = 0.05
"""Minimum growth to report, as a share of the memory limit; less growth is noise."""
MEMORY_METRICS = {PodRole.HEAD: "host_memory_bytes", PodRole.TRAINER: "rank_memory_bytes"}
"""Metric with the maximum memory usage over the pods of each role."""
TOKENS = {"generate": "generated", "train": "trained"}
"""Name of the tokens of each stage that has tokens."""
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

MISMATCH_METRIC = "mismatch_mean"
MISMATCH_LIMITS = {"FP32": 0.01, "BF16": 0.1}
"""Limits of the mean |trainer logprob - engine logprob| per token, in nats, by precision.

Healthy steps stay below a tenth of the limit. With `offPolicySteps`, the mean also includes the
effect of one policy update.
"""


def mismatch_change(status: JobStatus, progress: Progress) -> Iterator[ConditionChange]:
    """Yield the transition of PolicyMismatch, if any, with the first step above the limit."""
    values = (m.number for m in progress.metrics if m.name == MISMATCH_METRIC)
    mismatch = next(values, None)
    if mismatch is None:
        return
    limit = MISMATCH_LIMITS.get(status.pinned.precision, MISMATCH_LIMITS["BF16"])
    is_exceeded = mismatch > limit
    if is_exceeded == is_true(status, ConditionType.POLICY_MISMATCH):
        return
    if not is_exceeded:
        yield ConditionChange(ConditionType.POLICY_MISMATCH, False, ConditionReason.LOGPROBS_AGREE)
        return
    message = (
        f"logprobs of trainer and engine differ by {mismatch:.3g} nats per token at step "
        f"{progress.step} (limit {limit:g}): they do not compute the same model"
    )
    yield ConditionChange(
        ConditionType.POLICY_MISMATCH, True, ConditionReason.LOGPROBS_DIFFER, message
    )


def is_baseline_due(baseline: Baseline, progress: Progress) -> bool:
    """Return whether the attempt has completed its warm-up steps and has no baseline yet."""
    first_step = progress.started_from_step
    if baseline.step or progress.stage is not Stage.TRAINING or first_step is None:
        return False
    return progress.step - first_step >= WARM_UP_STEPS


def baseline_of(progress: Progress) -> Baseline:
    """Return a baseline with the current step time and memory usage."""
    return Baseline(
        step=progress.step,
        seconds=round(progress.seconds_per_step, 3),
        seconds_by_stage={k: round(v, 3) for k, v in progress.seconds_by_stage.items()},
        tokens_by_stage=dict(progress.tokens_by_stage),
        host_memory=round(_memory(progress, PodRole.HEAD)),
        rank_memory=round(_memory(progress, PodRole.TRAINER)),
    )


def trend_changes(status: JobStatus, progress: Progress) -> Iterator[ConditionChange]:
    """Yield the changes of SlowingDown and HostMemoryGrowing; messages have current values."""
    baseline = status.restart_state.baseline
    if progress.stage is not Stage.TRAINING or progress.started_from_step is None:
        return
    if not baseline.step:
        return
    messages = dict.fromkeys(TREND_REASONS, "")
    if progress.step != baseline.step:
        is_slow = is_true(status, ConditionType.SLOWING_DOWN)
        limits = {
            role: parse_quantity(sizing_for(status.sizing, role).memory) for role in MEMORY_METRICS
        }
        messages = {
            ConditionType.SLOWING_DOWN: slowdown_message(baseline, progress, is_slow=is_slow),
            ConditionType.HOST_MEMORY_GROWING: memory_growth_message(baseline, progress, limits),
        }
    for kind, message in messages.items():
        if message or is_true(status, kind):
            yield ConditionChange(kind, bool(message), TREND_REASONS[kind][bool(message)], message)


def degradation(status: JobStatus) -> str:
    """Return the degradation for which to restart the attempt, or "" without degradation."""
    if not status.restart_state.baseline.step:  # the conditions still describe the previous attempt
        return ""
    conditions = (get_condition(status, kind) for kind in TREND_REASONS)
    return "; ".join(f"{each.type}: {each.message}" for each in conditions if each.status == "True")


def end_changes(status: JobStatus) -> Iterator[ConditionChange]:
    """Yield the changes that clear the trends of an attempt that has ended."""
    for kind in TREND_REASONS:
        if is_true(status, kind):
            yield ConditionChange(kind, False, ConditionReason.ATTEMPT_ENDED)


def slowdown_message(baseline: Baseline, progress: Progress, *, is_slow: bool) -> str:
    """Return the step times and the stage that slowed down most, or "" if steps are not slow."""
    ratio = RECOVERED_RATIO if is_slow else SLOW_RATIO
    now, before = progress.seconds_by_stage, baseline.seconds_by_stage
    growth = {stage: _expected_growth(baseline, progress, stage) for stage in now}
    expected = baseline.seconds + sum(growth.values())
    if progress.seconds_per_step <= ratio * expected:
        return ""
    text = (
        f"{progress.seconds_per_step:.2f} s per step, "
        f"{baseline.seconds:.2f} s at step {baseline.step}"
    )
    if expected > baseline.seconds:
        text += f" ({expected:.2f} s for the current number of tokens)"
    if not now:
        return text
    stage = max(now, key=lambda name: now[name] - before.get(name, 0.0) - growth[name])
    text += f": {stage} grew from {before.get(stage, 0.0):.2f} to {now[stage]:.2f} s"
    return text + _pace_remark(baseline, progress, stage)


def _expected_growth(baseline: Baseline, progress: Progress, stage: str) -> float:
    """Return the seconds by which a stage is expected to grow because it has more tokens.

    Fewer tokens are not expected to save time: a stage also has costs that do not depend on them.
    All growth is expected if the baseline had no tokens.
    """
    now, tokens = progress.seconds_by_stage[stage], progress.tokens_by_stage.get(stage, 0)
    seconds_before = baseline.seconds_by_stage.get(stage, 0.0)
    tokens_before = baseline.tokens_by_stage.get(stage, 0)
    if tokens <= tokens_before:
        return 0.0
    if not tokens_before:
        return max(0.0, now - seconds_before)
    return seconds_before * (tokens / tokens_before - 1)


def _pace_remark(baseline: Baseline, progress: Progress, stage: str) -> str:
    """Return the stage's pace per token, now and at the baseline, or "" if it has no tokens."""
    tokens = progress.tokens_by_stage.get(stage, 0)
    tokens_before = baseline.tokens_by_stage.get(stage, 0)
    if not (tokens and tokens_before):
        return ""
    now = 1000 * progress.seconds_by_stage[stage] / tokens
    before = 1000 * baseline.seconds_by_stage.get(stage, 0.0) / tokens_before
    token = f"{TOKENS.get(stage, stage)} token"
    return f" ({now:.3g} ms per {token}, {before:.3g} ms at step {baseline.step})"


def memory_growth_message(
    baseline: Baseline, progress: Progress, limits: Mapping[PodRole, float]
) -> str:
    """Return a message with the step at which pods are projected to reach their memory limits.

    Returns "" if no limit would be reached before the last step. `limits` are in bytes; 0 means no
    limit.
    """
    before = {PodRole.HEAD: baseline.host_memory, PodRole.TRAINER: baseline.rank_memory}
    messages = (
        _role_message(role, baseline.step, before[role], progress, limits[role])
        for role in MEMORY_METRICS
    )
    return "; ".join(filter(None, messages))


def _role_message(role: PodRole, since: int, before: int, progress: Progress, limit: float) -> str:
    now = _memory(progress, role)
    steps = progress.step - since
    growth = now - before
    if not (limit and now and before) or steps < MIN_SPAN_STEPS:
        return ""
    remaining = progress.total_steps - progress.step
    if growth < MIN_GROWTH * limit or now + remaining * growth / steps <= limit:
        return ""
    last = progress.step + int(max(0.0, limit - now) * steps / growth)
    return (
        f"{role} pod: {now / GIB:.2f} GiB, {before / GIB:.2f} GiB at step {since}; "
        f"projected to reach the limit of {limit / GIB:.2f} GiB at about step {last}"
    )


def _memory(progress: Progress, role: PodRole) -> float:
    values = (m.size for m in progress.metrics if m.name == MEMORY_METRICS[role])
    return next(values, 0.0)
