"""Report the progress, history and metrics of an attempt, off the critical path of a step.

    loop ─▶ Reporter (a few µs) ─▶ queue ─▶ one thread ─▶ metrics.e<epoch>.jsonl, event files
                                                      └─▶ publish(progress, Prometheus text)

Must not depend on Ray.
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
from raggrpo_api.trainer.learning import (
    Streak,
    extended,
    not_learning,
    not_learning_message,
    window_steps,
)
from raggrpo_api.trainer.progress import (
    MAX_SEGMENTS,
    CheckpointRef,
    EndpointOutage,
    Failure,
    Progress,
    Segment,
    SkippedCheckpoint,
    Stage,
)
from raggrpo_trainer.exchange.validation_result import ValidationResult
from raggrpo_trainer.http.call_statistics import CallSummary

from .reporting_thread import Publish, ReportingThread, utc_now
from .step_probes import Probe
from .step_record import FailedStep, StepRecord

if TYPE_CHECKING:
    from raggrpo_trainer.checkpoint.backup_thread import BackupOutcome
    from raggrpo_trainer.checkpoint.folder import Checkpoint

log = logging.getLogger(__name__)

MAX_SKIPPED_CHECKPOINTS = 32
MAX_IN_PLACE = 16
MAX_MESSAGE_CHARACTERS = 1000
"""Length limits of fields of `Progress`."""


class Reporter:
    """The driver's interface to the reporting thread.

    Calls return immediately. They raise RuntimeError if the thread has crashed.
    """

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
        self._window = window_steps(config.monitoring.history_window, config.training.total_steps)
        self._not_learning = ""
        """Why the run does not learn, or ""."""
        self._progress = Progress(
            attempt=config.attempt.number,
            epoch=epoch,
            stage=Stage.CONNECTING,
            total_steps=config.training.total_steps,
        )
        self._thread = ReportingThread(config, epoch, publish, self._current)
        self._event("start", config_hash=config.attempt.config_hash)
        self._thread.start()

    def report_stage(self, stage: Stage) -> None:
        """Report the current stage; reporting the same stage again has no effect."""
        self._stage = stage
        self._update_stage()

    def report_outages(self, outages: Sequence[EndpointOutage]) -> None:
        """Report the outages that the step waits for; `outages` may be empty."""
        if list(outages) != self._progress.waiting_for:
            self._update(waiting_for=list(outages))
            self._update_stage()

    def report_resume(
        self,
        step: int,
        checkpoint: CheckpointRef | None = None,
        best: "Checkpoint | None" = None,
        skipped: Sequence[SkippedCheckpoint] = (),
        segments: Sequence[Segment] = (),
        streaks: Sequence[Streak] = (),
    ) -> None:
        """Report the step to resume from (0 without a checkpoint) and skipped checkpoints.

        `segments` are those of the checkpoint, and the one that starts after it. `streaks` are
        those of the history up to `step`.
        """
        self._update(
            step=step,
            started_from_step=step,
            checkpoint=checkpoint,
            **_best_fields(best),
            skipped_checkpoints=list(skipped[:MAX_SKIPPED_CHECKPOINTS]),
            segments=list(segments[-MAX_SEGMENTS:]),
            streaks=list(streaks),
        )
        streak = not_learning(streaks, step, self._window)
        self._not_learning = streak.reason if streak is not None else ""
        path = checkpoint.path if checkpoint else ""
        reasons = {s.path: s.reason for s in skipped}
        self._event("resume", checkpoint=path, skipped=reasons)
        if segments and segments[-1].first_step == step + 1:
            self._event("segment", **segments[-1].model_dump())

    def report_pinned(self, values: Mapping[str, str]) -> None:
        """Report the values derived for fields set to Auto; they are pinned for all attempts."""
        self._update(pinned=dict(values))

    def add_probe(self, probe: Probe) -> None:
        """Add a probe, effective from the next step."""
        self._thread.add_probe(probe)

    def report_replacements(self, messages: Sequence[str]) -> None:
        """Report in-place replacements; `messages` lists all replacements of the attempt."""
        for message in messages[self._replacements :]:
            self._event("in_place", message=message)
        if len(messages) > self._replacements:
            self._replacements = len(messages)
            self._update(in_place=list(messages[-MAX_IN_PLACE:]))

    def report_step(self, record: StepRecord) -> None:
        """Report a completed step."""
        self._recent.append(record)
        median = statistics.median(each.step_seconds for each in self._recent)
        earlier, examples = self._progress.streaks, record.samples.examples
        streaks = extended(earlier, record.step, record.scalars(), examples)
        self._update(step=record.step, seconds_per_step=median, streaks=streaks)
        self._thread.enqueue(record)
        self._report_learning(not_learning(streaks, record.step, self._window))

    def report_failed_step(self, step: int, retrieval: Mapping[str, CallSummary]) -> None:
        """Report the step that ended the attempt, with all calls of the attempt by endpoint."""
        self._thread.enqueue(FailedStep(step, retrieval))

    def report_save(
        self, checkpoint: CheckpointRef, seconds: float, best: "Checkpoint | None"
    ) -> None:
        """Report a complete checkpoint, the duration of its save, and the best checkpoint."""
        self._update(checkpoint=checkpoint, save_seconds=seconds, **_best_fields(best))
        self._event("checkpoint", path=checkpoint.path, seconds=seconds, **_best_fields(best))

    def report_export(self, folder: Path, best: "Checkpoint | None") -> None:
        """Report the export of the final model, and the folder of the best checkpoint."""
        suffix = f"; best checkpoint: step {best.marker.step} in {best.folder}" if best else ""
        log.info("exported the model of step %d to %s%s", self._progress.step, folder, suffix)
        self._event("export", path=str(folder), **_best_fields(best))

    def report_backups(self, outcomes: "Sequence[BackupOutcome]") -> None:
        """Report finished backups; a failure is shown until a backup succeeds."""
        for outcome in outcomes:
            self._event("backup", of_step=outcome.step, failure=outcome.failure)
            newest = self._progress.backup_step if outcome.failure else outcome.step
            self._update(
                backup_step=newest, backup_failure=outcome.failure[:MAX_MESSAGE_CHARACTERS]
            )

    def report_validation(self, when: str, step: int, result: ValidationResult) -> None:
        """Report a validation; `when` is `before`, `during` or `after` training."""
        self._event("validation", when=when, **{**asdict(result), "step": step})

    def close(self, failure: Failure | None = None) -> None:
        """Report the end of the attempt; wait until the report is published and written."""
        self._update(failure=failure)
        code, message = (failure.exit_code, failure.message) if failure else (0, "")
        self._event("end", exit_code=code, message=message[:MAX_MESSAGE_CHARACTERS])
        self._thread.finish()

    def _report_learning(self, streak: Streak | None) -> None:
        """Log and record whether the run learns, if that or the reason has changed."""
        reason = streak.reason if streak is not None else ""
        if reason == self._not_learning:
            return
        self._not_learning = reason
        text = not_learning_message(streak) if streak is not None else ""
        if streak is not None:
            log.warning("the run is not learning (%s): %s", reason, text)
        else:
            log.info("the run is learning again")
        self._event("learning", reason=reason, message=text)

    def _update_stage(self) -> None:
        before = self._progress
        now = self._clock()
        stage = Stage.WAITING_FOR_ENDPOINT if before.waiting_for else self._stage
        if stage is before.stage:
            return
        seconds = now - self._stage_since
        self._stage_since = now
        waited = seconds if before.stage is Stage.WAITING_FOR_ENDPOINT else 0.0
        self._update(stage=stage, waited_seconds=before.waited_seconds + waited)
        self._event("stage", stage=stage, left=before.stage, seconds=seconds)

    def _update(self, **changes: object) -> None:
        # A single assignment: the thread reads either the old or the new progress.
        self._progress = self._progress.model_copy(update=changes)

    def _event(self, event: str, **values: Any) -> None:
        self._thread.enqueue({"event": event, "step": self._progress.step, **values})

    def _current(self) -> Progress:
        """Return the current progress. Called by the reporting thread."""
        recent = [each.stage_seconds() for each in tuple(self._recent)]
        medians = {
            name: statistics.median(each.get(name, 0.0) for each in recent)
            for name in (recent[-1] if recent else {})
        }
        tokens = [each.stage_tokens() for each in tuple(self._recent)]
        progress = self._progress
        seconds = self._clock() - self._stage_since
        is_waiting = progress.stage is Stage.WAITING_FOR_ENDPOINT
        changes: dict[str, object] = {
            "stage_seconds": seconds,
            "waited_seconds": progress.waited_seconds + (seconds if is_waiting else 0.0),
            "seconds_by_stage": medians,
            "tokens_by_stage": {
                name: round(statistics.median(each[name] for each in tokens))
                for name in (tokens[-1] if tokens else {})
            },
            "time": utc_now(),
        }
        return progress.model_copy(update=changes)


def _best_fields(best: "Checkpoint | None") -> dict[str, Any]:
    """Return the fields of Progress for the best checkpoint."""
    if best is None:
        return {"best_step": None, "best_score": ""}
    return {
        "best_step": best.marker.step,
        "best_score": f"{best.marker.scored_by} {best.score:.6g}",
    }
