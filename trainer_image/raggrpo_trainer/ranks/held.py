"""What ranks hold between two steps, as they prove it to the next driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.progress.step_record import StepRecord


@dataclass(frozen=True, slots=True)
class Position:
    """Where the run stands after a step: what the next driver cannot ask the weights."""

    step: int
    cursor: Cursor
    key: str
    """Digest of what the state depends on besides the step."""
    samples: SampleMetrics | None = None
    """Of the step, if it was trained since the ranks were built or loaded."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What the step took by stage until its training began."""

    @property
    def reward(self) -> float | None:
        """The step's mean reward, which may judge its checkpoint."""
        return self.samples.reward_mean if self.samples is not None else None


@dataclass(frozen=True, slots=True)
class Held:
    """The state after a finished step; a rank in the middle of one holds nothing."""

    position: Position
    checksum: int
    """Over all ranks; equal on each of them."""
    trained: StepMetrics | None = field(default=None, compare=False)
    """Of the step as this rank tells them, if it was trained since."""
    train_seconds: float = field(default=0.0, compare=False)

    def record(self) -> StepRecord | None:
        """Return the step's record, for a driver that died before it wrote it."""
        samples, trained = self.position.samples, self.trained
        if samples is None or trained is None:
            return None
        seconds = {**self.position.seconds, "train": self.train_seconds}
        return StepRecord(
            step=self.position.step,
            samples=samples,
            trained=trained,
            seconds=seconds,
            step_seconds=sum(seconds.values()),
            retrieval={},
        )
