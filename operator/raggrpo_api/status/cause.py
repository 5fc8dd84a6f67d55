"""Causes: why an attempt ended."""

from enum import StrEnum


class Cause(StrEnum):
    """Why an attempt ended."""

    CONFIG_ERROR = "ConfigError"
    """The configuration is invalid. Fix the field that the message names."""
    DATA_ERROR = "DataError"
    """A data file or corpus cannot be used. Fix the file and line that the message names."""
    STAGING_FAILED = "StagingFailed"
    """A model or data set could not be downloaded. Fix the field that the message names."""
    PREFLIGHT_FAILED = "PreflightFailed"
    """A check failed, or preflight gave no result within its deadline.

    See `status.preflight.checks`.
    """
    REWARD_CODE_ERROR = "RewardCodeError"
    """A Python reward failed or returned no number. Try it with `raggrpo check`."""
    AGENT_ERROR = "AgentError"
    """The application of `rollout.agent` cannot be run, or failed for too many samples.

    The message names causes and an example. Fix the application, then retry.
    """
    CUDA_OUT_OF_MEMORY = "CudaOutOfMemory"
    """A rank or an engine ran out of GPU memory. The next attempt applies a mitigation."""
    HOST_OUT_OF_MEMORY = "HostOutOfMemory"
    """A process or pod ran out of host memory.

    The next attempt applies a mitigation; raise `resources.memory` if it recurs.
    """
    ROLLOUT_ENGINE_LOST = "RolloutEngineLost"
    """An engine did not start, or could not be replaced in place. See the engine's log."""
    TRAINER_RANK_LOST = "TrainerRankLost"
    """A rank exited although its pod runs. See the rank's log."""
    COLLECTIVE_TIMEOUT = "CollectiveTimeout"
    """A collective operation of the ranks timed out.

    Check the network between nodes if it recurs.
    """
    NON_FINITE = "NonFinite"
    """Loss or gradients became NaN or infinite.

    Lower `training.learningRate` in a new job if it recurs.
    """
    POLICY_MISMATCH = "PolicyMismatch"
    """Logprobs of trainer and engine differ by more than the limit.

    Try `training.rowLayout: Padded` or `precision: FP32`.
    """
    RETRIEVAL_UNAVAILABLE = "RetrievalUnavailable"
    """Too many calls failed although their services answered other calls.

    The message names endpoint, counts and an example. Fix the request or the service, then retry.
    """
    ENDPOINT_DOWN = "EndpointDown"
    """A service was down for longer than `recovery.deadlines.outageSeconds`.

    Fix the service, then retry.
    """
    CHECKPOINT_WRITE_FAILED = "CheckpointWriteFailed"
    """A checkpoint could not be written. Fix the volume's error in the message, then retry."""
    VOLUME_FULL = "VolumeFull"
    """The checkpoint volume is full. Free space as the message says, then retry."""
    CHECKPOINT_INCOMPATIBLE = "CheckpointIncompatible"
    """The checkpoint was written with other settings, which the message lists.

    Restore them, or specify another `checkpoint.path`.
    """
    CHECKPOINT_PATH_IN_USE = "CheckpointPathInUse"
    """Another job writes to `checkpoint.path`. Give each job its own path."""
    STALLED = "Stalled"
    """A stage or step made no progress within its deadline.

    Stacks are in the log folder. If the stage or step was only slow, raise the deadline.
    """
    RESUME_MISMATCH = "ResumeMismatch"
    """The attempt started before the newest checkpoint. Check whether a checkpoint was removed."""
    FALSE_SUCCESS = "FalseSuccess"
    """The driver exited with 0 before the target step. See the driver's log."""
    PREEMPTED = "Preempted"
    """Pods were preempted or evicted, or a queue reclaimed its quota.

    The job saved a checkpoint and resumes automatically.
    """
    SUPERSEDED = "Superseded"
    """A newer attempt holds the fencing epoch. The job continues automatically."""
    SUSPENDED = "Suspended"
    """`spec.suspend` is true, or a signal interrupted a local run.

    Set `spec.suspend` to false, or run the command again, to resume.
    """
    DEGRADED = "Degraded"
    """The attempt became slow or its memory grew, and `recovery.restartWhenDegraded` is true."""
    NOT_LEARNING = "NotLearning"
    """The condition NotLearning was True, and `recovery.onNotLearning` is Fail.

    Fix what its message names, then retry.
    """
    STOPPED = "Stopped"
    """The Ray submission was stopped from outside. Use `spec.suspend` instead."""
    IMAGE_CHANGED = "ImageChanged"
    """Pods run another image or Ray version than the job started with.

    Specify `spec.image`, then retry.
    """
    HEAD_LOST = "HeadLost"
    """The Ray head or the RayCluster is gone. Run the head on a stable node."""
    WORKER_LOST = "WorkerLost"
    """A worker pod exited or was deleted. The message has the pod's termination message."""
    NODE_LOST = "NodeLost"
    """A node failed, was tainted, or ran out of a resource. Check that node."""
    RANKS_STUCK = "RanksStuck"
    """Ranks of an earlier attempt did not exit. The next attempt uses a new cluster."""
    START_FAILED = "StartFailed"
    """A container cannot start: its image, Secret or command is wrong.

    Fix the pod's reason in the message, then retry.
    """
    UNSCHEDULABLE = "Unschedulable"
    """Pods were not ready, or a queue did not admit the job, within the deadline.

    Add capacity or raise the deadline.
    """
    PROGRESS_UNREACHABLE = "ProgressUnreachable"
    """The driver runs, but `/progress` does not answer.

    Check NetworkPolicies between operator and head.
    """
    DEADLINE_EXCEEDED = "DeadlineExceeded"
    """The job exceeded `activeDeadlineSeconds`. Raise it, then retry."""
    RESTART_BUDGET_EXHAUSTED = "RestartBudgetExhausted"
    """`recovery.maxRestarts` attempts ended without a new checkpoint.

    Fix the last cause in the message, then retry.
    """
    PROGRAM_ERROR = "ProgramError"
    """The driver exited with an unexpected code or signal. The message has its last log lines."""
    SUCCEEDED = "Succeeded"
    """The attempt reached its target step."""


WRITE_FAILURES = frozenset({Cause.CHECKPOINT_WRITE_FAILED, Cause.VOLUME_FULL})
"""Causes of attempts that could not write a checkpoint."""
