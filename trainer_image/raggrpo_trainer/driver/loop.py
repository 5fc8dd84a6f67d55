"""The training loop: one GRPO step reads from top to bottom.

    prompts ─▶ rollouts (retrieve ⇄ generate ─▶ reward) ─▶ advantages ─▶ FSDP2 step
       ▲                                                                    │
       └── checkpoint when due ◀── report ◀── weights to the engines ◀──────┘

Retrieval for the next step runs while this one is generated and trained; with `offPolicySteps: 1`
its generation, too, runs while this one trains. The loop never restarts anything: it ends, and the
operator decides.
"""

import asyncio
import logging
import statistics
import time
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Stage
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.checkpoint.compatibility import meta_of
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.prompts import PromptSource
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.exchange.validation_result import ValidationResult
from raggrpo_trainer.progress.outages import Needs, Outages, every_service
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.progress.step_record import StepRecord
from raggrpo_trainer.ranks.held import Position
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.samples import Rollouts
from raggrpo_trainer.rollout.validation import Validator
from raggrpo_trainer.weights.backend import weight_transfer_backend

from .checkpoint_score import (
    checkpoint_due,
    is_judged_by_validation,
    metrics_of,
    score_of,
    validation_due,
)
from .hooks import Hooks
from .lookahead import Lookahead, Prepared
from .self_check import check_itself, check_step
from .stop_signal import Stopped, stopped_before

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_AT_STOP_SECONDS = 0.5


@dataclass(slots=True)
class TrainState:
    """Where the run stands: everything a checkpoint holds besides model and optimiser."""

    step: int = 0
    cursor: Cursor = field(default_factory=Cursor)
    saved_step: int = 0
    validated: tuple[int, ValidationResult] | None = None
    """The newest validation and its step."""
    reward: float | None = None
    """Mean reward of the last step, which may judge its checkpoint."""

    @property
    def validation(self) -> ValidationResult | None:
        """Return the validation of this very step, if it was measured."""
        step, result = self.validated or (None, None)
        return result if step == self.step else None


@dataclass(frozen=True, slots=True)
class Parts:
    """What the loop works with, built by the driver."""

    config: TrainerConfig
    prompts: PromptSource
    collector: Collector
    validator: Validator
    pool: EnginePool
    ranks: Ranks
    retrieval: RetrievalClient
    store: CheckpointStore
    backups: BackupThread
    reporter: Reporter
    hooks: Hooks
    stop: asyncio.Event
    identity: Mapping[str, object]
    """See `identity_of`; a checkpoint is continued only if it matches."""
    key: str
    """See `key_of`; ranks are continued only if it matches."""
    outages: Outages


async def train(parts: Parts, state: TrainState) -> None:
    """Train from `state` to the target step, then validate and export."""
    config, reporter = parts.config, parts.reporter
    await _publish_weights(parts, state.step)
    checking = check_itself(
        config, parts.prompts, parts.collector, parts.ranks, step=state.step, cursor=state.cursor
    )
    await _interruptible(parts, state, checking)
    if config.validation.before_training and state.step == 0:
        await _validate(parts, state, "before")
    if state.step > state.saved_step:  # held by the ranks: what came after this step may be missing
        await _after_step(parts, state)
    await _judge_newest(parts, state)
    reporter.report_stage(Stage.FIRST_STEP)
    if state.step < config.training.total_steps:
        source, collector = parts.prompts, parts.collector
        batches = Lookahead(config, source, collector, state.step, state.cursor)
        with closing(batches):
            await _steps(parts, state, batches)
    await _finish(parts, state)


async def _steps(parts: Parts, state: TrainState, batches: Lookahead) -> None:
    config, reporter, clock = parts.config, parts.reporter, parts.outages.working_time
    ahead: asyncio.Task[tuple[Prepared, Rollouts]] | None = None
    while state.step < config.training.total_steps:
        step, began = state.step + 1, clock()
        await parts.hooks.before_step(step)
        needs = partial(batches.needs, step)
        if ahead is None:
            ready = await _interruptible(parts, state, batches.next(), needs)
            retrieved = clock()
            collecting = parts.collector.collect(ready.batch)
            rollouts = await _interruptible(parts, state, collecting, needs)
            seconds = {"retrieve": retrieved - began, **rollouts.seconds}
        else:  # begun beside the training of the step before
            ready, rollouts = await _interruptible(parts, state, ahead, needs)
            seconds = {"retrieve": 0.0, "generate": clock() - began, "reward": 0.0}
        parts.collector.check_failures(rollouts)
        groups = parts.hooks.trained_groups(step, parts.collector.groups(rollouts))
        if config.training.off_policy_steps and step < config.training.total_steps:
            ahead = asyncio.create_task(_collected(batches, parts.collector))
        samples = sample_metrics(rollouts)
        position = Position(step, ready.cursor, parts.key, samples, seconds)
        training = clock()
        metrics = await _trained(parts, groups, position)
        syncing = clock()
        await _publish_weights(parts, step)
        ended = clock()
        reporter.report_replacements(parts.pool.replacements)
        reporter.report_step(
            StepRecord(
                step=step,
                samples=samples,
                trained=metrics,
                seconds={**seconds, "train": syncing - training, "sync": ended - syncing},
                step_seconds=ended - began,
                retrieval=parts.retrieval.summaries(),
            )
        )
        state.step, state.cursor, state.reward = step, ready.cursor, position.reward
        await _after_step(parts, state)


async def _collected(batches: Lookahead, collector: Collector) -> tuple[Prepared, Rollouts]:
    ready = await batches.next()
    return ready, await collector.collect(ready.batch)


async def _trained(parts: Parts, groups: list[Group], after: Position) -> StepMetrics:
    await parts.pool.sleep()
    of_ranks = await parts.ranks.step(groups, after)
    metrics, step = of_ranks[0], after.step
    if metrics.non_finite:
        raise TrainerError(
            ExitCode.NON_FINITE,
            f"loss {metrics.loss:g}, gradient norm {metrics.grad_norm:g} at step {step}: look at "
            "the step's samples, or lower training.learningRate",
        )
    check_step(metrics, step)
    on_device = max(each.device_memory_bytes or 0 for each in of_ranks)
    on_host = max(each.rank_memory_bytes for each in of_ranks)
    return replace(metrics, rank_memory_bytes=on_host, device_memory_bytes=on_device or None)


async def _publish_weights(parts: Parts, version: int) -> None:
    """Send the ranks' weights to all engines."""
    backend = weight_transfer_backend(parts.config.resources)
    await parts.pool.load_weights(await parts.ranks.send_weights(version, backend))


async def _interruptible(
    parts: Parts,
    state: TrainState,
    work: Awaitable[T],
    needs: Needs = every_service,
) -> T:
    """Await discardable work, services that are down included.

    On a stop signal drop it and save the last finished step.
    """
    task = asyncio.ensure_future(work)
    with parts.outages.reporting(needs):
        is_stopped = await stopped_before(parts.stop, task)
    if is_stopped:
        raise await _saved(parts, state)
    return task.result()


async def _saved(parts: Parts, state: TrainState) -> Stopped:
    """Save the last finished step unless that is done, and return the reason to end with."""
    if state.step > state.saved_step:
        await _save(parts, state)
    return Stopped(f"stopped by a signal after step {state.step}, saved")


async def _after_step(parts: Parts, state: TrainState) -> None:
    """Validate, save and stop, whichever is due."""
    config = parts.config
    step, last = state.step, state.step == config.training.total_steps
    if when := validation_due(config, step):
        await _validate(parts, state, when)
    if checkpoint_due(config, step):
        await _save(parts, state, state.reward)
    parts.reporter.report_backups(parts.backups.outcomes())
    parts.reporter.report_stage(Stage.TRAINING)
    if parts.stop.is_set() and not last:
        raise await _saved(parts, state)


async def _judge_newest(parts: Parts, state: TrainState) -> None:
    """Validate the step that was resumed from, where a stop had cut that short, and save it again.

    So the best checkpoint is that of an undisturbed run.
    """
    newest = parts.store.newest if state.step else None
    if newest is None or newest.meta.step != state.step or newest.marker.score is not None:
        return
    config, step = parts.config, state.step
    is_judged = is_judged_by_validation(config) and checkpoint_due(config, step)
    if is_judged and (when := validation_due(config, step)):
        await _validate(parts, state, when)
        await _save(parts, state, newest.meta.metrics.get("reward_mean"))


async def _save(parts: Parts, state: TrainState, reward: float | None = None) -> None:
    parts.reporter.report_stage(Stage.CHECKPOINTING)
    began = time.monotonic()
    metrics = metrics_of(reward, state.validation)
    score = score_of(metrics, parts.config.checkpoint.best_by)
    meta = meta_of(parts.config, state.step, state.cursor, metrics, identity=parts.identity)
    checkpoint = await asyncio.to_thread(parts.store.save, meta, parts.ranks.save, score=score)
    state.saved_step = state.step
    parts.reporter.report_save(checkpoint.ref(), time.monotonic() - began, parts.store.best)
    backup = parts.config.checkpoint.backup
    last = state.step == parts.config.training.total_steps
    if backup.url and (last or state.step % backup.every_steps == 0):
        parts.backups.offer(checkpoint)


async def _validate(parts: Parts, state: TrainState, when: str) -> None:
    parts.reporter.report_stage(Stage.VALIDATING)
    result = await _interruptible(parts, state, parts.validator.measure(state.step))
    state.validated = (state.step, result)
    parts.reporter.report_validation(when, state.step, result)


async def _finish(parts: Parts, state: TrainState) -> None:
    """Validate, export and report the end."""
    if parts.config.validation.after_training and state.validation is None:
        await _validate(parts, state, "after")
    parts.reporter.report_stage(Stage.EXPORTING)
    folder = await asyncio.to_thread(parts.store.export, parts.ranks.export)
    parts.reporter.report_export(folder, parts.store.best)
    while not parts.stop.is_set():
        if await asyncio.to_thread(parts.backups.wait, LOOK_AT_STOP_SECONDS):
            break
    parts.reporter.report_backups(parts.backups.outcomes())
    parts.reporter.report_stage(Stage.FINISHED)


def sample_metrics(rollouts: Rollouts) -> SampleMetrics:
    """Return the metrics of a step's samples (pure)."""
    scored = rollouts.scored
    rewards = [s.reward for s in scored if s.reward is not None]
    names = sorted({name for s in scored for name in s.parts})
    by_group: dict[int, set[float]] = {}
    for sample in scored:
        by_group.setdefault(sample.group, set()).add(sample.reward or 0.0)
    lengths = [sum(s.sampled) for s in scored]
    return SampleMetrics(
        reward_mean=_mean(rewards),
        reward_std=statistics.pstdev(rewards) if rewards else None,
        reward_parts={n: statistics.fmean(s.parts[n] for s in scored) for n in names},
        exact_match=_mean([s.exact_match for s in scored]),
        num_samples=len(rollouts.samples),
        num_failed=len(rollouts.samples) - len(scored),
        zero_variance=_mean([float(len(found) == 1) for found in by_group.values()]) or 0.0,
        response_tokens=_mean(lengths) or 0.0,
    )


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None
