"""Conditions, the phase derived from them, and warnings."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import Time, api_dataclass
from raggrpo_api.fields.text import Message, Words


class Phase(StrEnum):
    """One word for people; decisions read conditions instead."""

    PENDING = "Pending"
    PREFLIGHT = "Preflight"
    QUEUED = "Queued"
    PROVISIONING = "Provisioning"
    STARTING = "Starting"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"


class ConditionType(StrEnum):
    """Conditions, kstatus' three among them."""

    ACCEPTED = "Accepted"
    PREFLIGHT_PASSED = "PreflightPassed"
    RETRIEVER_READY = "RetrieverReady"
    CLUSTER_READY = "ClusterReady"
    PROGRESSING = "Progressing"
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    RESUME_VERIFIED = "ResumeVerified"
    SLOWING_DOWN = "SlowingDown"
    HOST_MEMORY_GROWING = "HostMemoryGrowing"
    POLICY_MISMATCH = "PolicyMismatch"
    STALLED = "Stalled"
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"
    READY = "Ready"
    RECONCILING = "Reconciling"


@api_dataclass
class Condition:
    """A Kubernetes condition."""

    type: ConditionType
    status: str
    """True, False or Unknown."""
    reason: str
    """CamelCase, from a closed set."""
    message: Annotated[str, Field(max_length=1024)] = ""
    last_transition_time: Time = None
    observed_generation: int = 0


@api_dataclass
class JobWarning:
    """Something that does not stop the job but is probably not what its author wants."""

    path: Annotated[Words, Field(max_length=128)]
    """Field of the specification."""
    reason: Annotated[Words, Field(max_length=64)]
    """CamelCase, from a closed set."""
    message: Annotated[Message, Field(max_length=512)] = ""
    """What is unusual → what to write instead."""
