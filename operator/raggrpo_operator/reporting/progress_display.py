"""Displays the status of a running job, as a live panel on a terminal, otherwise as lines."""

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from raggrpo_api.fields.base import format_time
from raggrpo_api.fields.text import printable
from raggrpo_api.status.attempts import AttemptRecord, Tier
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.core.text.segments import segment_text
from raggrpo_operator.core.text.status_text import is_attempt_running, phase_text, reward

PLAIN_SECONDS = 5.0
"""Minimum seconds between two progress lines if there is no terminal."""
QUIET = frozenset(
    {
        *(Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.RESTARTING),
        *("Stage Training", "Stage Checkpointing", "Stage Finished"),
    }
)
"""Phases and stages not printed, because other lines show them or they change at every step."""
_STARTS = {
    Tier.FIRST: "starts",
    Tier.WARM_CLUSTER: "starts on the same Ray cluster",
    Tier.NEW_CLUSTER: "starts on a new Ray cluster",
}


class ProgressDisplay:
    """Context manager that displays each status passed to `show`."""

    def __init__(
        self, name: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = name
        self._clock = clock
        self._console = console or Console(highlight=False)
        self._status = JobStatus()
        self._has_status = False
        self._label, self._label_since = "", clock()
        self._line_time = -PLAIN_SECONDS
        self._live: Live | None = None

    def __enter__(self) -> "ProgressDisplay":
        """Start the live panel if the console is a terminal."""
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._panel, console=self._console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the live panel, which stays on the screen."""
        if self._live is not None:
            self._live.stop()

    def show(self, status: JobStatus) -> None:
        """Display a new status, and print a line for each change."""
        old = self._status
        self._status = status
        is_resumed = not self._has_status and status.progress.step > 0
        if is_resumed and not is_attempt_running(status) and status.phase is not Phase.SUCCEEDED:
            self._print(f"{progress_line(status, datetime.now(UTC))} (last run)")
        if self._has_status:
            for line in status_changes(old, status):
                self._print(line)
        self._has_status = True
        label = _label(status)
        if label != self._label:
            self._label, self._label_since = label, self._clock()
            if self._live is None and label not in QUIET:
                self._print(label)
        has_new_step = is_attempt_running(status) and status.progress.step != old.progress.step
        if self._live is None and has_new_step and self._is_due(status):
            self._print(progress_line(status, datetime.now(UTC)))

    def _is_due(self, status: JobStatus) -> bool:
        now = self._clock()
        is_last = status.progress.step == status.progress.total_steps
        if now - self._line_time < PLAIN_SECONDS and not is_last:
            return False
        self._line_time = now
        return True

    def _print(self, line: str) -> None:
        self._console.print(Text(printable(line)), soft_wrap=True)

    def _panel(self) -> RenderableType:
        status = self._status
        progress = status.progress
        title = Text(f"{self._name}  {phase_text(status)}", style="bold")
        if status.attempt:
            title.append(f"  attempt {status.attempt}", style="not bold")
        if status.restarts.total:
            title.append(f"  {status.restarts.total} restarts", style="not bold yellow")
        elapsed = duration(self._clock() - self._label_since)
        stage = Text(f"{self._label} for {elapsed}", style="dim")
        if status.checkpoint is not None:
            stage.append(f"  checkpoint: step {status.checkpoint.step}")
        if not progress.total_steps:
            return Group(title, stage)
        bar = ProgressBar(total=progress.total_steps, completed=progress.step, width=30)
        row = Table.grid(padding=(0, 1))
        row.add_row(
            bar,
            Text(f"{progress.progress_percentage} %"),
            Text(printable(progress_line(status, datetime.now(UTC), with_stage=False))),
        )
        return Group(title, row, stage)


def progress_line(status: JobStatus, now: datetime, *, with_stage: bool = True) -> str:
    """Return a line such as `Step 12/60, 18 s elapsed, 1.2 s/step, ETA 1 min`."""
    progress = status.progress
    clauses = [f"Step {progress.step}/{progress.total_steps}"]
    if status.attempts and status.attempts[0].started:
        clauses.append(f"{duration(_elapsed(status.attempts[0], now))} elapsed")
    if progress.seconds_per_step:
        clauses.append(f"{progress.seconds_per_step:.2g} s/step")
    is_running = is_attempt_running(status)
    if is_running and progress.estimated_remaining_seconds is not None:
        clauses.append(f"ETA {duration(progress.estimated_remaining_seconds)}")
    if reward(status):
        clauses.append(f"reward {_rounded(reward(status))}")
    if with_stage and is_running and progress.stage:
        clauses.append(f"stage {progress.stage}")
    return ", ".join(clauses)


def _rounded(value: str) -> str:
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value


def status_changes(old: JobStatus, new: JobStatus) -> Iterator[str]:
    """Yield a line for each change between two statuses."""
    known = {record.number: record for record in old.attempts}
    for record in reversed(new.attempts):
        yield from _attempt_lines(known.get(record.number), record)
    for segment in new.segments:
        if segment not in old.segments:
            yield f"New segment {segment_text(segment)}"
    outage, before = (get_condition(s, ConditionType.WAITING_FOR_ENDPOINT) for s in (new, old))
    if outage.status == "True" and before.status != "True":
        yield f"Waiting for {outage.message}"
    if before.status == "True" and (outage.status, outage.reason) == (
        "False",
        ConditionReason.ENDPOINT_RECOVERED,
    ):
        yield "Continuing: all services are available"
    learning, before = (get_condition(s, ConditionType.NOT_LEARNING) for s in (new, old))
    if learning.status == "True" and learning.reason != before.reason:
        yield f"Not learning ({learning.reason}): {learning.message}"
    if before.status == "True" and learning.status == "False":
        yield "Learning again"
    retry = new.restart_state.retry.next_retry_time
    if retry and retry != old.restart_state.retry.next_retry_time:
        yield f"Next attempt at {format_time(retry)}"


def _attempt_lines(old: AttemptRecord | None, new: AttemptRecord) -> Iterator[str]:
    attempt = f"Attempt {new.number}"
    if old is None:
        mitigation = f", with {new.mitigation}" if new.mitigation else ""
        yield f"{attempt} {_STARTS[new.tier]}{mitigation}"
    known = old or AttemptRecord(number=new.number)
    for skipped in new.skipped_checkpoints:
        if skipped not in known.skipped_checkpoints:
            yield f"{attempt} skips a checkpoint: {skipped}"
    if new.from_step and known.from_step is None:
        yield f"{attempt} resumes from step {new.from_step}"
    for replaced in new.in_place[len(known.in_place) :]:
        yield f"{attempt} recovered in place: {replaced}"
    if new.cause is not None and known.cause is None:
        if new.cause is Cause.SUCCEEDED:
            yield f"{attempt} completed at step {new.to_step}"
        else:
            reason = f": {new.message}" if new.message else ""
            yield f"{attempt} ended at step {new.to_step} ({new.cause}){reason}"


def _elapsed(attempt: AttemptRecord, now: datetime) -> float:
    if attempt.cause is not None or attempt.started is None:
        return attempt.seconds
    return (now - attempt.started).total_seconds()


def duration(seconds: float) -> str:
    """Return a duration as text with at most two units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _label(status: JobStatus) -> str:
    stage = status.progress.stage
    return f"Stage {stage}" if is_attempt_running(status) and stage else str(status.phase)
