"""Render a job's status for the command line. Pure."""

import textwrap
from collections.abc import Iterator

from raggrpo_api.fields.base import format_time
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_api.trainer.progress import Stage
from raggrpo_operator.core.lifecycle.deadlines.stage_deadlines import advice
from raggrpo_operator.core.state.conditions import get_condition, not_learning_reason
from raggrpo_operator.core.state.readiness import explanations

from .segments import segment_text
from .sizing_text import INDENT, sizing_lines

LABEL_WIDTH = 10
SHOWN_ATTEMPTS = 3
"""Number of newest attempts in the text."""
SHOWN_SEGMENTS = 3
"""Number of newest segments in the text."""
SHOWN_WARNINGS = 2
REWARD = "reward_mean"
ACCEPTED = (CheckState.PASSED, CheckState.WARNED)


def render_status(status: JobStatus, width: int = 100, *, with_sizing: bool = False) -> str:
    """Return the status as text with lines of at most `width` characters.

    Conditions that do not explain the state of the job share one line.
    """
    lines = [*_lines(status, width)]
    if with_sizing and status.sizing.pods:
        lines += ["sizing", *sizing_lines(status.sizing, width)]
    return "\n".join(lines) + "\n"


def is_attempt_running(status: JobStatus) -> bool:
    """Return whether stage and remaining time in the status are those of a running attempt."""
    return status.phase in (Phase.STARTING, Phase.RUNNING)


def phase_text(status: JobStatus) -> str:
    """Return the phase, with the reason of NotLearning if this condition is True."""
    reason = not_learning_reason(status)
    return f"{status.phase}, NotLearning ({reason})" if reason else status.phase


def reward(status: JobStatus) -> str:
    """Return the latest mean reward, or "" before the first step."""
    values = {metric.name: metric.value for metric in status.progress.metrics}
    return values.get(REWARD, "")


def labeled(label: str, text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text, wrapped and indented, after a label."""
    margin, indent = f"{label:<{LABEL_WIDTH}}", " " * (LABEL_WIDTH + len(INDENT))
    for line in text.splitlines():
        yield from textwrap.wrap(
            line, width, initial_indent=margin, subsequent_indent=indent, break_on_hyphens=False
        )
        margin = indent


def _lines(status: JobStatus, width: int) -> Iterator[str]:
    yield from labeled("phase", phase_text(status), width)
    yield from labeled("progress", _progress(status), width)
    learning = get_condition(status, ConditionType.NOT_LEARNING)
    if learning.status == "True":
        yield from labeled("learning", f"no: {learning.message}", width)
    outage = get_condition(status, ConditionType.WAITING_FOR_ENDPOINT)
    if outage.status == "True":
        yield from labeled("waiting", f"for {outage.message}", width)
    elif status.phase is Phase.STARTING and status.progress.stage in set(Stage):
        since = format_time(status.restart_state.watch.still_since)
        stage = Stage(status.progress.stage)
        yield from labeled("stage", f"{stage} since {since}: {advice(stage)}", width)
    if status.pinned.attention:
        text = f"{status.pinned.attention}, precision {status.pinned.precision}"
        yield from labeled("attention", text, width)
    for check in status.preflight.checks:
        if check.id is CheckId.LORA_TARGETS and check.state in ACCEPTED:
            yield from labeled("LoRA", check.evidence, width)
    if status.checkpoint is not None:
        yield from labeled("newest", status.checkpoint.path, width)
    if status.best_step is not None:
        score = f", {status.best_score}" if status.best_score else ""
        yield from labeled("best", f"checkpoint of step {status.best_step}{score}", width)
    if status.push.url:
        revision = f", revision {status.push.revision}" if status.push.revision else ""
        yield from labeled("pushed", f"{status.push.url}{revision}", width)
    if status.restarts.total:
        yield from labeled("restarts", _restarts(status), width)
    if status.effective_training_time_ratio:
        text = f"{status.effective_training_time_ratio} (share of time spent on retained steps)"
        yield from labeled("ETTR", text, width)
    if status.waiting_time_ratio:
        text = f"{status.waiting_time_ratio} (share of time spent waiting for services)"
        yield from labeled("waited", text, width)
    if earlier := len(status.attempts[SHOWN_ATTEMPTS:]):
        yield from labeled("attempts", f"{earlier} earlier; the report lists all", width)
    for attempt in reversed(status.attempts[:SHOWN_ATTEMPTS]):
        yield from labeled("attempt", _attempt(attempt), width)
    if earlier := len(status.segments[:-SHOWN_SEGMENTS]):
        yield from labeled("segments", f"{earlier} earlier; the report lists all", width)
    for segment in status.segments[-SHOWN_SEGMENTS:]:
        yield from labeled("segment", segment_text(segment), width)
    for warning in status.warnings[:SHOWN_WARNINGS]:
        yield from labeled("warning", f"{warning.path}: {warning.message}", width)
    if more := status.unlisted_warnings + len(status.warnings[SHOWN_WARNINGS:]):
        text = f"{more} more; `raggrpo plan` lists those of the spec"
        yield from labeled("warning", text, width)
    explaining = [*explanations(status)]
    for condition in explaining:
        yield from labeled("condition", _condition(condition), width)
    others = [f"{each.type}={each.status}" for each in status.conditions if each not in explaining]
    if others:
        yield from labeled("others", ", ".join(others), width)


def _progress(status: JobStatus) -> str:
    progress = status.progress
    is_running = is_attempt_running(status)
    parts = []
    if progress.total_steps:
        percentage = progress.progress_percentage
        parts.append(f"step {progress.step}/{progress.total_steps} ({percentage} %)")
    elif progress.step:
        parts.append(f"step {progress.step}")
    if progress.seconds_per_step:
        parts.append(f"{progress.seconds_per_step:g} s/step")
    if is_running and progress.stage:
        parts.append(f"stage {progress.stage}")
    if is_running and progress.estimated_remaining_seconds is not None:
        parts.append(f"{progress.estimated_remaining_seconds} s remaining")
    if reward(status):
        parts.append(f"reward {reward(status)}")
    return ", ".join(parts)


def _restarts(status: JobStatus) -> str:
    by_cause = ", ".join(f"{cause} {n}" for cause, n in status.restarts.by_cause.items())
    lost = f"; lost steps: {status.restarts.lost_steps}" if status.restarts.lost_steps else ""
    return f"{status.restarts.total}{': ' if by_cause else ''}{by_cause}{lost}"


def _attempt(attempt: AttemptRecord) -> str:
    first_step = attempt.from_step if attempt.from_step is not None else "?"
    head = (
        f"{attempt.number} ({attempt.tier}): {attempt.cause or 'running'}, steps "
        f"{first_step} to {attempt.to_step}, lost {attempt.lost_steps}"
    )
    return "\n".join([head, *attempt.message.splitlines(), *attempt.in_place])


def _condition(condition: Condition) -> str:
    colon = ": " if condition.message else ""
    return f"{condition.type}={condition.status} {condition.reason}{colon}{condition.message}"
