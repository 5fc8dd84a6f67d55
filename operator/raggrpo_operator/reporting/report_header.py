"""Header of the report: name, phase, problems with their remedies, and tiles with key figures."""

from collections.abc import Iterator
from html import escape

from raggrpo_api.fields.base import format_time
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.preflight import CheckState
from raggrpo_operator.core.state.conditions import is_true
from raggrpo_operator.core.state.readiness import explanations
from raggrpo_operator.core.text.enum_texts import member_texts
from raggrpo_operator.core.text.figures import Figures
from raggrpo_operator.core.text.status_text import phase_text

from .html_tables import cell_text

PHASE_CSS = {Phase.SUCCEEDED: "good", Phase.FAILED: "bad", Phase.INVALID: "bad"}
PROBLEMS = frozenset(
    {
        ConditionType.FAILED,
        ConditionType.ACCEPTED,
        ConditionType.WAITING_FOR_ENDPOINT,
        ConditionType.PREFLIGHT_PASSED,
        ConditionType.STALLED,
        ConditionType.CHECKPOINT_HEALTHY,
        ConditionType.RESUME_VERIFIED,
        ConditionType.NOT_LEARNING,
        ConditionType.SLOWING_DOWN,
        ConditionType.HOST_MEMORY_GROWING,
        ConditionType.POLICY_MISMATCH,
        ConditionType.RESULT_PUSHED,
    }
)
"""Conditions that are problems if they explain the state of a job and are not Unknown."""


def header(name: str, status: JobStatus, results: Figures) -> str:
    """Return the header as HTML."""
    times = " – ".join(map(format_time, filter(None, (status.start_time, status.completion_time))))
    blocks = "".join(
        f'<div class="tile"><span class="soft">{escape(title)}</span><b>{escape(text)}</b></div>'
        for title, text in _tiles(status, results)
    )
    return (
        f"<h1>{escape(name)}</h1><p>"
        f'<span class="{_phase_css(status)}">{escape(phase_text(status))}</span>'
        f' <span class="soft">{escape(times)}</span></p>'
        f'{"".join(_problems(status))}<div class="tiles">{blocks}</div>'
    )


def _phase_css(status: JobStatus) -> str:
    is_learning = not is_true(status, ConditionType.NOT_LEARNING)
    return PHASE_CSS.get(status.phase, "") if is_learning else "bad"


def _problems(status: JobStatus) -> Iterator[str]:
    """Yield a box for each problem of the job, most significant first."""
    for condition in explanations(status):
        if condition.type not in PROBLEMS or condition.status == "Unknown":
            continue
        lines = [condition.message, *_evidence(status, condition), _remedy(condition)]
        paragraphs = "".join(f"<p>{escape(line)}</p>" for line in lines if line)
        yield (
            f'<section class="problem"><h2>{escape(condition.type)}: {escape(condition.reason)}'
            f"</h2>{paragraphs}</section>"
        )


def _evidence(status: JobStatus, condition: Condition) -> Iterator[str]:
    """Yield the failed checks of a job that failed in preflight, unless the message has them."""
    if condition.reason != Cause.PREFLIGHT_FAILED:
        return
    for check in status.preflight.checks:
        if check.state is CheckState.FAILED and check.evidence not in condition.message:
            yield f"{check.id}: {check.evidence}"


def _remedy(condition: Condition) -> str:
    """Return the description of the cause of a failed job, which includes the remedy."""
    if condition.type is not ConditionType.FAILED or condition.reason not in set(Cause):
        return ""
    return member_texts(Cause).get(Cause(condition.reason).name, "")


def _tiles(status: JobStatus, results: Figures) -> Iterator[tuple[str, str]]:
    progress = status.progress
    yield "Step", f"{progress.step} of {progress.total_steps or '?'}"
    yield "Mean reward, first → last 10 steps", _change(results.reward_first, results.reward_last)
    before, after = (_held_out(results, when) for when in ("before", "after"))
    if before is not None or after is not None:
        yield "Held-out exact match, before → after", _change(before, after)
    yield "Median step time (s)", cell_text(results.pace.step_seconds)
    yield "Median seconds per sample", cell_text(results.pace.sample_seconds)
    yield "Restarts", str(status.restarts.total)
    if status.effective_training_time_ratio:
        yield "Effective training time ratio", status.effective_training_time_ratio


def _change(before: float | None, after: float | None) -> str:
    return "–" if before is None and after is None else f"{cell_text(before)} → {cell_text(after)}"


def _held_out(results: Figures, when: str) -> float | None:
    """Return the exact match of the latest validation "before" or "after" training, or None.

    An extended run has several "after" validations.
    """
    values = [v.exact_match for v in results.validations if v.when == when]
    return values[-1] if values else None
