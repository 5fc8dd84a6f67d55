"""Reasons of conditions, except causes, preflight checks, rules and reasons for NotLearning."""

from enum import StrEnum


class ConditionReason(StrEnum):
    """The closed set of reasons, grouped by the condition that has them."""

    NOT_EVALUATED = "NotEvaluated"
    """The condition was never set."""
    REOPENED = "Reopened"
    """The user retried a job that had ended, or raised its target."""

    # Accepted; a False condition has the reason of a rule
    VALID = "Valid"
    """The spec passed all rules."""
    INVALID = "InvalidSpec"
    """The spec is invalid; `Accepted` names the violated rules."""

    # SourcesStaged; a False condition may have a StagingReason
    STAGING = "Staging"
    """The staging pod is running; the message has its progress."""
    STAGED = "Staged"
    """All files are on the volume."""

    # PreflightPassed; a False condition may have the ID of a check
    RUNNING = "Running"
    """The preflight pod is running."""
    PASSED = "Passed"
    """All checks passed."""
    NO_RESULT = "NoResult"
    """The preflight, staging or push pod ended without a result."""

    # RetrieverReady
    RETRIEVER_NOT_READY = "RetrieverNotReady"
    """A managed retriever is loading its index."""

    # AgentServiceReady
    AGENT_NOT_READY = "AgentNotReady"
    """The container of the agent is starting."""

    # ClusterReady
    PROVISIONING = "Provisioning"
    """The RayCluster exists; its pods are starting."""
    HEAD_RETURN_TIMEOUT = "HeadReturnTimeout"
    """A replaced head did not become ready in time; the job gets a new cluster."""

    # Why pods do not start: PreflightPassed, RetrieverReady, ClusterReady
    UNSCHEDULABLE = "Unschedulable"
    """No node fits a pod."""
    SCHEDULING_GATED = "SchedulingGated"
    """A scheduling gate holds a pod back."""
    IMAGE_PULL_FAILED = "ImagePullFailed"
    """An image cannot be pulled."""
    CONTAINER_START_FAILED = "ContainerStartFailed"
    """A container cannot be created, for example because a Secret is missing."""
    CRASH_LOOP_BACK_OFF = "CrashLoopBackOff"
    """A container exits repeatedly."""
    QUOTA_EXCEEDED = "QuotaExceeded"
    """A ResourceQuota does not admit a pod; the message has its name and limits."""
    REPLICA_FAILURE = "ReplicaFailure"
    """KubeRay, or the Deployment of a retriever, could not create a pod."""
    PODS_NOT_READY = "PodsNotReady"
    """Pods do not start for another reason."""

    # Progressing; a False condition may have the cause for which the attempt is being stopped
    WAITING_FOR_START_JOB = "WaitingForStartJob"
    """training.startFrom names a job whose checkpoints are not available; the message says why."""
    STARTING = "Starting"
    """The attempt is starting."""
    TRAINING = "Training"
    """The attempt is training."""
    VERIFYING_SUCCESS = "VerifyingSuccess"
    """The driver exited with 0; the operator is reading its last progress."""
    WAITING_FOR_EVIDENCE = "WaitingForEvidence"
    """The attempt ended; the operator is waiting for the pod status that explains it."""
    RESTARTING = "Restarting"
    """The next attempt is about to start."""
    TARGET_RAISED = "TargetRaised"
    """The target step was raised while the attempt was exiting."""
    UPGRADE_REQUIRED = "UpgradeRequired"
    """The trainer image is too old for a field that the job uses."""
    FAILED = "Failed"
    """The job failed."""
    COMPLETE = "Complete"
    """The job reached its target step."""

    # WaitingForEndpoint
    WAITING_FOR_ENDPOINT = "WaitingForEndpoint"
    """The job waits for a service that is down."""
    ENDPOINT_DOWN = "EndpointDown"
    """A service is down."""
    ENDPOINT_RECOVERED = "EndpointRecovered"
    """The service responds again."""
    ATTEMPT_ENDED = "AttemptEnded"
    """The attempt ended, so the condition of that attempt no longer applies."""

    # ResumeVerified
    NOT_YET_REPORTED = "NotYetReported"
    """The attempt has not reported its first step yet."""
    VERIFIED = "Verified"
    """The attempt started from the newest checkpoint."""
    OLDER_CHECKPOINT = "OlderCheckpoint"
    """The attempt started from an older checkpoint, for a recorded reason."""
    RESUME_MISMATCH = "ResumeMismatch"
    """The attempt started from an older checkpoint without a recorded reason."""

    # CheckpointHealthy
    SAVED = "Saved"
    """The newest checkpoint is complete."""
    BACKUP_FAILED = "BackupFailed"
    """The newest backup failed; later backups will be attempted."""

    # NotLearning; a True condition has a NotLearningReason
    LEARNING = "Learning"
    """The latest step contributes to learning."""

    # SlowingDown, HostMemoryGrowing, PolicyMismatch, Stalled
    STEP_TIME_INCREASED = "StepTimeIncreased"
    """Steps are slower than the baseline allows."""
    STEP_TIME_STABLE = "StepTimeStable"
    """Step times are within the limit."""
    MEMORY_GROWING = "MemoryGrowing"
    """Host memory is projected to exceed its limit."""
    MEMORY_STABLE = "MemoryStable"
    """Host memory is not projected to exceed its limit."""
    LOGPROBS_DIFFER = "LogprobsDiffer"
    """The mean difference exceeds the limit."""
    LOGPROBS_AGREE = "LogprobsAgree"
    """The mean difference is within the limit."""
    STALLED = "Stalled"
    """No progress within the deadline."""
    MAKING_PROGRESS = "MakingProgress"
    """Steps or stages are advancing."""

    # Suspended
    SUSPENDED = "Suspended"
    """`spec.suspend` is true."""
    NOT_SUSPENDED = "NotSuspended"
    """The job may run."""
    QUEUED = "Queued"
    """The job waits for admission by a queueing system."""
    ADMITTED = "Admitted"
    """The queueing system admitted the job."""

    # Complete
    TARGET_REACHED = "TargetReached"
    """The target step was reached."""

    # ResultPushed; a condition that is not True may have a StagingReason
    PUSHING = "Pushing"
    """The push pod is running."""
    PUSHED = "Pushed"
    """All files are uploaded; `status.push` has their URL and revision."""

    # Ready
    READY = "Ready"
    """For kstatus: the job is complete."""
    NOT_READY = "NotReady"
    """The job is not complete."""

    # Reconciling
    RECONCILED = "Reconciled"
    """The last reconcile succeeded."""
    INTERNAL_ERROR = "InternalError"
    """A bug in the operator; the message has the error."""
    ACCESS_DENIED = "AccessDenied"
    """The API server or the Ray head denied access."""
    OTHER_OPERATOR = "OtherOperator"
    """Reason of the Event of an operator that found another one in the namespace."""
    INSTALLATION_KEY_MISSING = "InstallationKeyMissing"
    """The Secret with the installation key is missing, or has another key; see the message."""
    INSTALLATION_KEY_CHANGED = "InstallationKeyChanged"
    """The key of the job's Ray cluster is no longer in the Secret; the operator still has it."""
    NAME_CONFLICT = "NameConflict"
    """An object with the required name is not owned by the job."""
    NOT_FOUND = "NotFound"
    """An object that the operator needs does not exist."""
    CLUSTER_ERROR = "ClusterError"
    """A call failed and is retried."""
    REQUEST_REJECTED = "RequestRejected"
    """The API server rejected a request."""


POD_START_REASONS = frozenset(
    {
        ConditionReason.UNSCHEDULABLE,
        ConditionReason.SCHEDULING_GATED,
        ConditionReason.IMAGE_PULL_FAILED,
        ConditionReason.CONTAINER_START_FAILED,
        ConditionReason.CRASH_LOOP_BACK_OFF,
        ConditionReason.QUOTA_EXCEEDED,
        ConditionReason.REPLICA_FAILURE,
        ConditionReason.PODS_NOT_READY,
    }
)
"""Reasons why pods do not start."""


class WarningReason(StrEnum):
    """Reasons of warnings that are neither a preflight check nor a rule."""

    CHECKPOINT_INTERVAL = "CheckpointIntervalSuboptimal"
    MORE_WARNINGS = "MoreWarnings"
    """Reason of the Event for warnings that `status.warnings` has no room for."""
