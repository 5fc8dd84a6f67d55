"""Shows a running job: a live panel on a terminal, plain lines elsewhere. Only reads the status."""

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

PLAIN_SECONDS = 5.0
"""Minimum time between two progress lines when there is no terminal."""
QUIET = frozenset(
    {
        *(Phase.PENDING, Phase.STARTING, Phase.RUNNING, Phase.RESTARTING),
        *("Stage Training", "Stage Checkpointing", "Stage Finished"),
    }
)
"""Phases and stages not worth a line: they say nothing new, or come and go with every step."""
_BEGINS = {
    Tier.FIRST: "begins",
    Tier.WARM_CLUSTER: "begins on the same Ray cluster",
    Tier.NEW_CLUSTER: "begins on a new Ray cluster",
}


class ProgressDisplay:
    """Context manager; `show` is called with every new status."""

    def __init__(
        self, name: str, console: Console | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._clock = name, clock
        self._console = console or Console(highlight=False)
        self._status = JobStatus()
        self._begun = False
        self._label, self._label_since = "", clock()
        self._line_time = -PLAIN_SECONDS
        self._live: Live | None = None

    def __enter__(self) -> "ProgressDisplay":
        """Start the live display if there is a terminal."""
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
        """Stop updating and leave the last state on the screen."""
        if self._live is not None:
            self._live.stop()

    def show(self, status: JobStatus) -> None:
        """Display a new status and report what has happened since the last one."""
        old, self._status = self._status, status
        if self._begun:
            for line in status_changes(old, status):
                self._say(line)
        self._begun = True
        label = _label(status)
        if label != self._label:
            self._label, self._label_since = label, self._clock()
            if self._live is None and label not in QUIET:
                self._say(label)
        moved = status.progress.step != old.progress.step
        if self._live is None and moved and self._is_due(status):
            self._say(progress_line(status, datetime.now(UTC)))

    def _is_due(self, status: JobStatus) -> bool:
        now, last = self._clock(), status.progress.step == status.progress.total_steps
        if now - self._line_time < PLAIN_SECONDS and not last:
            return False
        self._line_time = now
        return True

    def _say(self, line: str) -> None:
        self._console.print(Text(printable(line)), soft_wrap=True)

    def _panel(self) -> RenderableType:
        status, progress = self._status, self._status.progress
        head = Text(f"{self._name}  {status.phase}", style="bold")
        if status.attempt:
            head.append(f"  attempt {status.attempt}", style="not bold")
        if status.restarts.total:
            head.append(f"  {status.restarts.total} restarts", style="not bold yellow")
        lasted = duration(self._clock() - self._label_since)
        stage = Text(f"{self._label} for {lasted}", style="dim")
        if status.checkpoint is not None:
            stage.append(f"  saved: step {status.checkpoint.step}")
        if not progress.total_steps:
            return Group(head, stage)
        bar = ProgressBar(total=progress.total_steps, completed=progress.step, width=30)
        row = Table.grid(padding=(0, 1))
        row.add_row(
            bar,
            Text(f"{progress.progress_percentage} %"),
            Text(printable(progress_line(status, datetime.now(UTC), with_stage=False))),
        )
        return Group(head, row, stage)


def progress_line(status: JobStatus, now: datetime, *, with_stage: bool = True) -> str:
    """Return a run's progress, such as `Step 12/60, 18 s elapsed, 1.2 s/step, ETA 1 min`."""
    progress = status.progress
    parts = [f"Step {progress.step}/{progress.total_steps}"]
    if status.attempts and status.attempts[0].started:
        parts.append(f"{duration(_elapsed(status.attempts[0], now))} elapsed")
    if progress.seconds_per_step:
        parts.append(f"{progress.seconds_per_step:.2g} s/step")
    if progress.estimated_remaining_seconds is not None:
        parts.append(f"ETA {duration(progress.estimated_remaining_seconds)}")
    reward = {metric.name: metric.value for metric in progress.metrics}.get("reward_mean")
    if reward:
        parts.append(f"reward {_rounded(reward)}")
    if with_stage and progress.stage:
        parts.append(f"stage {progress.stage}")
    return ", ".join(parts)


def _rounded(value: str) -> str:
    try:
        return f"{float(value):.3g}"
    except ValueError:
        return value


def status_changes(old: JobStatus, new: JobStatus) -> Iterator[str]:
    """Yield a line for each thing that happened between two statuses."""
    known = {record.number: record for record in old.attempts}
    for record in reversed(new.attempts):
        yield from _attempt_lines(known.get(record.number), record)
    outage, before = (get_condition(s, ConditionType.WAITING_FOR_ENDPOINT) for s in (new, old))
    if outage.status == "True" and before.status != "True":
        yield f"Waiting for {outage.message}"
    if before.status == "True" and (outage.status, outage.reason) == (
        "False",
        ConditionReason.ENDPOINT_RECOVERED,
    ):
        yield "Goes on: the services answer again"
    retry = new.restart_state.retry.next_retry_time
    if retry and retry != old.restart_state.retry.next_retry_time:
        yield f"Next attempt at {format_time(retry)}"


def _attempt_lines(old: AttemptRecord | None, new: AttemptRecord) -> Iterator[str]:
    attempt = f"Attempt {new.number}"
    if old is None:
        lowered = f", with {new.mitigation}" if new.mitigation else ""
        yield f"{attempt} {_BEGINS[new.tier]}{lowered}"
    seen = old or AttemptRecord(number=new.number)
    for skipped in new.skipped_checkpoints:
        if skipped not in seen.skipped_checkpoints:
            yield f"{attempt} skips a checkpoint: {skipped}"
    if new.from_step and seen.from_step is None:
        yield f"{attempt} resumes after step {new.from_step}"
    for replaced in new.in_place[len(seen.in_place) :]:
        yield f"{attempt} goes on: {replaced}"
    if new.cause is not None and seen.cause is None:
        what = "reached its target" if new.cause is Cause.SUCCEEDED else f"ended: {new.cause}"
        why = f": {new.message}" if new.cause is not Cause.SUCCEEDED and new.message else ""
        yield f"{attempt} {what} after step {new.to_step}{why}"


def _elapsed(attempt: AttemptRecord, now: datetime) -> float:
    if attempt.cause is not None or attempt.started is None:
        return attempt.seconds
    return (now - attempt.started).total_seconds()


def duration(seconds: float) -> str:
    """Return a duration in at most two units."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


def _label(status: JobStatus) -> str:
    running = status.phase in (Phase.STARTING, Phase.RUNNING)
    stage = status.progress.stage
    return f"Stage {stage}" if running and stage else str(status.phase)
