"""Compatibility of a checkpoint with the job's configuration. Must not load tensors.

`identity` contains the inputs other than settings on which a checkpoint depends, by the names that
messages use: digests of the model's configuration and tokenizer, and the number of prompts.
"""

from collections.abc import Mapping
from types import MappingProxyType

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.resume import changes, resume_values
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError

from .folder import Meta

NOTHING: Mapping[str, object] = MappingProxyType({})


def meta_of(
    config: TrainerConfig,
    step: int,
    cursor: Cursor,
    metrics: Mapping[str, float],
    *,
    identity: Mapping[str, object] = NOTHING,
) -> Meta:
    """Return the metadata of a checkpoint with this configuration after `step` steps."""
    return Meta(
        step=step,
        cursor=cursor,
        world_size=config.world.num_ranks,
        resume_hash=config.attempt.resume_hash,
        resume_values=resume_values(config) | dict(identity),
        metrics=metrics,
    )


def changed_values(
    meta: Meta, config: TrainerConfig, *, identity: Mapping[str, object] = NOTHING
) -> list[str]:
    """Return the values that differ from the checkpoint's values, as "path: old → new"."""
    return changes(meta.resume_values, resume_values(config) | dict(identity))


def check_compatible(
    meta: Meta, config: TrainerConfig, *, identity: Mapping[str, object] = NOTHING
) -> list[str]:
    """Return notes on acceptable differences, such as another number of ranks (resharded).

    Raises TrainerError CHECKPOINT_INCOMPATIBLE with all values that differ.
    """
    differences = changed_values(meta, config, identity=identity)
    if differences or meta.resume_hash != config.attempt.resume_hash:
        hashes = f"resumeHash: {meta.resume_hash} → {config.attempt.resume_hash}"
        raise TrainerError(
            ExitCode.CHECKPOINT_INCOMPATIBLE,
            f"the checkpoint of step {meta.step} was saved with other settings (old → new): "
            f"{'; '.join(differences) or hashes}; restore the settings, or set checkpoint.path to "
            "an empty folder",
        )
    ranks = config.world.num_ranks
    if meta.world_size != ranks:
        return [f"saved by {meta.world_size} ranks, resharded to {ranks}"]
    return []
