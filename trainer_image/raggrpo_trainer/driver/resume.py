"""Where an attempt begins: after the step that the ranks hold, else at the newest checkpoint."""

import asyncio
import hashlib
import logging
from collections.abc import Mapping
from pathlib import Path

from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig, content_hash
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.compatibility import check_compatible
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.policy_config import policy_config
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.held import Held, Position
from raggrpo_trainer.ranks.rank_actor import RankInfo
from raggrpo_trainer.ranks.ranks import Ranks

from .loop import TrainState

log = logging.getLogger(__name__)


async def resume(
    config: TrainerConfig,
    store: CheckpointStore,
    ranks: Ranks,
    held: Held | None,
    reporter: Reporter,
    reported: int,
    identity: Mapping[str, object],
) -> TrainState:
    """Return where the ranks stand as `held` tells, or load the newest readable checkpoint.

    Unreadable checkpoints are marked rejected and reported. `reported` is the last step that the
    driver before this one is known to have told of, as it did of every step that is saved; the
    record of the one after it is made up for.
    """
    newest = store.newest
    saved = newest.meta.step if newest is not None else 0
    if held is not None and (at := held.position).step >= saved:
        ref = newest.ref() if newest is not None else None
        log.info("the ranks hold step %d; nothing is loaded", at.step)
        reporter.report_resume(at.step, ref, store.best, store.skipped)
        if (record := held.record()) is not None and at.step > max(reported, saved):
            reporter.report_step(record)
        return TrainState(at.step, at.cursor, saved, reward=at.reward)
    state = await _loaded(config, store, ranks, reporter, identity)
    key = key_of(config, ranks.infos[0], identity)
    await ranks.hold(Position(state.step, state.cursor, key))
    return state


async def _loaded(
    config: TrainerConfig,
    store: CheckpointStore,
    ranks: Ranks,
    reporter: Reporter,
    identity: Mapping[str, object],
) -> TrainState:
    while (checkpoint := store.newest) is not None:
        for note in check_compatible(checkpoint.meta, config, identity=identity):
            log.info("%s: %s", checkpoint.folder, note)
        try:
            await ranks.load(checkpoint.folder)
        except TrainerError as error:
            if error.exit_code is ExitCode.TRAINER_RANK_LOST:
                raise
            await asyncio.to_thread(store.reject, checkpoint, f"cannot be loaded: {error}")
            if store.newest is None:
                # The ranks may have loaded half of it; only a new attempt has a clean model.
                raise
            continue
        step = checkpoint.meta.step
        reporter.report_resume(step, checkpoint.ref(), store.best, store.skipped)
        return TrainState(step, checkpoint.meta.cursor, step)
    reporter.report_resume(0, skipped=store.skipped)
    return TrainState()


def key_of(config: TrainerConfig, info: RankInfo, identity: Mapping[str, object]) -> str:
    """Return the digest of what the ranks' state depends on, besides the step.

    A checkpoint that is rejected may have led to this state, so the rejected ones are part of it.
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


def identity_of(config: TrainerConfig, rows: int) -> dict[str, object]:
    """Return what a checkpoint depends on beyond its settings: model, tokenizer, data rows."""
    found: dict[str, object] = {"data rows": rows}
    for name in ("config.json", "tokenizer.json"):
        path = Path(config.model.path) / name
        if path.is_file():
            found[f"model {name}"] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found
