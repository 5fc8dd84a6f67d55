"""Exit codes of the trainer's driver.

The docstrings of `raggrpo_api.status.cause.Cause` explain the codes; docs/reference/conditions.md
lists both codes and causes.
"""

from enum import IntEnum


class ExitCode(IntEnum):
    """Exit code of the driver; the operator reports the cause with the same name."""

    DONE = 0
    PROGRAM_ERROR = 1
    CONFIG_ERROR = 2
    DATA_ERROR = 3
    PREFLIGHT_FAILED = 4
    REWARD_CODE_ERROR = 5
    CUDA_OUT_OF_MEMORY = 10
    ROLLOUT_ENGINE_LOST = 11
    TRAINER_RANK_LOST = 12
    COLLECTIVE_TIMEOUT = 13
    NON_FINITE = 14
    RETRIEVAL_UNAVAILABLE = 15
    CHECKPOINT_WRITE_FAILED = 16
    VOLUME_FULL = 17
    CHECKPOINT_INCOMPATIBLE = 18
    CHECKPOINT_PATH_IN_USE = 19
    RANKS_STUCK = 20
    HOST_OUT_OF_MEMORY = 21
    POLICY_MISMATCH = 22
    AGENT_ERROR = 23
    PREEMPTED = 75
    SUPERSEDED = 76
