"""What a `RagGrpoJob` asks for: its spec, all sections together."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.kubernetes_names import Image, ObjectName
from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.model import ModelSpec
from raggrpo_api.spec.monitoring import MonitoringSpec
from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.spec.resources import EnvVar, ResourcesSpec, SchedulingSpec, Volume
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.spec.validation import ValidationSpec


class Preset(StrEnum):
    """Named sets of values; any of them can be overridden."""

    FAST = "Fast"
    MAX_PERFORMANCE = "MaxPerformance"
    MEMORY_LIMITED = "MemoryLimited"
    DEBUG = "Debug"


class JobSpec(ApiModel):
    """What the user wants."""

    preset: Preset = Preset.FAST
    """Speed preset that fills in what is not given."""
    image: Image = ""
    """Trainer image; empty: the operator's default."""
    image_pull_secrets: Annotated[list[ObjectName], Field(max_length=8)] = []
    """Secrets for pulling the image."""
    model: ModelSpec
    """The model to train."""
    data: DataSpec
    """The prompts."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """The objective."""
    rollout: RolloutSpec = RolloutSpec()
    """Sampling."""
    training: TrainingSpec = TrainingSpec()
    """The optimisation."""
    retrieval: RetrievalSpec = RetrievalSpec()
    """Retrieval."""
    reward: RewardSpec = RewardSpec()
    """Rewards."""
    validation: ValidationSpec = ValidationSpec()
    """Held-out measurements."""
    checkpoint: CheckpointSpec
    """Checkpoints."""
    monitoring: MonitoringSpec = MonitoringSpec()
    """Metrics and logs."""
    resources: ResourcesSpec = ResourcesSpec()
    """Processors and memory."""
    recovery: RecoverySpec = RecoverySpec()
    """Restarts and deadlines."""
    volumes: Annotated[list[Volume], Field(max_length=16)] = []
    """Claims mounted into the pods."""
    env: Annotated[list[EnvVar], Field(max_length=64)] = []
    """Environment of the trainer."""
    scheduling: SchedulingSpec = SchedulingSpec()
    """Queue, priority and nodes."""
    suspend: bool = False
    """true: save, free the processors and wait; false: resume."""
    active_deadline_seconds: Annotated[int, Field(ge=0, le=10 * 365 * 86_400)] = 0
    """Limit of the job's time, waiting for nodes included, suspension and queue not; 0: none."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=-1, le=10 * 365 * 86_400)] = -1
    """Delete the job so long after its end; -1: never."""
