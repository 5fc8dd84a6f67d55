"""`report.html`: the report of a job as a self-contained page."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice
from pathlib import Path

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.history import Record, read_records
from raggrpo_operator.core.spec.quantity import format_size
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.core.text.figures import Figures, figures
from raggrpo_operator.core.text.segments import changes_text
from raggrpo_operator.local_runtime.job_folder import REPORT, write_atomically

from .html_tables import collapsible_table, table
from .report_charts import charts
from .report_header import header

STYLE = Path(__file__).with_name("report.css")
MAX_STAGES, MAX_STARTS = 32, 100
"""Columns and rows of the table of startups."""
MAX_CAUSES = 32
"""Maximum causes of failed calls shown for an endpoint."""
INTENDED = frozenset({Cause.SUCCEEDED, Cause.SUSPENDED, Cause.STOPPED, Cause.PREEMPTED})
"""Causes of attempts that ended without a failure."""


def write_report(
    job_dir: Path,
    log_dir: Path,
    status: JobStatus,
    *,
    name: str = "",
    resolved: Resolved | None = None,
) -> Path:
    """Write `<job_dir>/report.html` from the history in `log_dir` and return its path.

    The job may still be running, and the history may be empty. The report shows the configuration
    if `resolved` is not None.
    """
    history = read_records(log_dir)
    page = render_report(
        name or job_dir.name,
        status,
        history.steps,
        history.events,
        resolved,
        history_problem=history.problem,
    )
    path = job_dir / REPORT
    write_atomically(path, page)
    return path


def render_report(
    name: str,
    status: JobStatus,
    history: Sequence[Record],
    events: Sequence[Record],
    resolved: Resolved | None = None,
    *,
    history_problem: str = "",
) -> str:
    """Return the report as an HTML page. `history_problem` is what the history lacks, or ""."""
    results = figures(history, events)
    sections = [
        header(name, status, results),
        f'<p class="soft">{escape(history_problem)}</p>' if history_problem else "",
        _validations(results),
        charts(history, events),
        _retrieval(results),
        _segments(status),
        _attempts(status, results),
        _conditions(status),
        _configuration(resolved) if resolved else "",
        _sizing(status),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)}</title><style>{STYLE.read_text()}</style></head>"
        f"<body><main>{''.join(sections)}</main></body></html>\n"
    )


def _validations(results: Figures) -> str:
    if not results.validations:
        return ""
    rows = [
        [
            v.when,
            v.step,
            v.exact_match,
            v.control_exact_match,
            v.reward_mean,
            f"{v.num_samples} ({v.num_failed} failed)",
        ]
        for v in results.validations
    ]
    titles = ["Training", "Step", "Exact match", "Control", "Mean reward", "Samples"]
    return (
        table("Held-out validation", titles, rows)
        + '<p class="soft">Control: exact match with the passages of other prompts; near chance '
        "if the policy uses the retrieved passages.</p>"
    )


def _retrieval(results: Figures) -> str:
    rows = [
        [
            each.endpoint,
            each.answered,
            _failures(each.failures),
            each.retries,
            each.p50,
            each.p95,
        ]
        for each in results.retrieval
    ]
    titles = ["Endpoint", "Answered requests", "Failed calls", "Retries", "p50 (s)", "p95 (s)"]
    return table("Retrieval", titles, rows)


def _failures(failures: Mapping[str, int]) -> str:
    shown = [f"{cause} {count}" for cause, count in islice(failures.items(), MAX_CAUSES)]
    if more := len(failures) - len(shown):
        shown.append(f"{more} more causes")
    return ", ".join(shown) or "none"


def _segments(status: JobStatus) -> str:
    if not status.segments:
        return ""
    rows = [[s.first_step, changes_text(s), s.from_checkpoint] for s in status.segments]
    return table("Segments", ["From step", "Changed values (old → new)", "Started from"], rows)


def _attempts(status: JobStatus, results: Figures) -> str:
    if not status.attempts:
        return ""
    rows = [
        [
            a.number,
            f"{a.tier}, c{a.cluster}",
            _cause(a),
            a.from_step,
            a.to_step,
            a.lost_steps,
            a.seconds,
            "; ".join(filter(None, [a.message, a.mitigation, *a.in_place, *a.skipped_checkpoints])),
        ]
        for a in reversed(status.attempts)
    ]
    titles = [
        "Attempt",
        "Tier",
        "Cause",
        "From step",
        "To step",
        "Lost steps",
        "Seconds",
        "Details",
    ]
    text = _timeline(status.attempts) + table("", titles, rows)
    stages = list(dict.fromkeys(s for spent in results.start_up_seconds.values() for s in spent))
    stages = stages[:MAX_STAGES]
    if stages:
        spent = [
            [attempt, *(seconds.get(stage) for stage in stages)]
            for attempt, seconds in sorted(results.start_up_seconds.items())[-MAX_STARTS:]
        ]
        text += table("Startup (s)", ["Attempt", *stages], spent)
    return f"<h2>Attempts</h2>{text}"


def _timeline(attempts: Sequence[AttemptRecord]) -> str:
    """Return a chart with one bar per attempt, split into retained and lost steps."""
    ordered = list(reversed(attempts))
    width, row, left = 1160, 22, 36
    last = max([1, *(a.to_step for a in ordered)])

    def x(step: int) -> float:
        return left + step / last * (width - left - 8)

    bars = []
    for i, a in enumerate(ordered):
        first = a.from_step or 0
        retained = max(first, a.to_step - a.lost_steps)
        y = i * row + 4
        css = "s3" if a.cause in INTENDED else "s1"
        title = f"<title>attempt {a.number}: {escape(_cause(a))}, steps {first}–{a.to_step}</title>"
        bars.append(f'<text class="y" x="{left - 8}" y="{y + 11}">{a.number}</text>')
        bars.append(_bar(x(first), x(retained), y, css, title))
        bars.append(_bar(x(retained), x(a.to_step), y, "bad", title))
    height = len(ordered) * row + 4
    return (
        '<figure><figcaption><span class="key s1"><i>retained steps</i></span>'
        '<span class="key s3"><i>retained steps of an attempt that did not fail</i></span>'
        '<span class="bad key"><i>lost steps</i></span></figcaption>'
        f'<svg viewBox="0 0 {width} {height}" role="img">{"".join(bars)}</svg></figure><br>'
    )


def _bar(start: float, end: float, y: float, css: str, title: str) -> str:
    return (
        f'<rect class="bar {css}" x="{start:.1f}" y="{y}" width="{end - start:.1f}" height="14">'
        f"{title}</rect>"
    )


def _cause(attempt: AttemptRecord) -> str:
    return "running" if attempt.cause is None else str(attempt.cause)


def _conditions(status: JobStatus) -> str:
    rows = [[c.type, c.status, c.reason, c.message] for c in status.conditions]
    checks = [[c.id, c.state, c.evidence] for c in status.preflight.checks]
    return table("Conditions", ["Condition", "Status", "Reason", "Message"], rows) + table(
        "Preflight", ["Check", "State", "Evidence"], checks
    )


def _configuration(resolved: Resolved) -> str:
    values = resolved.values()
    rows = [[path, json.dumps(values[path]), origin] for path, origin in resolved.origins.items()]
    return collapsible_table("Configuration", ["Field (spec.…)", "Value", "Origin"], rows)


def _sizing(status: JobStatus) -> str:
    sizing = status.sizing
    if not sizing.terms:
        return ""
    rows = [[t.resource, t.name, format_size(t.bytes), t.reason] for t in sizing.terms]
    total = f"CPU {sizing.cpu}, memory {sizing.memory}, /dev/shm {sizing.shm}"
    return collapsible_table(
        f"Sizing per pod: {total}", ["Resource", "Term", "Amount", "Reason"], rows
    )
