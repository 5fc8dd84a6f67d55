"""`Shortage`: which memory ran out. Decides what is changed for the next attempt."""

from enum import StrEnum


class Shortage(StrEnum):
    """The term of the memory table that was short."""

    ENGINE = "Engine"
    """A device's memory, while an engine started or ran on it."""
    KV_CACHE = "KvCache"
    """The engine's share of a device: no room for the KV cache beside its weights."""
    TRAINING_STATE = "TrainingState"
    """A device's memory, while a rank built its model."""
    STEP = "Step"
    """A device's memory, while a rank trained or computed log-probabilities."""
    HEAD_HOST = "HeadHost"
    """Host memory of the pod with the driver."""
    TRAINER_HOST = "TrainerHost"
    """Host memory of a pod with ranks."""
    ROLLOUT_HOST = "RolloutHost"
    """Host memory of a pod with a disaggregated engine."""
