"""The training loop, built from the stages of one GRPO step.

    prompts ─▶ rollouts (retrieve ⇄ generate ─▶ reward) ─▶ advantages ─▶ FSDP2 step
       ▲                                                                    │
       └── checkpoint when due ◀── report ◀── weights to the engines ◀──────┘

Retrieval for the next step runs during generation and training of the current step; with
`offPolicySteps: 1`, generation for the next step also runs during training. The loop never restarts
anything: it raises an exception, and the operator decides what to restart.
"""

import asyncio
import logging
from collections.abc import Awaitable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Stage
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.prompts import PromptSource
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.exchange.step_metrics import StepMetrics, merge_ranks
from raggrpo_trainer.progress.outages import Needs, Outages, every_service
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.progress.step_record import StepRecord
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.ranks.retained_state import TrainingPosition
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rollout.interface import RolloutCollector
from raggrpo_trainer.rollout.sample_metrics import sample_metrics
from raggrpo_trainer.rollout.samples import Rollouts
from raggrpo_trainer.rollout.validation import Validator
from raggrpo_trainer.weights.backend import weight_transfer_backend

from .checkpoint_schedule import due_validation, is_checkpoint_due
from .checkpoint_score import is_scored_by_validation
from .hooks import Hooks
from .lookahead import Lookahead, Prepared
from .saving import Saver, TrainState
from .self_check import check_mismatch, run_self_check
from .stop_signal import Stopped, wait_or_stop

log = logging.getLogger(__name__)
T = TypeVar("T")

STOP_POLL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Components:
    """The components of the loop, built by `training_run`."""

    config: TrainerConfig
    prompts: PromptSource
    collector: RolloutCollector
    validator: Validator
    pool: EnginePool
    ranks: Ranks
    retrieval: RetrievalClient
    store: CheckpointStore
    saver: Saver
    backups: BackupThread
    reporter: Reporter
    hooks: Hooks
    stop: asyncio.Event
    key: str
    """Result of `state_key`; the next driver reuses the ranks only if it computes the same key."""
    outages: Outages


async def train(components: Components, state: TrainState) -> None:
    """Train from `state` to the target step, then validate and export.

    Reports the calls of the attempt if an error ends it.
    """
    try:
        await _train(components, state)
    except TrainerError:
        components.reporter.report_failed_step(state.step + 1, components.retrieval.summaries())
        raise


async def _train(components: Components, state: TrainState) -> None:
    config = components.config
    reporter = components.reporter
    await _send_weights(components, state.step)
    self_check = run_self_check(
        config,
        components.prompts,
        components.collector,
        components.ranks,
        step=state.step,
        cursor=state.cursor,
    )
    await _interruptible(components, state, self_check)
    if config.validation.before_training and (state.step == 0 or state.is_start):
        await _validate(components, state, "before")
    if state.step > state.saved_step:  # resumed from ranks; the step is not saved
        await _finish_step(components, state)
    await _validate_resumed_checkpoint(components, state)
    reporter.report_stage(Stage.FIRST_STEP)
    if state.step < config.training.total_steps:
        batches = Lookahead(
            config, components.prompts, components.collector, state.step, state.cursor
        )
        with closing(batches):
            await _run_steps(components, state, batches)
    await _finish(components, state)


async def _run_steps(components: Components, state: TrainState, batches: Lookahead) -> None:
    training = components.config.training
    collector = components.collector
    clock = components.outages.working_time
    next_rollouts: asyncio.Task[tuple[Prepared, Rollouts]] | None = None
    while state.step < training.total_steps:
        step = state.step + 1
        started = clock()
        await components.hooks.before_step(step)
        needs = partial(batches.needs, step)
        if next_rollouts is None:
            prepared = await _interruptible(components, state, batches.next(), needs)
            collecting = collector.collect(prepared.batch)
            rollouts = await _interruptible(components, state, collecting, needs)
        else:  # started during training of the previous step
            prepared, rollouts = await _interruptible(components, state, next_rollouts, needs)
        seconds = rollouts.seconds_since(started)
        collector.check_failures(rollouts)
        groups = collector.groups(rollouts)
        samples = sample_metrics(rollouts, groups)
        groups = components.hooks.trained_groups(step, groups)
        if training.off_policy_steps and step < training.total_steps:
            next_rollouts = asyncio.create_task(_collect_next(batches, collector))
        position = TrainingPosition(step, prepared.cursor, components.key, samples, seconds)
        training_started = clock()
        metrics = await _train_step(components, groups, position)
        state.advance(position)
        sync_started = clock()
        try:
            await _send_weights(components, step)
        finally:  # the step is completed even if the engines did not receive its weights
            finished = clock()
            components.reporter.report_replacements(components.pool.replacements)
            components.reporter.report_step(
                StepRecord(
                    step=step,
                    samples=samples,
                    trained=metrics,
                    seconds={
                        **seconds,
                        "train": sync_started - training_started,
                        "sync": finished - sync_started,
                    },
                    step_seconds=finished - started,
                    retrieval=components.retrieval.summaries(),
                )
            )
        await _finish_step(components, state)


async def _collect_next(
    batches: Lookahead, collector: RolloutCollector
) -> tuple[Prepared, Rollouts]:
    prepared = await batches.next()
    return prepared, await collector.collect(prepared.batch)


async def _train_step(
    components: Components, groups: list[Group], after: TrainingPosition
) -> StepMetrics:
    """Train one step on the ranks. Raises TrainerError NON_FINITE or POLICY_MISMATCH."""
    await components.pool.sleep()
    rank_metrics = await components.ranks.step(groups, after)
    metrics = merge_ranks(rank_metrics)
    step = after.step
    if metrics.non_finite:
        raise TrainerError(
            ExitCode.NON_FINITE,
            f"an update of step {step} is not finite (loss {metrics.loss:g}, gradient norm "
            f"{metrics.grad_norm:g}); inspect the samples of this step, or lower "
            "training.learningRate",
        )
    check_mismatch(metrics, step)
    return metrics


async def _send_weights(components: Components, version: int) -> None:
    """Transfer the ranks' weights to all engines."""
    backend = weight_transfer_backend(components.config.resources)
    transfer = await components.ranks.send_weights(version, backend)
    await components.pool.load_weights(transfer)


async def _interruptible(
    components: Components,
    state: TrainState,
    work: Awaitable[T],
    needs: Needs = every_service,
) -> T:
    """Await work that can be canceled; report the outages that delay it.

    On a stop signal, cancel the work, save the last completed step and raise Stopped.
    """
    task = asyncio.ensure_future(work)
    with components.outages.reporting(needs):
        is_stopped = await wait_or_stop(components.stop, task)
    if is_stopped:
        raise await _save_and_stop(components, state)
    return task.result()


async def _save_and_stop(components: Components, state: TrainState) -> Stopped:
    """Save the last completed step unless it is already saved; return the exception to raise."""
    if state.step > state.saved_step:
        await components.saver.save(state)
    return Stopped(f"stopped by a signal after step {state.step}; its checkpoint is saved")


async def _finish_step(components: Components, state: TrainState) -> None:
    """After a step, validate and save if due, and stop if requested."""
    config = components.config
    if when := due_validation(config, state.step):
        await _validate(components, state, when)
    if is_checkpoint_due(config, state.step):
        await components.saver.save(state, state.reward)
    components.reporter.report_backups(components.backups.outcomes())
    components.reporter.report_stage(Stage.TRAINING)
    is_last = state.step == config.training.total_steps
    if components.stop.is_set() and not is_last:
        raise await _save_and_stop(components, state)


async def _validate_resumed_checkpoint(components: Components, state: TrainState) -> None:
    """Validate and save the resumed checkpoint again if a stop signal canceled its validation.

    This makes the best checkpoint the same as in an uninterrupted run.
    """
    newest = components.store.newest if state.step else None
    if newest is None or newest.meta.step != state.step or newest.marker.score is not None:
        return
    config = components.config
    if not (is_scored_by_validation(config) and is_checkpoint_due(config, state.step)):
        return
    if when := due_validation(config, state.step):
        await _validate(components, state, when)
        await components.saver.save(state, newest.meta.metrics.get("reward_mean"))


async def _validate(components: Components, state: TrainState, when: str) -> None:
    components.reporter.report_stage(Stage.VALIDATING)
    result = await _interruptible(components, state, components.validator.measure(state.step))
    state.validated = (state.step, result)
    components.reporter.report_validation(when, state.step, result)


async def _finish(components: Components, state: TrainState) -> None:
    """Run the final validation if it is due, export the model and wait for backups."""
    if components.config.validation.after_training and state.validation is None:
        await _validate(components, state, "after")
    components.reporter.report_stage(Stage.EXPORTING)
    folder = await asyncio.to_thread(components.store.export, components.ranks.export)
    components.reporter.report_export(folder, components.store.best)
    while not components.stop.is_set():
        if await asyncio.to_thread(components.backups.wait, STOP_POLL_SECONDS):
            break
    components.reporter.report_backups(components.backups.outcomes())
    components.reporter.report_stage(Stage.FINISHED)
