"""Runs one job on this machine to its end: the loop around `reconcile`, signals, bookkeeping."""

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
from raggrpo_api.trainer.resume import changes, resume_values
from raggrpo_operator.core.lifecycle.deadlines.active_deadline import stopped_when_last_seen
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.errors import OperatorError, PermanentError
from raggrpo_operator.reconcile import reconcile

from .job_folder import JobFolder, State
from .processes import Processes, sweep
from .runtime import LocalRuntime

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 15.0
"""Delay after something could not be observed or done; it doubles while that lasts."""
Observer = Callable[[JobStatus], None]
"""Called with every status, for a display."""


class Interrupted(Exception):
    """A second signal arrived: end at once."""


def prepare(folder: JobFolder, job: RagGrpoJob) -> tuple[RagGrpoJob, State]:
    """Return the job with its identity and last status in this folder.

    Ends what a killed run left behind. A job that failed before is begun again with a fresh
    budget. Raises OperatorError when a value changed that checkpoints depend on.
    """
    state = folder.load()
    if state.mark:
        sweep(state.mark)
    spec = job.manifest()["spec"]
    state.status = stopped_when_last_seen(state.status)
    if state.status.attempt:
        _require_same_run(state, job, folder)
    if spec != state.spec:
        state.generation += 1
        state.spec = spec
    if state.status.phase is Phase.FAILED:
        state.retry += 1
    annotations = {**job.metadata.annotations, ANNOTATION_RETRY: str(state.retry)}
    metadata = job.metadata.model_copy(
        update={"uid": state.uid, "generation": state.generation, "annotations": annotations}
    )
    return job.model_copy(update={"metadata": metadata, "status": state.status}), state


def supervise(
    folder: JobFolder, job: RagGrpoJob, state: State, log_dir: Path, observer: Observer
) -> JobStatus:
    """Run the job until it ends or is interrupted; nothing it started survives.

    The first SIGINT, SIGTERM or SIGHUP saves and suspends; the second ends at once.
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
        self._job, self._state, self._observer = job, state, observer
        self._runtime = runtime
        self._wake = asyncio.Event()
        self._signals = 0

    async def run(self) -> JobStatus:
        loop = asyncio.get_running_loop()
        work = asyncio.ensure_future(self._until_quiet())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                loop.add_signal_handler(number, self._on_signal, number, work)
        try:
            return await work
        except asyncio.CancelledError as error:
            raise Interrupted from error
        finally:
            await self._runtime.close()

    def _on_signal(self, number: signal.Signals, work: "asyncio.Future[JobStatus]") -> None:
        if number == signal.SIGHUP:
            _forget_terminal()
        self._signals += 1
        if self._signals > 1:
            work.cancel()
            return
        log.warning("stopping: the attempt saves first; interrupt again to end at once")
        spec = self._job.spec.model_copy(update={"suspend": True})
        self._job = self._job.model_copy(update={"spec": spec})
        self._wake.set()

    async def _until_quiet(self) -> JobStatus:
        """Reconcile until only an event could change anything."""
        delay = RETRY_SECONDS
        while True:
            try:
                decision = await reconcile(self._job, self._runtime, datetime.now(UTC))
            except OperatorError as error:
                if not error.retryable:
                    raise
                log.warning("%s; trying again in %.0f s", error, delay)
                self._take_over(self._state.status)  # it was written before the actions
                await self._pause(delay)
                delay = min(2 * delay, MAX_RETRY_SECONDS)
                continue
            delay = RETRY_SECONDS
            self._take_over(decision.status)
            if decision.requeue_after is None and not decision.actions:
                return decision.status
            await self._pause(decision.requeue_after or 0.0)

    def _take_over(self, status: JobStatus) -> None:
        self._job = self._job.model_copy(update={"status": status})
        self._observer(status)

    async def _pause(self, seconds: float) -> None:
        """Wait, but no longer than until the next signal."""
        try:
            await asyncio.wait_for(self._wake.wait(), seconds)
        except TimeoutError:
            return
        self._wake.clear()


def _forget_terminal() -> None:
    """Discard further output: the terminal is gone, and saving must not fail because of it."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _require_same_run(state: State, job: RagGrpoJob, folder: JobFolder) -> None:
    """Refuse a change of what checkpoints depend on, once an attempt was made."""
    old_job = parse_job(job.manifest() | {"spec": state.spec})
    if not isinstance(old_job, RagGrpoJob):
        return  # written by another version: the trainer compares with the checkpoint itself
    old, new = (resume_values(resolve(j).spec) for j in (old_job, job))
    old["checkpoint.path"], new["checkpoint.path"] = (
        j.spec.checkpoint.path for j in (old_job, job)
    )
    changed = [f"spec.{change}" for change in changes(old, new)]
    if changed:
        lines = "\n  ".join(changed)
        raise PermanentError(
            f"the job in {folder.path} has begun with other values (old → new):\n  {lines}\n"
            "set them back to continue it, or begin a new job with another --dir and another "
            "spec.checkpoint.path"
        )
