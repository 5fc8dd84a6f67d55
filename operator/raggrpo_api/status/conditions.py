"""Conditions, phase and warnings."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import Time, api_dataclass
from raggrpo_api.fields.text import Message, ShortText


class Phase(StrEnum):
    """Summary of the conditions for display; logic must read conditions."""

    PENDING = "Pending"
    """The operator has not evaluated the job yet."""
    STAGING = "Staging"
    """Models or data are being downloaded."""
    PREFLIGHT = "Preflight"
    """Preflight checks are running."""
    QUEUED = "Queued"
    """A queueing system has not admitted the job yet."""
    PROVISIONING = "Provisioning"
    """Managed retrievers or the pods of the Ray cluster are starting."""
    STARTING = "Starting"
    """An attempt is starting."""
    RUNNING = "Running"
    """An attempt is training, validating or saving."""
    RESTARTING = "Restarting"
    """An attempt ended; the next one follows."""
    SUSPENDED = "Suspended"
    """The job is suspended; it has no pods."""
    SUCCEEDED = "Succeeded"
    """The job reached its target step."""
    FAILED = "Failed"
    """The job failed, and no restart can help."""
    INVALID = "Invalid"
    """The spec violates a rule."""


class ConditionType(StrEnum):
    """Condition types, including those of kstatus."""

    ACCEPTED = "Accepted"
    """The spec is valid."""
    SOURCES_STAGED = "SourcesStaged"
    """Models and data are downloaded."""
    PREFLIGHT_PASSED = "PreflightPassed"
    """All checks passed."""
    RETRIEVER_READY = "RetrieverReady"
    """The managed retrievers are ready."""
    AGENT_SERVICE_READY = "AgentServiceReady"
    """The container of the agent is ready."""
    CLUSTER_READY = "ClusterReady"
    """All pods of the Ray cluster are ready."""
    PROGRESSING = "Progressing"
    """An attempt is running or about to start."""
    CHECKPOINT_HEALTHY = "CheckpointHealthy"
    """Checkpoints are complete and, if configured, backed up."""
    RESUME_VERIFIED = "ResumeVerified"
    """The attempt started from the newest checkpoint."""
    SLOWING_DOWN = "SlowingDown"
    """Steps take longer than the attempt's baseline."""
    HOST_MEMORY_GROWING = "HostMemoryGrowing"
    """Host memory will exceed its limit before the job is done."""
    POLICY_MISMATCH = "PolicyMismatch"
    """Logprobs of trainer and engine differ by more than the limit."""
    NOT_LEARNING = "NotLearning"
    """Recent steps show that the run learns nothing."""
    STALLED = "Stalled"
    """The attempt makes no progress within its deadline."""
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    """The attempt waits for a service that is down."""
    SUSPENDED = "Suspended"
    """The job is suspended."""
    COMPLETE = "Complete"
    """The job reached its target step."""
    FAILED = "Failed"
    """The job failed, and no restart can help."""
    RESULT_PUSHED = "ResultPushed"
    """The results of the complete job are uploaded to output.push."""
    READY = "Ready"
    """kstatus: the job is complete."""
    RECONCILING = "Reconciling"
    """kstatus: the operator is working on the job."""


@api_dataclass
class Condition:
    """A Kubernetes condition."""

    type: ConditionType
    status: ShortText
    """True, False or Unknown."""
    reason: ShortText
    """CamelCase, from a closed set."""
    message: Annotated[str, Field(max_length=1024)] = ""
    last_transition_time: Time = None
    observed_generation: int = 0


@api_dataclass
class JobWarning:
    """A warning about the specification; does not stop the job."""

    path: Annotated[ShortText, Field(max_length=128)]
    """Field of the specification."""
    reason: Annotated[ShortText, Field(max_length=64)]
    """CamelCase, from a closed set."""
    message: Annotated[Message, Field(max_length=512)] = ""
    """Problem → remedy."""
