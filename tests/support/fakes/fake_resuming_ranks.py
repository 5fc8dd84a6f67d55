"""Ranks without a model, which an attempt resumes."""

from pathlib import Path

from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.ranks.rank_actor import RankInfo
from raggrpo_trainer.ranks.retained_state import TrainingPosition
from support.builders.trainer.checkpoints import shards

INFO = RankInfo(
    process=PodProcess("node-1", 42),
    precision="BF16",
    attention="Sdpa",
    parameters=560_000,
    trained_parameters=560_000,
    peak_tflops=0.0,
    oom_kills=0,
)


class FakeResumingRanks:
    """Ranks that load every checkpoint, and record what they load and retain."""

    infos = (INFO,)

    def __init__(self) -> None:
        self.loaded: list[tuple[Path, bool]] = []
        """Folders, and whether the optimizer was loaded, too."""
        self.retained: list[TrainingPosition] = []

    async def load(self, folder: Path, *, with_optimizer: bool = True) -> None:
        self.loaded.append((folder, with_optimizer))

    async def retain(self, position: TrainingPosition) -> None:
        self.retained.append(position)

    def save(self, folder: Path) -> dict[str, str]:
        return shards(0)(folder)
