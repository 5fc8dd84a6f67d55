"""Compatibility of a checkpoint with the job's configuration. Must not load tensors.

`identity` contains the inputs other than settings on which a checkpoint depends, by the names that
messages use: digests of files (`identity`) and the number of prompts.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from raggrpo_api.fields.change_class import OPERATIONAL, change_class
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.start_from import DataStart, StartFrom
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import MAX_CHANGES, Segment
from raggrpo_api.trainer.resume import (
    Change,
    changes,
    incompatible,
    resume_values,
    without_derived,
)
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError

from .folder import Meta
from .identity import WEIGHTS

NOTHING: Mapping[str, object] = MappingProxyType({})


def meta_of(
    config: TrainerConfig,
    step: int,
    cursor: Cursor,
    metrics: Mapping[str, float],
    *,
    identity: Mapping[str, object] = NOTHING,
    segments: Sequence[Segment] = (),
) -> Meta:
    """Return the metadata of a checkpoint with this configuration after `step` steps."""
    return Meta(
        step=step,
        cursor=cursor,
        world_size=config.world.num_ranks,
        resume_hash=config.attempt.resume_hash,
        resume_values=resume_values(config) | dict(identity),
        metrics=metrics,
        segments=tuple(segments),
        model_path=config.model.path,
    )


def changed_values(
    meta: Meta, config: TrainerConfig, *, identity: Mapping[str, object] = NOTHING
) -> list[Change]:
    """Return the values that differ from those of the checkpoint.

    Inputs that either side lacks are not compared: an older release or an unreadable file. Only the
    initial weights of adapters, which are not in the checkpoint, are always compared.
    """
    old, new = meta.resume_values, resume_values(config) | dict(identity)
    one_sided = {name for name in old.keys() ^ new.keys() if change_class(JobSpec, name) is None}
    if config.training.lora is not None:
        one_sided.discard(WEIGHTS)
    return [
        change
        for change in changes(old, new)
        if change.path not in one_sided and change.change_class is not OPERATIONAL
    ]


def check_compatible(
    meta: Meta,
    config: TrainerConfig,
    *,
    identity: Mapping[str, object] = NOTHING,
    start: StartFrom | None = None,
) -> list[str]:
    """Return notes on acceptable differences, such as another number of ranks (resharded).

    `start` is specified if the checkpoint is that of another job. Raises TrainerError
    CHECKPOINT_INCOMPATIBLE with all values that differ but must not.
    """
    differences = changed_values(meta, config, identity=identity)
    rejected = incompatible(differences, start)
    has_equal_values = meta.resume_values == resume_values(config) | dict(identity)
    is_unexplained = has_equal_values and meta.resume_hash != config.attempt.resume_hash
    if rejected or is_unexplained:
        hashes = f"resumeHash: {meta.resume_hash} → {config.attempt.resume_hash}"
        raise TrainerError(
            ExitCode.CHECKPOINT_INCOMPATIBLE,
            f"the checkpoint of step {meta.step} was saved with other settings or files (old → "
            f"new): {'; '.join(map(str, rejected)) or hashes}; {_remedy(start)}",
        )
    ranks = config.world.num_ranks
    if meta.world_size != ranks:
        return [f"saved by {meta.world_size} ranks, resharded to {ranks}"]
    return []


def _remedy(start: StartFrom | None) -> str:
    if start is None:
        return "restore them, or set checkpoint.path to an empty folder"
    if start.data is DataStart.CONTINUE:
        return "use the settings of that job, or set training.startFrom.data: Restart for new data"
    return "use the settings of that job"


def change_lines(
    meta: Meta, config: TrainerConfig, *, identity: Mapping[str, object] = NOTHING
) -> list[str]:
    """Return the values that differ from those of the checkpoint, in the format of a segment."""
    differences = changed_values(meta, config, identity=identity)
    return [str(change) for change in without_derived(differences)]


def segments_after(
    meta: Meta, config: TrainerConfig, *, identity: Mapping[str, object] = NOTHING
) -> tuple[Segment, ...]:
    """Return the segments of a run that resumes from a compatible checkpoint.

    Changed values start a new segment after the checkpoint's step.
    """
    changes = change_lines(meta, config, identity=identity)
    if not changes:
        return meta.segments
    return (*meta.segments, Segment(first_step=meta.step + 1, changes=changes[:MAX_CHANGES]))
