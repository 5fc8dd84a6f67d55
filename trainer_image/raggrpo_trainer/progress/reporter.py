"""An attempt's reports: progress, history, TensorBoard, metrics; off the step's critical path.

    loop ─▶ Reporter (a few µs) ─▶ queue ─▶ one thread ─▶ metrics.e<epoch>.jsonl, event files
                                                      └─▶ publish(progress, Prometheus text)

Must not know Ray.
"""

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.progress import (
    CheckpointRef,
    EndpointOutage,
    Failure,
    Progress,
    SkippedCheckpoint,
    Stage,
)
from raggrpo_trainer.exchange.validation_result import ValidationResult

from .reporting_thread import Publish, ReportingThread, utc_now
from .step_probes import Probe
from .step_record import StepRecord

if TYPE_CHECKING:
    from raggrpo_trainer.checkpoint.backup_thread import BackupOutcome
    from raggrpo_trainer.checkpoint.folder import Checkpoint

log = logging.getLogger(__name__)

MAX_SKIPPED = 32
MAX_IN_PLACE = 16
MAX_MESSAGE = 1000


class Reporter:
    """The loop's side: every call returns at once, and raises if the thread has crashed."""

    def __init__(
        self,
        config: TrainerConfig,
        epoch: int,
        *,
        publish: Publish,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._stage_since = clock()
        self._stage = Stage.CONNECTING
        self._replacements = 0
        self._recent: deque[StepRecord] = deque(maxlen=config.monitoring.history_window)
        number, steps = config.attempt.number, config.training.total_steps
        self._progress = Progress(
            attempt=number, epoch=epoch, stage=Stage.CONNECTING, total_steps=steps
        )
        self._thread = ReportingThread(config, epoch, publish, self._current)
        self._event("start", config_hash=config.attempt.config_hash)
        self._thread.start()

    def report_stage(self, stage: Stage) -> None:
        """Report the current stage; repeating it has no effect."""
        self._stage = stage
        self._show_stage()

    def report_outages(self, outages: Sequence[EndpointOutage]) -> None:
        """Report the services that keep the attempt from going on; none: it goes on."""
        if list(outages) != self._progress.waiting_for:
            self._update(waiting_for=list(outages))
            self._show_stage()

    def report_resume(
        self,
        step: int,
        checkpoint: CheckpointRef | None = None,
        best: "Checkpoint | None" = None,
        skipped: Sequence[SkippedCheckpoint] = (),
    ) -> None:
        """Report the step the attempt resumes from (0: a fresh start) and skipped checkpoints."""
        self._update(
            step=step,
            started_from_step=step,
            checkpoint=checkpoint,
            **_best(best),
            skipped_checkpoints=list(skipped[:MAX_SKIPPED]),
        )
        path = checkpoint.path if checkpoint else ""
        reasons = {s.path: s.reason for s in skipped}
        self._event("resume", checkpoint=path, skipped=reasons)

    def report_pinned(self, values: Mapping[str, str]) -> None:
        """Report what Auto chose; the choice is pinned for all attempts."""
        self._update(pinned=dict(values))

    def add_probe(self, probe: Probe) -> None:
        """Add a probe."""
        self._thread.add_probe(probe)

    def report_replacements(self, happened: Sequence[str]) -> None:
        """Report in-place replacements; `happened` lists all of them so far."""
        for message in happened[self._replacements :]:
            self._event("in_place", message=message)
        if len(happened) > self._replacements:
            self._replacements = len(happened)
            self._update(in_place=list(happened[-MAX_IN_PLACE:]))

    def report_step(self, record: StepRecord) -> None:
        """Report a finished step."""
        self._recent.append(record)
        median = statistics.median(each.step_seconds for each in self._recent)
        self._update(step=record.step, seconds_per_step=median)
        self._thread.enqueue(record)

    def report_save(
        self, checkpoint: CheckpointRef, seconds: float, best: "Checkpoint | None"
    ) -> None:
        """Report a complete checkpoint, how long saving it took, and the best one that is kept."""
        self._update(checkpoint=checkpoint, save_seconds=seconds, **_best(best))
        self._event("checkpoint", path=checkpoint.path, seconds=seconds, **_best(best))

    def report_export(self, folder: Path, best: "Checkpoint | None") -> None:
        """Report the exported model, which is the newest, and where the best one is."""
        told = f"; the best was step {best.marker.step}: {best.folder}" if best else ""
        log.info("exported the model of step %d to %s%s", self._progress.step, folder, told)
        self._event("export", path=str(folder), **_best(best))

    def report_backups(self, outcomes: "Sequence[BackupOutcome]") -> None:
        """Report finished backups; a failure stays reported until one succeeds."""
        for each in outcomes:
            self._event("backup", of_step=each.step, failure=each.failure)
            done = self._progress.backup_step if each.failure else each.step
            self._update(backup_step=done, backup_failure=each.failure[:MAX_MESSAGE])

    def report_validation(self, when: str, step: int, result: ValidationResult) -> None:
        """Report a validation `before`, `during` or `after` training."""
        self._event("validation", when=when, **{**asdict(result), "step": step})

    def close(self, failure: Failure | None = None) -> None:
        """Report the end, and wait until it is published and written."""
        self._update(failure=failure)
        code, message = (failure.exit_code, failure.message) if failure else (0, "")
        self._event("end", exit_code=code, message=message[:MAX_MESSAGE])
        self._thread.finish()

    def _show_stage(self) -> None:
        before, now = self._progress, self._clock()
        stage = Stage.WAITING_FOR_ENDPOINT if before.waiting_for else self._stage
        if stage is before.stage:
            return
        seconds, self._stage_since = now - self._stage_since, now
        waited = seconds if before.stage is Stage.WAITING_FOR_ENDPOINT else 0.0
        self._update(stage=stage, waited_seconds=before.waited_seconds + waited)
        self._event("stage", stage=stage, left=before.stage, seconds=seconds)

    def _update(self, **changes: object) -> None:
        # One assignment: the thread sees the old progress or the new one, never half of it.
        self._progress = self._progress.model_copy(update=changes)

    def _event(self, event: str, **values: Any) -> None:
        self._thread.enqueue({"event": event, "step": self._progress.step, **values})

    def _current(self) -> Progress:
        """Return the current progress (called by the thread)."""
        recent = [each.stage_seconds() for each in tuple(self._recent)]
        medians = {
            name: statistics.median(each.get(name, 0.0) for each in recent)
            for name in (recent[-1] if recent else {})
        }
        progress, seconds = self._progress, self._clock() - self._stage_since
        waits = progress.stage is Stage.WAITING_FOR_ENDPOINT
        now: dict[str, object] = {
            "stage_seconds": seconds,
            "waited_seconds": progress.waited_seconds + (seconds if waits else 0.0),
            "seconds_by_stage": medians,
            "time": utc_now(),
        }
        return progress.model_copy(update=now)


def _best(best: "Checkpoint | None") -> dict[str, Any]:
    """Return the best checkpoint's step and score as Progress has them."""
    if best is None:
        return {"best_step": None, "best_score": ""}
    return {
        "best_step": best.marker.step,
        "best_score": f"{best.marker.scored_by} {best.score:.6g}",
    }
