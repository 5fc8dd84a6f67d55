"""Start of a new job from a checkpoint of another job (`training.startFrom`).

The first checkpoint of the new job is a copy of that checkpoint, so that later attempts do not
depend on the other job, which may continue and remove it.
"""

import asyncio
import logging
from collections.abc import Mapping

from raggrpo_api.spec.start_from import DataStart, OptimizerStart, StartFrom
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.checkpoint.compatibility import check_compatible, meta_of
from raggrpo_trainer.checkpoint.start import start_checkpoint, start_segments, verify
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.ranks import Ranks

from .saving import TrainState

log = logging.getLogger(__name__)


async def start_from_checkpoint(
    config: TrainerConfig,
    start: StartFrom,
    store: CheckpointStore,
    ranks: Ranks,
    reporter: Reporter,
    identity: Mapping[str, object],
) -> TrainState:
    """Load the checkpoint of another job and save it as the first checkpoint of this job.

    Raises TrainerError CONFIG_ERROR or CHECKPOINT_INCOMPATIBLE if the job cannot start from it.
    """
    source = await asyncio.to_thread(start_checkpoint, config, start)
    for note in check_compatible(source.meta, config, identity=identity, start=start):
        log.info("%s: %s", source.folder, note)
    await asyncio.to_thread(verify, source)
    await ranks.load(source.folder, with_optimizer=start.optimizer is OptimizerStart.KEEP)
    step = source.meta.step
    log.info("starting from %s after step %d", source.folder, step)
    cursor = source.meta.cursor if start.data is DataStart.CONTINUE else Cursor()
    segments = start_segments(source, config, start, identity=identity)
    meta = meta_of(config, step, cursor, {}, identity=identity, segments=segments)
    saved = await asyncio.to_thread(store.save, meta, ranks.save)
    reporter.report_resume(step, saved.ref(), store.best, store.skipped, segments)
    return TrainState(step, cursor, step, segments=segments, is_start=True)
