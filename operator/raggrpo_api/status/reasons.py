"""Reasons of conditions that are neither a cause, a preflight check nor a rule."""

from enum import StrEnum


class ConditionReason(StrEnum):
    """The closed set of reasons, grouped by the condition that has them."""

    NOT_EVALUATED = "NotEvaluated"
    """The condition was never set."""
    REOPENED = "Reopened"
    """The user retried a job that had ended, or raised its target."""

    # Accepted; a False condition has the reason of a rule
    VALID = "Valid"
    INVALID = "InvalidSpec"

    # PreflightPassed; a False condition may have the ID of a check
    RUNNING = "Running"
    PASSED = "Passed"
    NO_RESULT = "NoResult"

    # RetrieverReady
    RETRIEVER_NOT_READY = "RetrieverNotReady"

    # ClusterReady
    PROVISIONING = "Provisioning"
    HEAD_RETURN_TIMEOUT = "HeadReturnTimeout"

    # Why pods do not start: PreflightPassed, ClusterReady
    UNSCHEDULABLE = "Unschedulable"
    SCHEDULING_GATED = "SchedulingGated"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    CONTAINER_START_FAILED = "ContainerStartFailed"
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    REPLICA_FAILURE = "ReplicaFailure"
    """KubeRay could not create a pod."""
    PODS_NOT_READY = "PodsNotReady"
    """None of the above."""

    # Progressing; a False condition may have the cause for which the attempt is being stopped
    STARTING = "Starting"
    TRAINING = "Training"
    VERIFYING_SUCCESS = "VerifyingSuccess"
    WAITING_FOR_EVIDENCE = "WaitingForEvidence"
    RESTARTING = "Restarting"
    TARGET_RAISED = "TargetRaised"
    UPGRADE_REQUIRED = "UpgradeRequired"
    FAILED = "Failed"
    COMPLETE = "Complete"

    # WaitingForEndpoint
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    ENDPOINT_DOWN = "EndpointDown"
    ENDPOINT_RECOVERED = "EndpointRecovered"
    ATTEMPT_ENDED = "AttemptEnded"

    # ResumeVerified
    NOT_YET_REPORTED = "NotYetReported"
    VERIFIED = "Verified"
    OLDER_CHECKPOINT = "OlderCheckpoint"
    RESUME_MISMATCH = "ResumeMismatch"

    # CheckpointHealthy
    SAVED = "Saved"
    BACKUP_FAILED = "BackupFailed"

    # SlowingDown, HostMemoryGrowing, PolicyMismatch, Stalled
    STEP_TIME_INCREASED = "StepTimeIncreased"
    STEP_TIME_STABLE = "StepTimeStable"
    MEMORY_GROWING = "MemoryGrowing"
    MEMORY_STABLE = "MemoryStable"
    LOGPROBS_DIFFER = "LogprobsDiffer"
    LOGPROBS_AGREE = "LogprobsAgree"
    STALLED = "Stalled"
    MAKING_PROGRESS = "MakingProgress"

    # Suspended
    SUSPENDED = "Suspended"
    NOT_SUSPENDED = "NotSuspended"
    QUEUED = "Queued"
    """A queueing system, not the user, holds the job back."""
    ADMITTED = "Admitted"

    # Complete
    TARGET_REACHED = "TargetReached"

    # Ready
    READY = "Ready"
    NOT_READY = "NotReady"

    # Reconciling
    RECONCILED = "Reconciled"
    INTERNAL_ERROR = "InternalError"
    ACCESS_DENIED = "AccessDenied"
    NAME_CONFLICT = "NameConflict"
    NOT_FOUND = "NotFound"
    CLUSTER_ERROR = "ClusterError"
    REQUEST_REJECTED = "RequestRejected"


POD_START_REASONS = frozenset(
    {
        ConditionReason.UNSCHEDULABLE,
        ConditionReason.SCHEDULING_GATED,
        ConditionReason.IMAGE_PULL_FAILED,
        ConditionReason.CONTAINER_START_FAILED,
        ConditionReason.CRASH_LOOP_BACK_OFF,
        ConditionReason.REPLICA_FAILURE,
        ConditionReason.PODS_NOT_READY,
    }
)
"""Reasons for which pods do not start."""


class WarningReason(StrEnum):
    """Reasons of warnings that are neither a preflight check nor a rule."""

    CHECKPOINT_INTERVAL = "CheckpointIntervalSuboptimal"
    MORE_WARNINGS = "MoreWarnings"
    """Reason of the Event for warnings that `status.warnings` has no room for."""
