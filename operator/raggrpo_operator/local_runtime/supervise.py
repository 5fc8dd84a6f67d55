"""Runs a job on this machine until it ends: the reconcile loop and the handling of signals."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.conditions import Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.resume import incompatible
from raggrpo_operator.core.lifecycle.deadlines.active_deadline import paused_at_last_observation
from raggrpo_operator.core.state.conditions import has_push_failed
from raggrpo_operator.errors import OperatorError, PermanentError
from raggrpo_operator.reconcile import reconcile

from .job_folder import JobFolder, State
from .processes import Processes, sweep
from .runtime import LocalRuntime
from .spec_changes import changes_since_last_run

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 15.0
"""Maximum retry interval in seconds; the interval doubles with each consecutive error."""
Observer = Callable[[JobStatus], None]
"""Callback that receives every new status."""


class Interrupted(Exception):
    """A second signal arrived, so that the command must exit immediately."""


def prepare(folder: JobFolder, job: RagGrpoJob) -> tuple[RagGrpoJob, State]:
    """Return the job with its uid and last status from the folder, and the saved state.

    Kills processes that a killed run has left. A failed job is retried with a new restart budget,
    and a failed push is repeated. Raises OperatorError if a value that defines the model has
    changed.
    """
    state = folder.load()
    if state.mark:
        sweep(state.mark)
    spec = job.manifest()["spec"]
    state.status = paused_at_last_observation(state.status)
    if state.status.attempt:
        _require_same_run(state, job, folder)
    if spec != state.spec:
        state.generation += 1
        state.spec = spec
    if state.status.phase is Phase.FAILED or has_push_failed(state.status):
        state.retry += 1
    annotations = {**job.metadata.annotations, ANNOTATION_RETRY: str(state.retry)}
    metadata = job.metadata.model_copy(
        update={"uid": state.uid, "generation": state.generation, "annotations": annotations}
    )
    return job.model_copy(update={"metadata": metadata, "status": state.status}), state


def supervise(
    folder: JobFolder, job: RagGrpoJob, state: State, log_dir: Path, observer: Observer
) -> JobStatus:
    """Run the job until it ends or is interrupted, then terminate all its processes.

    The first SIGINT, SIGTERM or SIGHUP makes the job save a checkpoint and suspend. The second
    signal raises Interrupted.
    """
    processes = Processes()
    state.mark = processes.mark
    folder.save_job(job)
    folder.save(state)
    runtime = LocalRuntime(folder, state, processes, log_dir)
    try:
        return asyncio.run(_Supervision(job, state, runtime, observer).run())
    finally:
        processes.terminate_all()


class _Supervision:
    def __init__(
        self, job: RagGrpoJob, state: State, runtime: LocalRuntime, observer: Observer
    ) -> None:
        self._job = job
        self._state = state
        self._observer = observer
        self._runtime = runtime
        self._wake = asyncio.Event()
        self._signals = 0

    async def run(self) -> JobStatus:
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._until_settled())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
                loop.add_signal_handler(number, self._on_signal, number, work)
        try:
            return await work
        except asyncio.CancelledError as error:
            raise Interrupted from error
        finally:
            await self._runtime.close()

    def _on_signal(self, number: signal.Signals, work: "asyncio.Future[JobStatus]") -> None:
        if number == signal.SIGHUP:
            _discard_output()
        self._signals += 1
        if self._signals > 1:
            work.cancel()
            return
        log.warning("stopping: saving a checkpoint first; interrupt again to exit immediately")
        self._runtime.interrupted_by = number.name
        spec = self._job.spec.model_copy(update={"suspend": True})
        self._job = self._job.model_copy(update={"spec": spec})
        self._wake.set()

    async def _until_settled(self) -> JobStatus:
        """Reconcile until a decision has no actions and no requeue."""
        delay = RETRY_SECONDS
        while True:
            try:
                decision = await reconcile(self._job, self._runtime, datetime.now(UTC))
            except OperatorError as error:
                if not error.retryable:
                    raise
                log.warning("%s; retrying in %.0f s", error, delay)
                self._set_status(self._state.status)  # saved before the actions
                await self._sleep(delay)
                delay = min(2 * delay, MAX_RETRY_SECONDS)
                continue
            delay = RETRY_SECONDS
            self._set_status(decision.status)
            if decision.requeue_after is None and not decision.actions:
                return decision.status
            await self._sleep(decision.requeue_after or 0.0)

    def _set_status(self, status: JobStatus) -> None:
        self._job = self._job.model_copy(update={"status": status})
        self._observer(status)

    async def _sleep(self, seconds: float) -> None:
        """Wait for `seconds` or until a signal arrives."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return
        self._wake.clear()


def _discard_output() -> None:
    """Redirect output to /dev/null: a closed terminal must not prevent saving."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(null, stream)
    os.close(null)


def _require_same_run(state: State, job: RagGrpoJob, folder: JobFolder) -> None:
    """Raise PermanentError if values that define the model have changed."""
    if refused := incompatible(changes_since_last_run(state, job)):
        lines = "\n  ".join(f"spec.{change}" for change in refused)
        raise PermanentError(
            f"the job in {folder.path} was started with other values (old → new):\n  {lines}\n"
            "restore them to continue the job, or start a new job with another --dir and "
            "spec.checkpoint.path"
        )
