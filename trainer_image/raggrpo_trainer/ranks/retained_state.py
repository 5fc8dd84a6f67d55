"""The training state that ranks retain between two steps, for the next driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.exchange.sample_metrics import SampleMetrics
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.progress.step_record import StepRecord


@dataclass(frozen=True, slots=True)
class TrainingPosition:
    """Position of a run after a step: the run's state besides model and optimizer."""

    step: int
    cursor: Cursor
    """Position in the training data."""
    key: str
    """Digest of the inputs, except the step, that determine the state (`resume.state_key`)."""
    samples: SampleMetrics | None = None
    """Sample metrics of the step; None if the state was loaded instead of trained."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Durations in seconds of the step's stages before training, by stage."""

    @property
    def reward(self) -> float | None:
        """Mean reward of the step, which may be the score of its checkpoint."""
        return self.samples.reward_mean if self.samples is not None else None


@dataclass(frozen=True, slots=True)
class RetainedState:
    """A rank's state after a completed step. During a step a rank retains nothing."""

    position: TrainingPosition
    checksum: int
    """Checksum of the state of all ranks; equal on every rank."""
    trained: StepMetrics | None = field(default=None, compare=False)
    """This rank's metrics of the step; None if the state was loaded instead of trained."""
    train_seconds: float = field(default=0.0, compare=False)

    def record(self) -> StepRecord | None:
        """Return the step's record for the next driver; None if no step was trained."""
        samples = self.position.samples
        trained = self.trained
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
