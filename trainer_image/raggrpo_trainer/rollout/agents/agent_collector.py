"""One step's rollouts of an agent: the application runs once per sample, all samples overlap.

    open the trajectory ─▶ application ⇄ gateway ⇄ engines ─▶ close ─▶ rows ─▶ reward

A failed run affects only its sample. Seeds depend on step, prompt and sample, so the order in which
applications call does not change what the policy samples.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from raggrpo_api.fields.text import one_line
from raggrpo_api.spec.agent import AgentFailurePolicy
from raggrpo_api.spec.retrieval import FailurePolicy, RetrievalMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.engines.replacing import Replacing
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.gateway.gateway import Gateway
from raggrpo_trainer.gateway.trajectory import Row, Trajectory
from raggrpo_trainer.gateway.working_time import Timer, within
from raggrpo_trainer.rewards.rewards import Rewards, Score, is_parsed, term_names
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.rollout.grouping import check_calls, form_groups
from raggrpo_trainer.rollout.samples import Batch, Rollouts, Sample, Sampling, make_samples
from raggrpo_trainer.rollout.scoring import record_score, reward_sample
from raggrpo_trainer.sample_failures import SampleFailed

from .agent_request import agent_request
from .agent_result import AgentResult, parse_result
from .run_failure import is_of_policy, run_failure
from .runner import SOURCE, AgentRunner, AgentSlot, AgentUnavailable
from .trajectory_log import TrajectoryLog

log = logging.getLogger(__name__)

MAX_OUTAGES = 5
"""Number of outages of the application during the runs of a sample after which the sample fails."""
MAX_REPEATS = 3
"""Number of times that an interrupted run is repeated; its application may be the cause."""
REWARD_TERM = "agent"
"""Name of the reward that the application returns."""


class _Run(NamedTuple):
    trajectory: Trajectory
    result: AgentResult | CallFailed
    interruption: str
    """Why the result does not count, although neither policy nor application is at fault."""


class AgentCollector:
    """Runs an application for the prompts of a step and scores its answers."""

    def __init__(
        self,
        config: TrainerConfig,
        gateway: Gateway,
        runner: AgentRunner,
        rewards: Rewards,
        trajectories: TrajectoryLog,
        clock: Callable[[], float] = time.monotonic,
        replacing: Replacing | None = None,
    ) -> None:
        """`clock` measures seconds and may pause during outages.

        The time of `replacing`, in which calls wait for an engine, does not count toward timeouts.
        """
        agent = config.rollout.agent
        assert agent is not None
        self._config, self._agent = config, agent
        self._gateway, self._runner = gateway, runner
        self._rewards, self._log = rewards, trajectories
        self._clock, self._replacing = clock, replacing or Replacing()
        self._terms = [REWARD_TERM] if agent.reward else term_names(config.reward.functions)

    async def prepare(
        self,
        step: int,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        swap_passages: bool = False,  # noqa: ARG002
    ) -> Batch:
        """Return the samples of a step; the application retrieves passages itself."""
        samples = tuple(each for group in make_samples(prompts, sampling.n) for each in group)
        return Batch(step, samples, sampling, FailureLedger(), [("data", self._clock())])

    async def collect(self, batch: Batch) -> Rollouts:
        """Run the application for each sample of a batch, and score its answers."""
        runs = [asyncio.ensure_future(self._run(batch, sample)) for sample in batch.samples]
        scored = [
            asyncio.ensure_future(self._score(batch, sample, run))
            for sample, run in zip(batch.samples, runs, strict=True)
        ]
        try:
            await asyncio.gather(*runs)
            generation_end = self._clock()
            await asyncio.gather(*scored)
        finally:
            for task in (*runs, *scored):
                task.cancel()
        _log_failures(batch)
        trajectories = {
            s.name: run.result().trajectory for s, run in zip(batch.samples, runs, strict=True)
        }
        await asyncio.to_thread(self._log.write, batch, trajectories)
        ends = [*batch.stage_ends, ("generate", generation_end), ("reward", self._clock())]
        return Rollouts(batch.samples, ends, batch.ledger)

    def groups(self, rollouts: Rollouts) -> list[Group]:
        """Return the groups with advantages, without samples that failed and have no reward."""
        return form_groups(
            rollouts.samples,
            zero_reward=self._config.retrieval.on_failure is FailurePolicy.ZERO_REWARD,
            normalize_by_std=self._config.algorithm.normalize_by_std,
        )

    def check_failures(self, rollouts: Rollouts) -> None:
        """Raise TrainerError if no run succeeded, or too many failed without fault of the policy.

        Too many are more than `retrieval.maxFailureRatio`, also of calls to services for rewards.
        """
        limit = self._config.retrieval.max_failure_ratio
        if all(sample.failure for sample in rollouts.samples):
            message = f"no run of the agent succeeded: {_summary(rollouts.samples)}"
            raise TrainerError(ExitCode.AGENT_ERROR, message)
        failed, runs = sum(rollouts.ledger.causes(SOURCE).values()), len(rollouts.samples)
        if failed > limit * runs:
            message = f"too many runs of the agent failed (maxFailureRatio {limit:g}): "
            raise TrainerError(ExitCode.AGENT_ERROR, message + _summary(rollouts.samples))
        check_calls(rollouts.ledger, limit)

    async def _run(self, batch: Batch, sample: Sample) -> _Run:
        """Run the application, again after an interruption, and record its rows."""
        run = await self._run_once(batch, sample)
        for _ in range(MAX_REPEATS):
            if not run.interruption:
                break
            log.warning("sample %s: the run is repeated: %s", sample.name, run.interruption)
            run = await self._run_once(batch, sample)
        _record_rows(sample, run.trajectory)
        error = run.result if isinstance(run.result, CallFailed) else None
        if failure := run_failure(run.trajectory, error):
            self._record_failure(batch, sample, failure)
            return run._replace(result=failure)
        batch.ledger.record_success(SOURCE)
        return run

    async def _run_once(self, batch: Batch, sample: Sample, outages: int = 0) -> _Run:
        await self._replacing.wait()
        replacing_seconds = self._replacing.seconds
        result: AgentResult | CallFailed
        try:
            async with self._runner.slot() as slot:
                trajectory = self._open(batch, sample, slot)
                try:
                    message_id = f"{batch.step}-{sample.name}"
                    request = agent_request(self._agent, sample.prompt, message_id, slot)
                    value = await self._value(request, slot)
                finally:
                    await self._gateway.close(slot.key)
            result = parse_result(value, self._agent)
        except AgentUnavailable as unavailable:
            if outages < MAX_OUTAGES:
                return await self._run_once(batch, sample, outages + 1)
            result = unavailable.failure
        except CallFailed as failed:
            result = failed
        was_replaced = self._replacing.seconds > replacing_seconds
        interruption = _interruption(trajectory, result, was_replaced=was_replaced)
        return _Run(trajectory, result, interruption)

    def _open(self, batch: Batch, sample: Sample, slot: AgentSlot) -> Trajectory:
        seed_key = (self._config.training.seed, batch.step, sample.prompt.index, sample.index)
        sampling = batch.sampling
        return self._gateway.open(
            slot.key,
            seed_key,
            sampling.temperature,
            sampling.top_p,
            affinity=sample.group,
            timer=Timer(self._agent.timeout_seconds, self._run_seconds),
        )

    async def _value(self, request: Any, slot: AgentSlot) -> Any:
        seconds = self._agent.timeout_seconds
        try:
            return await within(seconds, self._run_seconds, slot.run(request))
        except TimeoutError as error:
            detail = f"no result within {seconds:g} s (rollout.agent.timeoutSeconds)"
            raise CallFailed(FailureCause.TIMEOUT, detail) from error

    def _run_seconds(self) -> float:
        """Return the time that counts toward timeouts of runs."""
        return self._clock() - self._replacing.seconds

    def _record_failure(self, batch: Batch, sample: Sample, failure: SampleFailed) -> None:
        sample.failure = str(failure)
        sample.is_parsed = False
        if is_of_policy(failure.cause):
            batch.ledger.record_success(SOURCE)
        else:
            batch.ledger.record_failure(sample.name, failure)
        is_trained = self._agent.on_error is AgentFailurePolicy.ZERO_REWARD
        if is_trained and sample.token_ids and failure.cause is not FailureCause.MISSING_LOGPROBS:
            exact_match = 0.0 if sample.prompt.answer else None
            score = Score(0.0, dict.fromkeys(self._terms, 0.0), exact_match)
            record_score(sample, score, is_logged=self._config.monitoring.debug.scoring)

    async def _score(self, batch: Batch, sample: Sample, run: "asyncio.Future[_Run]") -> None:
        result = (await run).result
        if isinstance(result, CallFailed):
            return
        sample.text, sample.passages = result.answer, result.passages
        debug = self._config.monitoring.debug
        if debug.model_output:
            log.info("sample %s: answer %r", sample.name, sample.text)
        subject = reward_sample(sample, result.answer)
        marker = self._config.reward.answer_marker
        sample.is_parsed = is_parsed(subject, RetrievalMode.NONE, marker)
        try:
            if result.reward is None:
                score = await self._rewards.score(subject, batch.ledger)
            else:
                parts = {REWARD_TERM: result.reward}
                score = Score(result.reward, parts, self._rewards.exact_match(subject))
        except SampleFailed as error:
            sample.failure = str(error)
            return
        record_score(sample, score, is_logged=debug.scoring)


def _record_rows(sample: Sample, trajectory: Trajectory) -> None:
    """Store the rows of a trajectory in its sample: the longest one first, the others as forks."""
    rows = trajectory.rows()
    if not rows:
        return
    first, *others = rows
    sample.prompt_ids = first.prompt_ids
    sample.token_ids = [*first.token_ids]
    sample.sampled = [*first.sampled]
    sample.logprobs = [*first.logprobs]
    sample.forks = [(row.prompt_ids, _completion(row, sample)) for row in others]
    sample.is_truncated = not trajectory.turns[-1].end


def _interruption(
    trajectory: Trajectory, result: AgentResult | CallFailed, *, was_replaced: bool
) -> str:
    """Return why a run does not count, or "". `was_replaced` is whether an engine was meanwhile."""
    if isinstance(result, CallFailed) and result.transient:
        return str(result)
    if trajectory.is_abandoned and was_replaced:
        return "a client disconnected while an engine was replaced"
    return ""


def _completion(row: Row, sample: Sample) -> Completion:
    return Completion(row.token_ids, row.sampled, row.logprobs, (sample.group, sample.index))


def _log_failures(batch: Batch) -> None:
    if any(sample.failure for sample in batch.samples):
        log.warning("step %d: %s", batch.step, _summary(batch.samples))


def _summary(samples: Sequence[Sample]) -> str:
    """Return the number of failed samples by source and cause, with an example of the first."""
    failed = [sample for sample in samples if sample.failure]
    kinds = Counter(sample.failure_kind for sample in failed)
    counts = ", ".join(f"{kind} {count}" for kind, count in kinds.most_common())
    example = f"sample {failed[0].name}: {one_line(failed[0].failure, 300)}"
    return f"{len(failed)} of {len(samples)} samples failed ({counts}), e.g. {example}"
