"""`JobSpec`: the spec of a `RagGrpoJob`, one field per section."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.addresses import HttpUrl
from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL
from raggrpo_api.fields.kubernetes_names import Image, ObjectName
from raggrpo_api.fields.reach import SecretName
from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.model import ModelSpec
from raggrpo_api.spec.monitoring import MonitoringSpec
from raggrpo_api.spec.output import OutputSpec
from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.spec.resources import CaBundle, EnvVar, ResourcesSpec, SchedulingSpec, Volume
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.staging import StagingSpec
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.spec.validation import ValidationSpec


class Preset(StrEnum):
    """Named sets of defaults; specified fields override them."""

    FAST = "Fast"
    MAX_PERFORMANCE = "MaxPerformance"
    MEMORY_LIMITED = "MemoryLimited"
    DEBUG = "Debug"


class JobSpec(ApiModel):
    """Specification of a job."""

    preset: Annotated[Preset, MODEL] = Preset.FAST
    """Preset that provides defaults for unspecified fields."""
    image: Annotated[Image, OPERATIONAL] = ""
    """Trainer image; empty: the operator's default."""
    image_pull_secrets: Annotated[
        list[Annotated[ObjectName, SecretName()]], Field(max_length=8), OPERATIONAL
    ] = []
    """Secrets for pulling the image."""
    model: ModelSpec
    """Model to train."""
    data: DataSpec
    """Training data and sequence lengths."""
    algorithm: AlgorithmSpec = AlgorithmSpec()
    """GRPO loss: group size, clipping, KL penalty, importance weights."""
    rollout: RolloutSpec = RolloutSpec()
    """Sampling of completions by the vLLM engines."""
    training: TrainingSpec = TrainingSpec()
    """Length of the training, optimizer, precision and batching."""
    retrieval: RetrievalSpec = RetrievalSpec()
    """Retrieval before or during generation, or in the reward."""
    reward: RewardSpec = RewardSpec()
    """Reward functions and their weights."""
    validation: Annotated[ValidationSpec, OPERATIONAL] = ValidationSpec()
    """Evaluation on held-out prompts."""
    checkpoint: CheckpointSpec = CheckpointSpec()
    """Checkpoints and backups."""
    monitoring: Annotated[MonitoringSpec, OPERATIONAL] = MonitoringSpec()
    """Metrics and logs."""
    resources: Annotated[ResourcesSpec, OPERATIONAL] = ResourcesSpec()
    """GPUs, CPUs and memory."""
    recovery: Annotated[RecoverySpec, OPERATIONAL] = RecoverySpec()
    """Restarts and deadlines."""
    volumes: Annotated[list[Volume], Field(max_length=16), OPERATIONAL] = []
    """PersistentVolumeClaims mounted into the pods. Without volumes and checkpoint.path, a job gets
    a claim for checkpoints, which is kept, and one for downloads, which is deleted with the job."""
    env: Annotated[list[EnvVar], Field(max_length=64), OPERATIONAL] = []
    """Environment variables of the trainer; a server in a variable must also be in egress."""
    egress: Annotated[list[HttpUrl], Field(max_length=16), OPERATIONAL] = []
    """URLs of other servers that the pods may call, such as a proxy or the server in a variable."""
    ca_bundle: Annotated[CaBundle | None, OPERATIONAL] = None
    """Authorities that signed the certificates of endpoints, judges and reward services."""
    scheduling: Annotated[SchedulingSpec, OPERATIONAL] = SchedulingSpec()
    """Queue, priority, node selector and tolerations."""
    staging: Annotated[StagingSpec, OPERATIONAL] = StagingSpec()
    """Storage of model.source and data.sources."""
    output: Annotated[OutputSpec, OPERATIONAL] = OutputSpec()
    """Upload of the results."""
    suspend: Annotated[bool, OPERATIONAL] = False
    """true: save a checkpoint, delete the pods and wait; false: resume."""
    active_deadline_seconds: Annotated[int, Field(ge=0, le=10 * 365 * 86_400), OPERATIONAL] = 0
    """Maximum run time in seconds, including waits for nodes but not suspension or queues; 0: no
    limit."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=-1, le=10 * 365 * 86_400), OPERATIONAL] = -1
    """Seconds after which a finished job is deleted; -1: never."""
