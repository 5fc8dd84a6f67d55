"""`Shortage`: the memory that ran out, which determines the mitigation of the next attempt."""

from enum import StrEnum


class Shortage(StrEnum):
    """Memory that ran out."""

    ENGINE = "Engine"
    """GPU memory, while an engine was starting or running."""
    KV_CACHE = "KvCache"
    """The engine's share of a GPU: too small for weights and KV cache."""
    TRAINING_STATE = "TrainingState"
    """GPU memory, while a rank was building its model."""
    STEP = "Step"
    """GPU memory, while a rank was training or computing logprobs."""
    HEAD_HOST = "HeadHost"
    """Host memory of the head pod, which runs the driver."""
    TRAINER_HOST = "TrainerHost"
    """Host memory of a pod with ranks."""
    ROLLOUT_HOST = "RolloutHost"
    """Host memory of a pod with a disaggregated engine."""
