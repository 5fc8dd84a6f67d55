"""`spec.recovery`: restarts, delays and deadlines."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel, Seconds


class OnOutOfMemory(StrEnum):
    """What follows when a device or a pod runs out of memory."""

    MITIGATE = "Mitigate"
    RESTART = "Restart"
    FAIL = "Fail"


class Deadlines(ApiModel):
    """How long each stage may last before it counts as stalled."""

    preflight_seconds: Seconds = 900
    """Checks before any GPU is taken."""
    provisioning_seconds: Seconds = 1800
    """Waiting for capacity: from creating the cluster until its pods are ready, queue left out."""
    queue_seconds: Annotated[int, Field(ge=0, le=365 * 86_400)] = 0
    """Waiting for capacity in a queue (scheduling.queueName), each time anew; 0: no limit."""
    loading_model_seconds: Seconds = 1800
    """Building the trainer ranks."""
    starting_rollout_seconds: Seconds = 1800
    """Starting the vLLM engines."""
    warming_retrieval_seconds: Seconds = 1800
    """Warming the RAG endpoints."""
    first_step_seconds: Seconds = 1200
    """From the end of start-up to the first finished step."""
    checkpoint_seconds: Seconds = 1800
    """Writing one checkpoint."""
    validation_seconds: Seconds = 3600
    """One validation."""
    step_timeout_factor: Annotated[float, Field(ge=2.0, le=1000.0)] = 10.0
    """A step is stalled after max(60 s, factor × usual step)."""
    outage_seconds: Seconds = 3600
    """Waiting, without finishing a step, for a retrieval or reward service that is down."""
    progress_unreachable_seconds: Seconds = 1800
    """Running without a readable /progress."""


class RecoverySpec(ApiModel):
    """Restarts from the latest verified checkpoint."""

    max_restarts: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Failures since the last new checkpoint; progress resets the count."""
    backoff_seconds: Annotated[int, Field(ge=0, le=3600)] = 10
    """Delay before the second restart in a row without progress; doubles from there."""
    max_backoff_seconds: Annotated[int, Field(ge=0, le=86_400)] = 360
    """Largest delay."""
    on_out_of_memory: OnOutOfMemory = OnOutOfMemory.MITIGATE
    """Mitigate changes what was short of memory, in recorded steps, before restarting."""
    restart_when_degraded: bool = False
    """Save and restart once steps slow down or memory will not last; costs no budget."""
    exclude_node_after_failures: Annotated[int, Field(ge=0, le=100)] = 2
    """A node that failed so often under the job gets its Ray pods only if no other fits; 0: off."""
    deadlines: Deadlines = Deadlines()
    """Limits of the stages."""
