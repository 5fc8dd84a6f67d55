"""Resume an attempt from the state that surviving ranks retain, or from a checkpoint."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig, content_hash
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.history import Record, read_records
from raggrpo_api.trainer.learning import Streak, streaks_of
from raggrpo_api.trainer.progress import SkippedCheckpoint
from raggrpo_trainer.checkpoint.compatibility import check_compatible, segments_after
from raggrpo_trainer.checkpoint.folder import Checkpoint, CheckpointName
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.policy_config import policy_config
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.rank_actor import RankInfo
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.ranks.retained_state import RetainedState, TrainingPosition

from .saving import TrainState
from .start import start_from_checkpoint

log = logging.getLogger(__name__)


async def resume(
    config: TrainerConfig,
    store: CheckpointStore,
    ranks: Ranks,
    retained: RetainedState | None,
    reporter: Reporter,
    reported_step: int,
    identity: Mapping[str, object],
) -> TrainState:
    """Resume from the ranks' retained state, or load the newest readable checkpoint.

    The retained state is used unless a checkpoint is newer. Unreadable checkpoints are rejected and
    reported. `reported_step` is the last step that the previous driver reported. If the retained
    state is at a later step that was neither reported nor saved, this function reports that step.
    """
    newest = store.newest
    records = await asyncio.to_thread(read_records, Path(config.monitoring.log_dir))
    if records.problem:
        log.warning("%s", records.problem)
    history = records.steps
    store.skipped += removed_checkpoint(store, records.events)
    for skipped in store.skipped:
        log.warning("skipping checkpoint %s: %s", skipped.path, skipped.reason)
    saved_step = newest.meta.step if newest is not None else 0
    if retained is None or retained.position.step < saved_step:
        state = await _load_newest(config, store, ranks, reporter, identity, history)
        key = state_key(config, ranks.infos[0], identity)
        await ranks.retain(TrainingPosition(state.step, state.cursor, key))
        return state
    position = retained.position
    log.info("resuming from the ranks' state after step %d; no checkpoint is loaded", position.step)
    ref = newest.ref() if newest is not None else None
    segments = segments_after(newest.meta, config, identity=identity) if newest is not None else ()
    streaks = _streaks_until(position.step, history)
    reporter.report_resume(position.step, ref, store.best, store.skipped, segments, streaks)
    record = retained.record()
    if record is not None and position.step > max(reported_step, saved_step):
        reporter.report_step(record)
    return TrainState(
        position.step, position.cursor, saved_step, segments=segments, reward=position.reward
    )


async def _load_newest(
    config: TrainerConfig,
    store: CheckpointStore,
    ranks: Ranks,
    reporter: Reporter,
    identity: Mapping[str, object],
    history: Sequence[Record],
) -> TrainState:
    """Load the newest loadable checkpoint, or return the state at step 0 if there is none.

    If checkpoints exist but none can be loaded, raises the error of the last one tried.
    """
    while (checkpoint := store.newest) is not None:
        for note in check_compatible(checkpoint.meta, config, identity=identity):
            log.info("%s: %s", checkpoint.folder, note)
        try:
            await _load(checkpoint, ranks)
        except TrainerError as error:
            if error.exit_code is ExitCode.TRAINER_RANK_LOST:
                raise
            await asyncio.to_thread(store.reject, checkpoint, f"cannot be loaded: {error}")
            if store.newest is None:
                # The failed load may have changed the model; only a new attempt has a clean model.
                raise
            continue
        step = checkpoint.meta.step
        segments = segments_after(checkpoint.meta, config, identity=identity)
        streaks = _streaks_until(step, history)
        reporter.report_resume(step, checkpoint.ref(), store.best, store.skipped, segments, streaks)
        return TrainState(step, checkpoint.meta.cursor, step, segments=segments)
    start = config.training.start_from
    if start is not None:
        return await start_from_checkpoint(config, start, store, ranks, reporter, identity)
    reporter.report_resume(0, skipped=store.skipped)
    return TrainState()


async def _load(checkpoint: Checkpoint, ranks: Ranks) -> None:
    try:
        await asyncio.to_thread(checkpoint.verify)
    except ValueError as error:
        raise TrainerError(ExitCode.CHECKPOINT_WRITE_FAILED, str(error)) from error
    await ranks.load(checkpoint.folder)


def removed_checkpoint(store: CheckpointStore, events: Sequence[Record]) -> list[SkippedCheckpoint]:
    """Return the checkpoint saved last if its folder was removed and an older checkpoint exists.

    Without an older checkpoint the folder may be that of another volume, so that the operator has
    to reject a resume from step 0.
    """
    saved = [Path(event["path"]).name for event in events if event["event"] == "checkpoint"]
    names = CheckpointName.among(saved[-1:])
    if store.newest is None or not names or names[0] < store.newest.name:
        return []
    folder = store.newest.folder.with_name(str(names[0]))
    is_known = folder.exists() or str(folder) in {each.path for each in store.skipped}
    reason = "the folder no longer exists"
    return [] if is_known else [SkippedCheckpoint(path=str(folder), reason=reason)]


def _streaks_until(step: int, history: Sequence[Record]) -> list[Streak]:
    return streaks_of(record for record in history if record["step"] <= step)


def state_key(config: TrainerConfig, info: RankInfo, identity: Mapping[str, object]) -> str:
    """Return a digest of all inputs, except the step, that determine the ranks' state.

    The inputs include the rejected checkpoints, because the state may result from one of them.
    """
    policy = policy_config(config, Precision(info.precision))
    model = policy.model.model_copy(update={"attention": Attention(info.attention)})
    return content_hash(
        {
            "model": model.model_dump(mode="json"),
            "training": policy.training.model_dump(mode="json"),
            "resume": config.attempt.resume_hash,
            "identity": dict(identity),
            "rejected": config.rejected_checkpoints,
            "world": config.world.model_dump(mode="json"),
            "resources": config.resources.model_dump(mode="json"),
        }
    )
