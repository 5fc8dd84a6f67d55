"""`LocalRuntime`: observes and performs for `decide` on this machine. It decides nothing."""

import json
import logging
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

import httpx

from raggrpo_api import names
from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.preflight import PreflightResult
from raggrpo_api.retrieval import EndpointProtocol, RetrievalEndpoint
from raggrpo_api.status import Cause, JobStatus
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_operator.core.actions import (
    Action,
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    DumpStacks,
    StartPreflight,
    StartRetriever,
    StopAttempt,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.observed import (
    AttemptObserved,
    ClusterObserved,
    Observed,
    PreflightObserved,
    RetrieverObserved,
)
from raggrpo_operator.core.resolve import resolve
from raggrpo_operator.core.sizing import object_store_bytes
from raggrpo_operator.core.world import world
from raggrpo_operator.errors import RuntimeTrouble

from .job_folder import JobFolder, State, write_whole
from .processes import Child, Processes, free_port
from .ray_head import RayHead, make_temp_dir, start_ray_head

log = logging.getLogger(__name__)

HEALTH_SECONDS = 2.0
PATHS = {EndpointProtocol.SEARCH_R1: "/retrieve", EndpointProtocol.RAG_CHAT: "/chat"}
"""Where the bundled retriever serves each protocol."""


@dataclass(slots=True)
class _Preflight:
    child: Child
    spec_hash: str
    output: Path


@dataclass(slots=True)
class _Retriever:
    child: Child
    port: int


class LocalRuntime:
    """One job on this machine: Ray head, managed retrievers and preflight as child processes."""

    def __init__(self, folder: JobFolder, state: State, processes: Processes) -> None:
        self._folder, self._state, self._processes = folder, state, processes
        self._head: RayHead | None = None
        self._preflight: _Preflight | None = None
        self._retrievers: dict[str, _Retriever] = {}

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Return what exists on this machine for the job."""
        cluster = attempt = progress = None
        reachable = True
        if (head := self._head) is not None:
            death = head.death()
            cluster = ClusterObserved(
                number=head.number,
                is_ready=not death and await head.jobs.is_ready(),
                is_lost=bool(death),
                cause=Cause.HEAD_LOST if death else None,
                message=death,
            )
            if not death:
                reachable, attempt = await self._attempt(head, job)
                progress = await head.progress.read()
        return Observed(
            preflight=self._observed_preflight(),
            cluster=cluster,
            attempt=attempt,
            progress=progress,
            retrievers=tuple([await self._observed_retriever(n) for n in self._retrievers]),
            dashboard_reachable=reachable,
        )

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        """Do one thing."""
        match action:
            case StartPreflight():
                self._start_preflight(action)
            case DeletePreflight():
                self._delete_preflight()
            case StartRetriever(name):
                self._start_retriever(job, name)
            case StopRetrievers():
                self._stop_retrievers()
            case CreateCluster(number):
                self._create_cluster(job, number)
            case DeleteCluster():
                await self._delete_cluster()
            case SubmitAttempt(config):
                await self._submit(job, config)
            case StopAttempt(number):
                await self._running_head().jobs.stop(self._submission(job, number))
            case DumpStacks():
                await self._running_head().progress.dump_stacks()
            case _:
                assert_never(action)

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:
        """Keep the status as a file."""
        self._keep_driver_logs(job, status)
        self._state.status = status
        self._folder.save(self._state)

    async def close(self) -> None:
        """End everything that was started."""
        self._delete_preflight()
        self._stop_retrievers()
        await self._delete_cluster()

    async def _attempt(self, head: RayHead, job: RagGrpoJob) -> tuple[bool, AttemptObserved | None]:
        number = job.status.attempt
        if number == 0:
            return True, None
        try:
            return True, await head.jobs.status(self._submission(job, number), number)
        except RuntimeTrouble as trouble:
            log.debug("%s", trouble)
            return False, None

    async def _submit(self, job: RagGrpoJob, config: TrainerConfig) -> None:
        head = self._running_head()
        config = self._with_retriever_urls(config)
        folder = self._attempt_folder(config)
        folder.mkdir(parents=True, exist_ok=True)
        text = config.to_json()
        record = folder / names.CONFIG_FILE
        if not record.exists():
            write_whole(record, json.dumps(json.loads(text), indent=1))
        env = {
            names.ENV_CONFIG: text,
            names.ENV_PROGRESS_PORT: str(head.progress_port),
            "RAY_JOB_STOP_WAIT_TIME_S": str(config.grace_seconds),
            **{v.name: v.value for v in job.spec.env if v.secret_key_ref is None},
            **_passed_on(),
        }
        await head.jobs.submit(
            self._submission(job, config.attempt.number),
            f"{sys.executable} -m raggrpo_trainer",
            env,
            {"attempt": str(config.attempt.number)},
        )

    def _create_cluster(self, job: RagGrpoJob, number: int) -> None:
        if self._head is not None:
            return
        spec = resolve(job).spec
        self._head = start_ray_head(
            number,
            self._processes,
            world=world(spec),
            object_store_bytes=object_store_bytes(spec),
            env=os.environ,
            log_file=self._folder.logs / f"ray-c{number}.log",
            temp_dir=make_temp_dir(),
        )

    async def _delete_cluster(self) -> None:
        if self._head is None:
            return
        head, self._head = self._head, None
        await head.close(self._processes)

    def _start_preflight(self, action: StartPreflight) -> None:
        self._delete_preflight()
        output = self._folder.path / "preflight.json"
        output.unlink(missing_ok=True)
        env = {
            **os.environ,
            names.ENV_CONFIG: self._with_retriever_urls(action.config).to_json(),
            names.ENV_PREFLIGHT_OUTPUT: str(output),
        }
        child = self._processes.start(
            "preflight",
            [sys.executable, "-m", "raggrpo_trainer.preflight"],
            env,
            self._folder.logs / "preflight.log",
        )
        self._preflight = _Preflight(child, action.spec_hash, output)

    def _observed_preflight(self) -> PreflightObserved | None:
        preflight = self._preflight
        if preflight is None:
            return None
        code = preflight.child.exit_code()
        if code is None:
            return PreflightObserved(preflight.spec_hash)
        if code == 0 and preflight.output.exists():
            result = PreflightResult.model_validate_json(preflight.output.read_bytes())
            return PreflightObserved(preflight.spec_hash, result)
        problem = f"the preflight ended with exit code {code}: {preflight.child.last_words()}"
        return PreflightObserved(preflight.spec_hash, problem=problem)

    def _delete_preflight(self) -> None:
        if self._preflight is not None:
            self._processes.end(self._preflight.child)
            self._preflight = None

    def _start_retriever(self, job: RagGrpoJob, name: str) -> None:
        old = self._retrievers.get(name)
        if old is not None and old.child.exit_code() is None:
            return
        managed = next(e.managed for e in job.spec.retrieval.endpoints if e.name == name)
        if managed is None:
            raise RuntimeTrouble(f"endpoint {name} is not managed", retryable=False)
        port = old.port if old is not None else free_port()  # the trainer knows the port
        command = [sys.executable, "-m", "raggrpo_retriever", "--corpus", managed.corpus]
        command += ["--index", str(managed.index), "--host", "127.0.0.1", "--port", str(port)]
        if managed.vectors:
            command += ["--vectors", managed.vectors]
        log_file = self._folder.logs / f"retriever-{name}.log"
        child = self._processes.start(f"retriever-{name}", command, os.environ, log_file)
        self._retrievers[name] = _Retriever(child, port)

    async def _observed_retriever(self, name: str) -> RetrieverObserved:
        retriever = self._retrievers[name]
        code = retriever.child.exit_code()
        if code is not None:
            cause = Cause.DATA_ERROR if code == ExitCode.DATA_ERROR else None
            problem = retriever.child.last_words(3)
            return RetrieverObserved(name, problem=problem, has_ended=True, cause=cause)
        try:
            async with httpx.AsyncClient(trust_env=False, timeout=HEALTH_SECONDS) as client:
                answer = await client.get(f"http://127.0.0.1:{retriever.port}/healthz")
        except httpx.HTTPError:
            return RetrieverObserved(name, problem="starting")
        return RetrieverObserved(name, answer.status_code == 200, answer.text[:200])

    def _stop_retrievers(self) -> None:
        for retriever in self._retrievers.values():
            self._processes.end(retriever.child)
        self._retrievers.clear()

    def _with_retriever_urls(self, config: TrainerConfig) -> TrainerConfig:
        """Fill in where managed retrievers listen."""

        def filled(endpoint: RetrievalEndpoint) -> RetrievalEndpoint:
            retriever = self._retrievers.get(endpoint.name)
            if retriever is None:
                return endpoint
            url = f"http://127.0.0.1:{retriever.port}{PATHS[endpoint.protocol]}"
            return endpoint.model_copy(update={"url": url, "managed": None})

        endpoints = [filled(e) for e in config.retrieval.endpoints]
        retrieval = config.retrieval.model_copy(update={"endpoints": endpoints})
        return config.model_copy(update={"retrieval": retrieval})

    def _keep_driver_logs(self, job: RagGrpoJob, status: JobStatus) -> None:
        """Copy the log of an attempt that ended beside its other records."""
        if self._head is None or not status.attempts or status.attempts[0].cause is None:
            return
        number = status.attempts[0].number
        source = self._head.driver_log(self._submission(job, number))
        log_dir = Path(resolve(job).spec.monitoring.log_dir)
        target = log_dir / names.ATTEMPTS_DIR / str(number) / "driver.log"
        if source.exists() and not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)

    def _running_head(self) -> RayHead:
        if self._head is None:
            raise RuntimeTrouble("there is no Ray head")
        return self._head

    @staticmethod
    def _submission(job: RagGrpoJob, number: int) -> str:
        return names.submission_id(job.metadata.name, number)

    @staticmethod
    def _attempt_folder(config: TrainerConfig) -> Path:
        log_dir = Path(config.monitoring.log_dir)
        return log_dir / names.ATTEMPTS_DIR / str(config.attempt.number)


def _passed_on() -> dict[str, str]:
    """Return the variables of this process that the trainer needs: faults and secrets."""
    return {
        key: value
        for key, value in os.environ.items()
        if key == names.ENV_FAULT or key.startswith("RAGGRPO_SECRET_")
    }
