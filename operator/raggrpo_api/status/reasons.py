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
    INVALID = "Invalid"

    # PreflightPassed; a False condition may have the ID of a check
    RUNNING = "Running"
    PASSED = "Passed"
    NO_RESULT = "NoResult"

    # RetrieverReady
    RETRIEVER_NOT_READY = "Loading"

    # ClusterReady
    PROVISIONING = "Provisioning"
    HEAD_RETURN_TIMEOUT = "HeadStaysAway"

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
    WAITING_FOR_EVIDENCE = "AwaitingEvidence"
    RESTARTING = "Restarting"
    TARGET_RAISED = "TargetRaised"
    UPGRADE_REQUIRED = "UpgradeRequired"
    FAILED = "Failed"
    COMPLETE = "Complete"

    # WaitingForEndpoint
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    ENDPOINT_DOWN = "EndpointDown"
    ENDPOINT_RECOVERED = "Answers"
    ATTEMPT_ENDED = "AttemptEnded"

    # ResumeVerified
    NOT_YET_REPORTED = "NotYetKnown"
    VERIFIED = "Verified"
    OLDER_CHECKPOINT = "OlderCheckpoint"
    RESUME_MISMATCH = "ResumeMismatch"

    # CheckpointHealthy
    SAVED = "Saved"
    BACKUP_FAILED = "BackupFailed"

    # SlowingDown, HostMemoryGrowing, PolicyMismatch, Stalled
    STEP_TIME_INCREASED = "Growing"
    STEP_TIME_STABLE = "Steady"
    MEMORY_GROWING = "Growing"
    MEMORY_STABLE = "Steady"
    LOGPROBS_DIFFER = "LogprobsDiffer"
    LOGPROBS_AGREE = "LogprobsAgree"
    STALLED = "Stalled"
    MAKING_PROGRESS = "Moving"

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
    NAME_CONFLICT = "NameTaken"
    NOT_FOUND = "NotThere"
    CLUSTER_ERROR = "ClusterTrouble"
    REQUEST_REJECTED = "Refused"


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

    CHECKPOINT_INTERVAL = "CheckpointIntervalOff"
    MORE_WARNINGS = "MoreWarnings"
    """Reason of the Event for warnings that `status.warnings` has no room for."""
