"""Fake runtime: clusters and a trainer on a simulated clock, with injected faults.

Implements `reconcile.Runtime` and records every action, so that tests can check that each was
performed once.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus, status_from_json
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.learning import Streak
from raggrpo_api.trainer.preflight import Check, CheckId, CheckState, PreflightResult
from raggrpo_api.trainer.progress import (
    CheckpointRef,
    Failure,
    Metric,
    Progress,
    SkippedCheckpoint,
    Stage,
)
from raggrpo_api.trainer.staging import (
    PushOutcome,
    PushResult,
    StagedSource,
    StagingProgress,
    StagingRequest,
    StagingResult,
)
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
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    DeviceObserved,
    Observed,
    PreflightObserved,
    PushObserved,
    ServiceObserved,
    StagingObserved,
    StartObserved,
    SubmissionStatus,
)
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.errors import OperatorError, TransientError
from raggrpo_operator.reconcile import reconcile
from support.builders.operator.jobs import KNOWN_TINY, make_job

T0 = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)
SAVE_EVERY = 10
STAGING_SECONDS = 20.0
CLUSTER_SECONDS = 6.0
LOAD_SECONDS = 10.0
STEP_SECONDS = 1.0
STOP_SECONDS = 4.0


class Crash(Exception):
    """The operator crashes between the status write and the actions."""


@dataclass
class Attempt:
    """One run of the fake trainer."""

    number: int
    started: datetime
    total_steps: int
    from_step: int
    status: SubmissionStatus = SubmissionStatus.RUNNING
    exit_code: int | None = None
    failure: str = ""
    short_of: str = ""
    step: int = 0
    hangs: bool = False
    ignores_stop: bool = False
    stopping: datetime | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the driver still runs."""
        return not self.status.is_terminal


def staged(request: StagingRequest) -> StagingResult:
    """Return the result of a successful staging, with revisions that depend on the URL."""
    return StagingResult(
        staged=[
            StagedSource(
                field=each.field,
                path=f"{request.folder}/{number}",
                revision=each.revision or f"commit-of-{each.url}"[:64],
                digest="d",
                bytes=1,
            )
            for number, each in enumerate(request.sources)
        ]
    )


def pushed(action: StartPush) -> PushOutcome:
    """Return the outcome of a successful push."""
    url = action.job.spec.output.push or ""
    return PushOutcome(pushed=PushResult(url=url, revision="c0ffee", bytes=2 * 10**9))


Fault = Callable[["FakeRuntime", Attempt], None]


@dataclass
class FakeRuntime:
    """Fake implementation of `reconcile.Runtime`."""

    now: datetime = T0
    faults: dict[tuple[int, int], Fault] = field(default_factory=dict)
    """Fault by (attempt, step), injected after that step."""
    device: DeviceObserved | None = None
    start: StartObserved | None = None
    preflight_result: PreflightResult = field(
        default_factory=lambda: PreflightResult(facts=KNOWN_TINY)
    )
    stagings: list[StagingResult | str] = field(default_factory=list)
    """Results of the next stagings, or why they end without one; further ones succeed."""
    pushes: list[PushOutcome | str] = field(default_factory=list)
    """Outcomes of the next pushes, or why they end without one; further ones succeed."""
    preflights: list[str] = field(default_factory=list)
    """Outcomes of the next preflights: "lost" or "hangs"; further ones pass."""
    performed: list[Action] = field(default_factory=list)
    statuses: list[JobStatus] = field(default_factory=list)
    crash_before_actions_of: int | None = None
    """Number of the status write after which the operator crashes."""
    rounds: int = 0
    rounds_with_actions: set[int] = field(default_factory=set)
    saved: list[int] = field(default_factory=list)
    skipped: list[SkippedCheckpoint] = field(default_factory=list)
    best_step: int | None = None
    torn: bool = False
    """Whether the newest checkpoint is damaged for the next attempt."""
    resume_at: int | None = None
    """Step from which the next attempt starts, regardless of checkpoints."""
    is_blind: bool = False
    """Whether /progress is unreadable."""
    missing_key: str = ""
    """Why the operator cannot derive the token of the head, or ""."""
    can_replace_cluster: bool = True
    dashboard_is_down: bool = False
    default_image: str = ""
    image_ids: tuple[str, ...] = ()
    """`imageID` reported for the pods of the current cluster."""
    ray_version: str = ""
    """Ray version reported by the head of the current cluster."""
    cluster_seconds: float = CLUSTER_SECONDS
    stage: Stage | None = None
    """Stage that /progress misreports, or None for the real one."""
    seconds_per_step: float = STEP_SECONDS
    """Step duration, as reported by the trainer."""
    seconds_by_stage: dict[str, float] = field(default_factory=dict)
    tokens_by_stage: dict[str, int] = field(default_factory=dict)
    """Seconds and tokens of a step by stage, as reported by the trainer."""
    streaks: list[Streak] = field(default_factory=list)
    """Signs that the run learns nothing, as reported by the trainer."""
    mismatch_mean: float | None = None
    """Mean mismatch of the last step, as reported by the trainer."""
    save_seconds: float = 0.0
    """Duration of the last save, as reported by the trainer."""
    backup_failure: str = ""
    """Error of the newest backup, as reported by the trainer."""
    queue: str = ""
    """Why a queue holds the pods, or ""."""
    attempt: Attempt | None = None
    retrievers: dict[str, ServiceObserved] = field(default_factory=dict)
    agent: ServiceObserved | None = None
    keeps_agent: bool = False
    """Whether a started agent is not observed yet."""
    has_services: bool = True
    """Whether all Services exist."""
    _cluster: tuple[int, datetime] | None = None
    _lost: tuple[Cause, str, str] | None = None
    _lost_at: datetime = T0
    _lost_worker: tuple[int, str] | None = None
    """Attempt that lost a worker, and the worker's node."""
    _saves_seconds: float = 0.0
    """Seconds during which a lost head may still save."""
    _successor: tuple[int, datetime] | None = None
    """Attempt that lost its head, and the time at which the replacement is ready."""
    _staging: tuple[StartStaging, datetime, StagingResult | str] | None = None
    _push: tuple[StartPush, datetime, PushOutcome | str] | None = None
    _preflight: tuple[str, datetime, str] | None = None

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Advance the environment to `now` and observe it."""
        self._move()
        is_silent = self._head_is_silent or bool(self.missing_key)
        attempt = None if is_silent else self._observed_attempt()
        return Observed(
            staging=self._observed_staging(),
            preflight=self._observed_preflight(),
            push=self._observed_push(),
            cluster=self._observed_cluster(job.status.attempt),
            attempt=attempt,
            progress=None if self.is_blind or self.missing_key else self._progress(),
            retrievers=tuple(self.retrievers.values()),
            agent=self.agent,
            has_services=self.has_services,
            is_head_reachable=not self._head_is_silent and not self.missing_key,
            missing_key=self.missing_key,
            can_replace_cluster=self.can_replace_cluster,
            default_image=self.default_image,
            device=self.device,
            start=self.start,
        )

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        """Perform and record one action."""
        self.performed.append(action)
        self.rounds_with_actions.add(self.rounds)
        match action:
            case StartStaging():
                if self._staging is None:
                    result = self.stagings.pop(0) if self.stagings else staged(action.request)
                    self._staging = (action, self.now, result)
            case DeleteStaging():
                self._staging = None
            case StartPush():
                if self._push is None:
                    fate = self.pushes.pop(0) if self.pushes else pushed(action)
                    self._push = (action, self.now, fate)
            case DeletePush():
                self._push = None
            case StartPreflight(spec_hash=spec_hash):
                fate = self.preflights.pop(0) if self.preflights else ""
                self._preflight = (spec_hash, self.now, fate)
            case DeletePreflight():
                self._preflight = None
            case StartRetriever(name=name):
                self.retrievers[name] = ServiceObserved(name, f"http://{name}", is_ready=True)
            case StopRetrievers():
                self.retrievers.clear()
            case ApplyServices():
                self.has_services = True
            case StartAgent(spec_hash=spec_hash) if not self.keeps_agent:
                self.agent = ServiceObserved(
                    "agent", "http://agent", is_ready=True, spec_hash=spec_hash
                )
            case StartAgent():
                pass
            case StopAgent():
                self.agent = None
            case CreateCluster(number=number):
                if self._cluster is None:
                    self._cluster, self._lost = (number, self.now), None
                    self._successor = None
                assert self._cluster[0] == number, "a second cluster exists"
            case DeleteCluster(number):
                if self._cluster is not None and self._cluster[0] == number:
                    self._cluster = self._lost = self.attempt = self._successor = None
            case SubmitAttempt(config, number):
                if self._cluster is None or self._cluster[0] != number:
                    raise TransientError(f"there is no cluster {number}")
                self._submit(config)
            case StopAttempt():
                if self.attempt is not None and self.attempt.stopping is None:
                    self.attempt.stopping = self.now
            case DumpStacks():
                pass

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:
        """Record the status."""
        self.statuses.append(status)
        self.rounds += 1
        if self.rounds == self.crash_before_actions_of:
            raise Crash

    def lose_head(
        self,
        cause: Cause = Cause.HEAD_LOST,
        message: str = "head killed",
        node: str = "",
        *,
        saves_seconds: float = 0.0,
        away_seconds: float | None = None,
    ) -> None:
        """Lose the cluster with all its pods. Its driver may save for `saves_seconds`.

        With `away_seconds`, only the head is lost; it is replaced after that time.
        """
        newest = self.attempt.number if self.attempt is not None else 0
        self._lost, self.attempt = (cause, message, node), None
        self._lost_at, self._saves_seconds = self.now, saves_seconds
        self._successor = None
        if away_seconds is not None:
            self._successor = (newest, self.now + timedelta(seconds=away_seconds))

    @property
    def _head_is_silent(self) -> bool:
        is_away = self._successor is not None and self.now < self._successor[1]
        return self.dashboard_is_down or is_away

    def lose_worker(self, node: str = "") -> None:
        """Lose a worker pod: its driver exits, and the pod is replaced."""
        assert self._cluster is not None
        assert self.attempt is not None
        self._cluster = (self._cluster[0], self.now)
        self._lost_worker = (self.attempt.number, node)
        exits(ExitCode.TRAINER_RANK_LOST)(self, self.attempt)

    def preempt(self) -> None:
        """Preempt the pods; the driver saves before it exits."""
        self.queue = "waits in queue research"
        if self.attempt is not None:
            self.saved.append(self.attempt.step)
        self.attempt = None

    def admit(self) -> None:
        """Admit the cluster: all pods start again."""
        assert self._cluster is not None
        self.queue, self._cluster = "", (self._cluster[0], self.now)

    def _submit(self, config: TrainerConfig) -> None:
        number, total_steps = config.attempt.number, config.training.total_steps
        if self.attempt is not None and self.attempt.number == number:
            return
        alive = self.attempt is not None and self.attempt.is_alive
        assert not alive, "a second attempt runs"
        for step in [s for s in self.saved if f"/{s}" in config.rejected_checkpoints]:
            self.saved.remove(step)
            self.skipped = [SkippedCheckpoint(path=f"/{step}", reason="rejected")]
        if self.torn and self.saved:
            self.skipped = [SkippedCheckpoint(path=f"step_{self.saved.pop()}", reason="truncated")]
            self.torn = False
        newest = max(self.saved, default=0)
        start = newest if self.resume_at is None else self.resume_at
        self.resume_at = None
        self.attempt = Attempt(number, self.now, total_steps, start, step=start)

    def _move(self) -> None:
        attempt = self.attempt
        if attempt is None or attempt.status.is_terminal or attempt.hangs:
            if attempt is not None:
                self._stop_if_due(attempt)
            return
        seconds = (self.now - attempt.started).total_seconds() - LOAD_SECONDS
        due = min(attempt.total_steps, attempt.from_step + max(0, int(seconds / STEP_SECONDS)))
        while attempt.step < due and self.attempt is attempt and not attempt.status.is_terminal:
            attempt.step += 1
            if attempt.step % SAVE_EVERY == 0 or attempt.step == attempt.total_steps:
                self.saved.append(attempt.step)
            if fault := self.faults.pop((attempt.number, attempt.step), None):
                fault(self, attempt)
            if attempt.hangs:
                return
        if attempt.step >= attempt.total_steps and not attempt.status.is_terminal:
            attempt.status, attempt.exit_code = SubmissionStatus.SUCCEEDED, ExitCode.DONE
        self._stop_if_due(attempt)

    def _stop_if_due(self, attempt: Attempt) -> None:
        if attempt.stopping is None or attempt.ignores_stop or not attempt.is_alive:
            return
        if (self.now - attempt.stopping).total_seconds() >= STOP_SECONDS:
            attempt.status = SubmissionStatus.STOPPED
            if not attempt.hangs:
                self.saved.append(attempt.step)

    def _observed_attempt(self) -> AttemptObserved | None:
        attempt = self.attempt
        if attempt is None:
            return None
        return AttemptObserved(attempt.number, attempt.status, attempt.exit_code, attempt.failure)

    def _observed_cluster(self, newest: int) -> ClusterObserved | None:
        if self._cluster is None:
            return None
        number, created = self._cluster
        if self._lost is not None and self._successor is not None and newest > self._successor[0]:
            self._lost = None  # the current attempt has not lost it
            created = self._successor[1] - timedelta(seconds=self.cluster_seconds)
            self._cluster = (number, created)
        if self._lost is not None:
            cause, message, node = self._lost
            return ClusterObserved(
                number,
                is_lost=True,
                may_return=self._successor is not None and cause is Cause.HEAD_LOST,
                may_save=0 <= (self.now - self._lost_at).total_seconds() < self._saves_seconds,
                cause=cause,
                node=node,
                message=message,
            )
        if self.queue:
            return ClusterObserved(number, is_queued=True, message=self.queue)
        ready = (self.now - created).total_seconds() >= self.cluster_seconds
        is_ready = ready and not self._head_is_silent
        if self._lost_worker is not None and self._lost_worker[0] == newest:
            cause, node = Cause.WORKER_LOST, self._lost_worker[1]
            return ClusterObserved(number, cause=cause, node=node, message="worker pod ended")
        return ClusterObserved(
            number,
            is_ready,
            image_ids=self.image_ids,
            ray_version=self.ray_version or self.preflight_result.facts.ray_version,
        )

    def _observed_staging(self) -> StagingObserved | None:
        if self._staging is None:
            return None
        action, started, result = self._staging
        if isinstance(result, str):
            return StagingObserved(action.request_hash, problem=result)
        if (self.now - started).total_seconds() < STAGING_SECONDS:
            progress = StagingProgress(bytes_done=31 * 10**8, bytes_total=152 * 10**8)
            return StagingObserved(action.request_hash, progress=progress)
        return StagingObserved(action.request_hash, result)

    def _observed_push(self) -> PushObserved | None:
        if self._push is None:
            return None
        action, started, outcome = self._push
        if isinstance(outcome, str):
            is_oom = "OOMKilled" in outcome
            return PushObserved(action.request_hash, problem=outcome, is_out_of_memory=is_oom)
        if (self.now - started).total_seconds() < STAGING_SECONDS:
            progress = StagingProgress(bytes_done=5 * 10**8, bytes_total=2 * 10**9)
            return PushObserved(action.request_hash, progress=progress)
        return PushObserved(action.request_hash, outcome)

    def _observed_preflight(self) -> PreflightObserved | None:
        if self._preflight is None:
            return None
        spec_hash, started, fate = self._preflight
        if fate == "lost":
            return PreflightObserved(spec_hash, problem="evicted")
        if fate == "hangs" or (self.now - started).total_seconds() < 3:
            return PreflightObserved(spec_hash)
        return PreflightObserved(spec_hash, self.preflight_result)

    def _progress(self) -> Progress | None:
        attempt = self.attempt
        if attempt is None:
            return None
        loading = (self.now - attempt.started).total_seconds() < LOAD_SECONDS
        done = attempt.step >= attempt.total_steps
        stage = self.stage or (Stage.FINISHED if done else Stage.TRAINING)
        code = attempt.exit_code or 0
        failure = _failure(attempt) if code else None
        newest = max((s for s in self.saved if s <= max(attempt.step, 0)), default=None)
        return Progress(
            attempt=attempt.number,
            stage=Stage.LOADING_MODEL if loading else stage,
            step=attempt.step,
            total_steps=attempt.total_steps,
            started_from_step=None if loading else attempt.from_step,
            seconds_per_step=0.0 if loading else self.seconds_per_step,
            seconds_by_stage=self.seconds_by_stage,
            tokens_by_stage=self.tokens_by_stage,
            streaks=[] if loading else self.streaks,
            checkpoint=None if newest is None else CheckpointRef(step=newest, path=f"/{newest}"),
            best_step=self.best_step,
            skipped_checkpoints=self.skipped,
            save_seconds=self.save_seconds,
            backup_failure=self.backup_failure,
            metrics=[]
            if self.mismatch_mean is None
            else [Metric(name="mismatch_mean", value=str(self.mismatch_mean))],
            failure=failure,
        )


def exits(code: int, message: str = "on purpose", short_of: str = "") -> Fault:
    """Return a fault: the driver exits with this code."""

    def fault(_: FakeRuntime, attempt: Attempt) -> None:
        attempt.exit_code, attempt.failure, attempt.short_of = code, message, short_of
        attempt.status = SubmissionStatus.FAILED if code else SubmissionStatus.SUCCEEDED

    return fault


def head_is_lost(runtime: FakeRuntime, _: Attempt) -> None:
    """Fault: the head is lost."""
    runtime.lose_head()


def hangs(_: FakeRuntime, attempt: Attempt) -> None:
    """Fault: no further step completes, and the driver does not save when stopped."""
    attempt.hangs = True


CRASH = exits(ExitCode.PROGRAM_ERROR, "ValueError: on purpose")


def crashes_and_tears(runtime: FakeRuntime, attempt: Attempt) -> None:
    """Fault: the driver crashes and damages the newest checkpoint."""
    runtime.torn = True
    CRASH(runtime, attempt)


@dataclass
class Scenario:
    """A job on a fake runtime, driven by the real `reconcile`."""

    job: RagGrpoJob
    runtime: FakeRuntime
    drops_process: bool = True
    """Whether the operator restarts after each round, so that only the status remains."""
    delays: list[float] = field(default_factory=list)
    _read: RagGrpoJob | None = None
    """The job as last read back in full."""

    async def until_quiet(self, limit: timedelta = timedelta(hours=12)) -> JobStatus:
        """Reconcile until no round is due."""
        end = self.runtime.now + limit
        while await self.round() is not None:
            assert self.runtime.now < end, f"rounds are still due: {self.status.conditions}"
        return self.status

    async def until(self, condition: Callable[[JobStatus], bool]) -> JobStatus:
        """Reconcile until the status satisfies a condition."""
        end = self.runtime.now + timedelta(hours=12)
        while not condition(self.status):
            await self.round()
            assert self.runtime.now < end, f"the condition was not true in time: {self.status}"
        return self.status

    async def round(self) -> float | None:
        """Run one round and advance the clock to the next, or return None if none is due."""
        written = len(self.runtime.statuses)
        try:
            decision = await reconcile(self.job, self.runtime, self.runtime.now)
        except Crash:
            self._read_back()
            return 0.0
        except OperatorError:
            if (
                len(self.runtime.statuses) > written
            ):  # only an action failed; the status was written
                self._read_back()
            self.runtime.now += timedelta(seconds=1)
            return 1.0
        self.job = self._remembered(self.job.model_copy(update={"status": decision.status}))
        if decision.requeue_after is None:
            return 0.0 if decision.actions else None
        self.delays.append(decision.requeue_after)
        self.runtime.now += timedelta(seconds=max(decision.requeue_after, 0.01))
        return decision.requeue_after

    def _read_back(self) -> None:
        status = self.runtime.statuses[-1]
        self.job = self._remembered(self.job.model_copy(update={"status": status}))

    def _remembered(self, job: RagGrpoJob) -> RagGrpoJob:
        if not self.drops_process:
            return job
        read = self._read
        if read and job.spec is read.spec and job.metadata is read.metadata:  # a new status only
            stored = job.model_dump_json(by_alias=True, exclude_unset=True, include={"status"})
            return job.model_copy(update={"status": status_from_json(json.loads(stored)["status"])})
        job = RagGrpoJob.model_validate_json(job.model_dump_json(by_alias=True, exclude_unset=True))
        self._read = job
        return job

    @property
    def status(self) -> JobStatus:
        """Return the newest status."""
        return self.job.status

    @property
    def attempts(self) -> list[AttemptRecord]:
        """Return the attempts, oldest first."""
        return list(reversed(self.status.attempts))

    @property
    def submitted(self) -> list[int]:
        """Return the numbers of the submitted attempts in order."""
        submits = [a for a in self.runtime.performed if isinstance(a, SubmitAttempt)]
        return [action.config.attempt.number for action in submits]

    def count(self, kind: type[Action]) -> int:
        """Return how often an action was performed."""
        return sum(isinstance(action, kind) for action in self.runtime.performed)

    def condition(self, kind: ConditionType) -> tuple[str, str, str]:
        """Return status, reason and message of a condition."""
        condition = get_condition(self.status, kind)
        return condition.status, condition.reason, condition.message

    def edit(self, changes: Mapping[str, Any]) -> None:
        """Change the job's spec as a user; keys are paths below `spec`."""
        fresh = make_scenario_job(changes)
        generation = self.job.metadata.generation + 1
        metadata = self.job.metadata.model_copy(update={"generation": generation})
        self.job = self.job.model_copy(update={"spec": fresh.spec, "metadata": metadata})

    def retry(self, value: str) -> None:
        """Set the annotation that reopens a failed job."""
        annotations = {**self.job.metadata.annotations, ANNOTATION_RETRY: value}
        metadata = self.job.metadata.model_copy(update={"annotations": annotations})
        self.job = self.job.model_copy(update={"metadata": metadata})


def make_scenario_job(changes: Mapping[str, Any] | None = None) -> RagGrpoJob:
    """Return a job of 60 steps with a checkpoint every 10 steps."""
    return make_job(
        {
            "training.totalSteps": 60,
            "data.trainBatchSize": 8,
            "data.maxPromptLength": 64,
            "data.maxResponseLength": 16,
            "checkpoint.everySteps": SAVE_EVERY,
            "resources.device": "CPU",
            **(changes or {}),
        }
    )


def make_scenario(
    faults: Mapping[tuple[int, int], Fault] | None = None,
    changes: Mapping[str, Any] | None = None,
    **world: Any,
) -> Scenario:
    """Return a scenario with faults and spec changes."""
    return Scenario(make_scenario_job(changes), FakeRuntime(faults=dict(faults or {}), **world))


def causes(scenario: Scenario) -> list[Cause | None]:
    """Return the causes of the attempts, oldest first."""
    return [record.cause for record in scenario.attempts]


async def until_step(scenario: Scenario, step: int) -> None:
    """Reconcile until the job has reached `step`."""
    await scenario.until(lambda status: status.progress.step >= step)


def failed_check(check: CheckId, evidence: str, code: int) -> PreflightResult:
    """Return a preflight result with one failed check."""
    checks: Sequence[Check] = [Check(id=check, state=CheckState.FAILED, evidence=evidence)]
    return PreflightResult(facts=KNOWN_TINY, checks=list(checks), exit_code=code)


def _failure(attempt: Attempt) -> Failure:
    return Failure(
        exit_code=attempt.exit_code or 0, message=attempt.failure, short_of=attempt.short_of
    )
