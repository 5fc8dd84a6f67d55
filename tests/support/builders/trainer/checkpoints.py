"""Builders for checkpoint tests: claims, stores and small shards."""

from collections.abc import Callable
from pathlib import Path

from raggrpo_api.spec.checkpoint import BestBy, CheckpointSpec
from raggrpo_trainer.checkpoint.fence import Fence
from raggrpo_trainer.checkpoint.folder import Checkpoint, Meta
from raggrpo_trainer.checkpoint.store import CheckpointStore, SavePhase
from raggrpo_trainer.data.sampler import Cursor

SaveShards = Callable[[Path], dict[str, str]]

NO_BEAT = 3600.0
"""Heartbeat interval that never elapses, so that claims need no CPU time."""


def make_claim(
    path: Path,
    *,
    uid: str = "uid-1",
    job: str = "demo",
    attempt: int = 1,
    beat_seconds: float = NO_BEAT,
) -> Fence:
    return Fence.claim(path, uid, job, attempt, beat_seconds=beat_seconds)


def make_store(
    fence: Fence,
    *,
    keep_last: int = 3,
    keep_best: bool = True,
    best_by: BestBy = BestBy.REWARD,
    backup: Path | None = None,
    key: str = "",
    reached: Callable[[SavePhase, int], None] = lambda _phase, _step: None,
) -> CheckpointStore:
    spec = CheckpointSpec.model_validate(
        {
            "path": str(fence.path),
            "keepLast": keep_last,
            "keepBest": keep_best,
            "bestBy": best_by,
            "backup": {"url": f"file://{backup}" if backup else ""},
        }
    )
    return CheckpointStore(spec, fence, "config-hash", key=key, reached=reached)


def make_meta(step: int) -> Meta:
    return Meta(
        step=step,
        cursor=Cursor(epoch=1, position=step),
        world_size=2,
        resume_hash="resume-hash",
        resume_values={"rollout.temperature": 0.6},
        metrics={"reward_mean": 0.5},
    )


def shards(step: int, size: int = 3000) -> SaveShards:
    """Return a function that writes two shards filled with the step number, in small pieces."""

    def write(folder: Path) -> dict[str, str]:
        for rank in range(2):
            with (folder / f"__{rank}_0.distcp").open("wb", buffering=0) as file:
                for _ in range(3):
                    file.write(step.to_bytes(4) * (size // 12))
        return {}

    return write


def is_whole(checkpoint: Checkpoint) -> bool:
    step = checkpoint.marker.step
    contents = [(checkpoint.folder / f"__{rank}_0.distcp").read_bytes() for rank in range(2)]
    return contents == [step.to_bytes(4) * 750] * 2 and checkpoint.meta == make_meta(step)
