"""`spec.recovery`: restarts, delays and deadlines."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel, Seconds


class OnOutOfMemory(StrEnum):
    """Reaction to a device or pod that runs out of memory."""

    MITIGATE = "Mitigate"
    RESTART = "Restart"
    FAIL = "Fail"


class OnNotLearning(StrEnum):
    """Reaction to a run that learns nothing."""

    WARN = "Warn"
    FAIL = "Fail"


class Deadlines(ApiModel):
    """Maximum duration of each stage."""

    preflight_seconds: Seconds = 900
    """Seconds for preflight, which runs before the job takes a GPU."""
    provisioning_seconds: Seconds = 1800
    """Seconds from creating the Ray cluster until its pods are ready, not counting queues."""
    queue_seconds: Annotated[int, Field(ge=0, le=365 * 86_400)] = 0
    """Seconds of each wait in a queue (scheduling.queueName); 0: no limit."""
    loading_model_seconds: Seconds = 1800
    """Seconds to load the model into the trainer ranks, and to read the data."""
    starting_rollout_seconds: Seconds = 1800
    """Seconds to start the vLLM engines."""
    warming_retrieval_seconds: Seconds = 1800
    """Seconds to warm up the retrieval endpoints."""
    first_step_seconds: Seconds = 1200
    """Seconds from the end of startup to the first completed step."""
    checkpoint_seconds: Seconds = 1800
    """Seconds to write one checkpoint."""
    validation_seconds: Seconds = 3600
    """Seconds for one validation."""
    step_timeout_factor: Annotated[float, Field(ge=2.0, le=1000.0)] = 10.0
    """Multiple of the usual step time, at least 60 s, after which a step is stalled."""
    outage_seconds: Seconds = 3600
    """Seconds to wait for an unavailable retrieval or reward service without completing a step."""
    progress_unreachable_seconds: Seconds = 1800
    """Seconds that an attempt may run without a readable /progress."""


class RecoverySpec(ApiModel):
    """Restarts, mitigations and deadlines."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Maximum number of restarts since the last new checkpoint."""
    backoff_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """Seconds before the second consecutive restart without progress; doubled for each further
    one."""
    max_backoff_seconds: Annotated[int, Field(ge=0, le=86_400)] = 360
    """Maximum delay before a restart in seconds."""
    on_out_of_memory: OnOutOfMemory = OnOutOfMemory.MITIGATE
    """Mitigate: apply a memory mitigation, listed in status, then restart. Restart: restart
    unchanged. Fail: fail the job."""
    restart_when_degraded: bool = False
    """Save a checkpoint and restart if the condition SlowingDown or HostMemoryGrowing is True; not
    counted toward maxRestarts."""
    on_not_learning: OnNotLearning = OnNotLearning.WARN
    """Reaction to the condition NotLearning. Warn: show it and continue. Fail: save a checkpoint
    and fail the job."""
    # Implemented by core/lifecycle/after_attempt/node_exclusion.py.
    exclude_node_after_failures: Annotated[int, Field(ge=0, le=100)] = 2
    """Failures on a node after which the job's Ray pods avoid it, unless no other node fits; 0:
    off."""
    deadlines: Deadlines = Deadlines()
    """Maximum duration of each stage."""
