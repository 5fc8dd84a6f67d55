"""Configuration from which every rank builds its policy."""

from dataclasses import dataclass

from raggrpo_api.memory.arithmetic import ranks_per_pod
from raggrpo_api.spec.model import ModelSpec
from raggrpo_api.spec.monitoring import MonitoringMode, MonitoringSpec
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import Precision, TrainingSpec
from raggrpo_api.trainer.config import TrainerConfig

from .objective import Objective


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyConfig:
    """Configuration of the policy, equal on all ranks."""

    model: ModelSpec
    training: TrainingSpec
    """Training settings with a resolved precision: FP32, BF16 or FP16."""
    objective: Objective
    temperature: float
    """Sampling temperature, at which logprobs are computed."""
    device: str
    """Torch's device type: cpu or cuda."""
    ranks_per_pod: int
    weight_update_every_steps: int
    """Interval of `weight_update_ratio` in steps; 0 to never compute it."""


def policy_config(config: TrainerConfig, precision: Precision) -> PolicyConfig:
    """Return the job's policy configuration; `precision` must be resolved (not Auto)."""
    algorithm = config.algorithm
    return PolicyConfig(
        model=config.model,
        training=config.training.model_copy(update={"precision": precision}),
        objective=Objective(
            clip_ratio_low=algorithm.clip_ratio_low,
            clip_ratio_high=algorithm.clip_ratio_high,
            importance_cap=algorithm.importance_cap,
            kl_coefficient=algorithm.kl_coefficient,
            loss_aggregation=algorithm.loss_aggregation,
            dual_clip=algorithm.dual_clip,
            max_response_length=config.data.max_response_length,
        ),
        temperature=config.rollout.temperature,
        device="cpu" if config.resources.device is Device.CPU else "cuda",
        ranks_per_pod=ranks_per_pod(config.resources),
        weight_update_every_steps=_weight_update_every(config.monitoring),
    )


def _weight_update_every(monitoring: MonitoringSpec) -> int:
    match monitoring.mode:
        case MonitoringMode.OFF:
            return 0
        case MonitoringMode.FULL:
            return 1
        case MonitoringMode.LIGHT:
            return monitoring.log_every_steps
