"""`LocalRuntime`: the side effects of a job on this machine."""

import os
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import assert_never

from raggrpo_api import names
from raggrpo_api.fields.base import AttemptNumber
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.lifecycle.actions import (
    Action,
    ApplyServices,
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    DeletePush,
    DeleteStaging,
    DumpStacks,
    StartAgent,
    StartPreflight,
    StartPush,
    StartRetriever,
    StartStaging,
    StopAgent,
    StopAttempt,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.observed import ClusterObserved, Observed, SubmissionStatus
from raggrpo_operator.core.sizing.shared_memory import object_store_bytes
from raggrpo_operator.core.spec.world import world
from raggrpo_operator.errors import TransientError
from raggrpo_operator.ray_jobs import config_json

from .agent_process import AgentProcess
from .driver import Driver, driver_log
from .job_folder import JobFolder, State, write_atomically
from .preflight_run import PreflightRun
from .private_files import private_folder
from .processes import Processes
from .push_run import PushRun
from .ray_head import RayHead, make_temp_dir, remove_temp_dir, start_ray_head
from .retrievers import Retrievers
from .secret_values import trainer_env
from .staging_run import StagingRun

LOST_SECONDS, START_SECONDS = 5.0, 120.0
"""Seconds without a response after which a head counts as lost: once started, and while starting.

A failed head usually exits at once, but stays alive if its servers shut down cleanly.
"""
MIN_SILENT_POLLS = 5
"""Minimum number of failed polls before a head counts as lost, in case the machine was asleep."""


class LocalRuntime:
    """One job on this machine: preflight, retrievers, Ray head and driver as child processes."""

    def __init__(
        self,
        folder: JobFolder,
        state: State,
        processes: Processes,
        log_dir: Path,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder = folder
        self._state = state
        self._processes = processes
        self._log_dir = log_dir
        self._clock = clock
        self._head: RayHead | None = None
        self._driver: Driver | None = None
        self._staging: StagingRun | None = None
        self._preflight: PreflightRun | None = None
        self._push: PushRun | None = None
        self._retrievers = Retrievers(processes, folder.logs)
        self._agent = AgentProcess(processes, folder.logs)
        self._abandoned = _abandoned_cluster(state)
        self._silent_since = 0.0
        self._silent_polls = 0
        self.interrupted_by = ""
        """Signal that suspended the run, such as SIGINT, or ""."""

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Return a snapshot of the job's processes on this machine."""
        self._processes.ensure_warden()
        retrievers, agent = await self._retrievers.observe(), await self._agent.observe()
        staging = self._staging.observe() if self._staging is not None else None
        preflight = self._preflight.observe() if self._preflight is not None else None
        push = self._push.observe() if self._push is not None else None
        head = self._head
        if head is None:
            return Observed(
                staging=staging,
                preflight=preflight,
                push=push,
                cluster=self._abandoned,
                retrievers=retrievers,
                agent=agent,
                in_pods=False,
                interrupted_by=self.interrupted_by,
            )
        driver = self._driver_of(job.status.attempt)
        attempt = driver.observe() if driver is not None else None
        is_running = attempt is not None and attempt.status is SubmissionStatus.RUNNING
        # If a head fails, its driver may exit before the head does.
        is_responding = is_running or head.accepts_connections()
        failure = head.exit_message() or self._silence(head, is_responding)
        is_responding = is_responding and not failure
        cluster = ClusterObserved(
            number=head.number,
            is_ready=is_responding,
            is_lost=bool(failure),
            cause=Cause.HEAD_LOST if failure else None,
            message=failure,
        )
        return Observed(
            staging=staging,
            preflight=preflight,
            push=push,
            cluster=cluster,
            attempt=attempt if is_responding else None,
            # Progress is read last, so that it is final if the attempt has ended.
            progress=None if failure else await head.progress.read(),
            retrievers=retrievers,
            agent=agent,
            is_head_reachable=is_responding,
            in_pods=False,
            interrupted_by=self.interrupted_by,
        )

    async def perform(self, job: RagGrpoJob, action: Action) -> None:  # noqa: ARG002
        """Perform one action."""
        match action:
            case StartStaging():
                self._start_staging(action)
            case DeleteStaging():
                self._delete_staging()
            case StartPreflight():
                self._start_preflight(action)
            case DeletePreflight():
                self._delete_preflight()
            case StartPush():
                self._start_push(action)
            case DeletePush():
                self._delete_push()
            case StartRetriever():
                self._retrievers.start(action.name, action.managed)
            case StopRetrievers():
                self._retrievers.stop()
            case ApplyServices():
                pass  # processes on one machine need no Services
            case StartAgent():
                self._agent.start(action)
            case StopAgent():
                self._agent.stop()
            case CreateCluster():
                self._create_cluster(action)
            case DeleteCluster():
                await self._delete_cluster()
            case SubmitAttempt(config):
                self._submit(config)
            case StopAttempt(number):
                if (driver := self._driver_of(number)) is not None:
                    driver.stop()
            case DumpStacks():
                await self._running_head().progress.dump_stacks()
            case _:
                assert_never(action)

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:  # noqa: ARG002
        """Save the status, and copy the log of an attempt that has ended."""
        self._state.status = status
        self._folder.save(self._state)
        if self._state.temp_dir:
            save_driver_log(status, Path(self._state.temp_dir), self._log_dir)

    async def close(self) -> None:
        """Terminate all processes of the job and remove the temporary folder."""
        self._delete_staging()
        self._delete_preflight()
        self._delete_push()
        self._retrievers.stop()
        self._agent.stop()
        await self._delete_cluster()
        self._remove_temp_dir()

    def _silence(self, head: RayHead, is_responding: bool) -> str:
        """Return a message if the head has exceeded its time limit for responses, else ""."""
        now = self._clock()
        if is_responding or not self._silent_polls:
            self._silent_since = now
        self._silent_polls = 0 if is_responding else self._silent_polls + 1
        silent_seconds = now - self._silent_since
        limit = LOST_SECONDS if head.address() else START_SECONDS
        if self._silent_polls < MIN_SILENT_POLLS or silent_seconds < limit:
            return ""
        return f"the Ray head has not responded for {silent_seconds:.0f} s"

    def _driver_of(self, number: AttemptNumber) -> Driver | None:
        """Return the driver of an attempt if it was started on the current head, else None."""
        driver = self._driver
        return driver if driver is not None and driver.number == number else None

    def _create_cluster(self, action: CreateCluster) -> None:
        if self._head is not None:
            return
        spec = action.plan.spec
        self._remove_temp_dir()
        temp_dir = make_temp_dir()
        self._state.temp_dir = str(temp_dir)
        self._folder.save(self._state)
        self._silent_polls = 0
        self._head = start_ray_head(
            action.number,
            self._processes,
            world=world(spec),
            object_store_bytes=object_store_bytes(spec),
            env=trainer_env(spec, os.environ),
            log_file=self._folder.logs / f"ray-c{action.number}.log",
            temp_dir=temp_dir,
        )

    async def _delete_cluster(self) -> None:
        self._abandoned = None
        if self._head is None:
            return
        self._terminate_driver()
        head, self._head = self._head, None
        await head.close(self._processes)

    def _submit(self, config: TrainerConfig) -> None:
        head = self._running_head()
        number = config.attempt.number
        if self._driver_of(number) is not None:
            return
        text = config_json(config)
        record = _attempt_folder(Path(config.monitoring.log_dir), number) / names.CONFIG_FILE
        if not record.exists():
            write_atomically(record, config.record())
        self._terminate_driver()
        env = seal(text) | self._retrievers.token_env() | self._agent.gateway_env()
        self._driver = Driver(self._processes, head, number, env)

    def _terminate_driver(self) -> None:
        if self._driver is not None:
            self._driver.terminate()
            self._driver = None

    def _start_staging(self, action: StartStaging) -> None:
        self._delete_staging()
        self._staging = StagingRun(
            self._processes,
            action.request,
            action.request_hash,
            folder=self._folder.path,
            log_file=self._folder.logs / "staging.log",
            env=trainer_env(action.plan.spec, os.environ),
        )

    def _delete_staging(self) -> None:
        if self._staging is not None:
            self._staging.terminate()
            self._staging = None

    def _start_preflight(self, action: StartPreflight) -> None:
        self._delete_preflight()
        with suppress(OSError):  # the preflight reports a folder that is not writable
            private_folder(self._log_dir)
        self._preflight = PreflightRun(
            self._processes,
            action.config,
            action.spec_hash,
            output=self._folder.path / "preflight.json",
            log_file=self._folder.logs / "preflight.log",
            env=trainer_env(action.plan.spec, os.environ),
        )

    def _delete_preflight(self) -> None:
        if self._preflight is not None:
            self._preflight.terminate()
            self._preflight = None

    def _start_push(self, action: StartPush) -> None:
        self._delete_push()
        self._push = PushRun(
            self._processes,
            action.job,
            action.request_hash,
            output=self._folder.path / "push.json",
            log_file=self._folder.logs / "push.log",
            env=trainer_env(action.plan.spec, os.environ),
        )

    def _delete_push(self) -> None:
        if self._push is not None:
            self._push.terminate()
            self._push = None

    def _remove_temp_dir(self) -> None:
        """Remove the temporary folder, which may be that of a killed run."""
        if self._state.temp_dir:
            remove_temp_dir(Path(self._state.temp_dir))
            self._state.temp_dir = ""
            self._folder.save(self._state)

    def _running_head(self) -> RayHead:
        if self._head is None:
            raise TransientError("there is no Ray head")
        return self._head


def save_driver_log(status: JobStatus, temp_dir: Path, log_dir: Path) -> None:
    """Copy the driver log of the newest attempt to `log_dir` if the attempt has ended."""
    if not status.attempts or status.attempts[0].cause is None:
        return
    number = status.attempts[0].number
    source = driver_log(temp_dir, number)
    target = _attempt_folder(log_dir, number) / names.DRIVER_LOG
    # A killed driver has not copied its last lines: the copy is complete if both sizes match.
    size = source.stat().st_size if source.exists() else None
    if size is None or (target.exists() and target.stat().st_size == size):
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise TransientError(f"{target} cannot be written: {error.strerror}") from error


def _abandoned_cluster(state: State) -> ClusterObserved | None:
    """Return the lost cluster if the previous run was killed during an attempt, else None."""
    attempts = state.status.attempts
    if not attempts or attempts[0].cause is not None:
        return None
    message = "the previous `raggrpo run` was killed together with its Ray processes"
    return ClusterObserved(
        attempts[0].cluster, is_lost=True, cause=Cause.HEAD_LOST, message=message
    )


def _attempt_folder(log_dir: Path, number: AttemptNumber) -> Path:
    return log_dir / names.ATTEMPTS_DIR / str(number)
