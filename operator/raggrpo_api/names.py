"""Names shared by operator, trainer and user: labels, environment variables, ports, files."""

import hashlib
import re
from typing import Final, Literal

from .fields.base import AttemptNumber, ClusterNumber

GROUP: Final = "raggrpo.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final[Literal["raggrpo.io/v1alpha1"]] = "raggrpo.io/v1alpha1"
KIND: Final[Literal["RagGrpoJob"]] = "RagGrpoJob"
PLURAL: Final = "raggrpojobs"

LABEL_JOB: Final = "raggrpo.io/job-name"
LABEL_ROLE: Final = "raggrpo.io/role"
LABEL_ATTEMPT: Final = "raggrpo.io/attempt"
LABEL_CLUSTER: Final = "raggrpo.io/cluster"
"""Number of the Ray cluster an object belongs to."""
LABEL_RETRIEVER: Final = "raggrpo.io/retriever"
"""Endpoint a managed retriever serves."""
LABEL_SPEC_HASH: Final = "raggrpo.io/spec-hash"
"""Hash of the spec that a preflight checks."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "raggrpo-operator"
"""Value of LABEL_MANAGED_BY and field manager of everything the operator writes."""
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
ANNOTATION_TOKEN_KEY: Final = "raggrpo.io/token-key-id"
"""Id of the installation key from which a RayCluster's token was derived."""
ANNOTATION_HEAD_RETURNS: Final = "raggrpo.io/head-returns"
"""On a RayCluster whose head keeps what it knows on a volume, for the one that succeeds it."""
ANNOTATION_RETRY: Final = "raggrpo.io/retry"

ENV_CONFIG: Final = "RAGGRPO_CONFIG"
"""TrainerConfig as JSON of at most 64 KiB, in base64."""
ENV_CONFIG_SHA256: Final = "RAGGRPO_CONFIG_SHA256"
"""SHA-256 of that JSON, in hexadecimal."""
ENV_FAULT: Final = "RAGGRPO_FAULT"
"""Faults for drills, such as kill-rank@step=7."""
ENV_HEAD_STORE: Final = "RAGGRPO_HEAD_STORE"
"""Folder in which a head keeps what it knows of its Ray cluster."""
ENV_PROGRESS_PORT: Final = "RAGGRPO_PROGRESS_PORT"
ENV_RUN_MARK: Final = "RAGGRPO_RUN_MARK"
"""Marks every process of one local run, so that a sweep kills exactly those."""
ENV_PREFLIGHT_OUTPUT: Final = "RAGGRPO_PREFLIGHT_OUTPUT"
"""File the preflight writes its result to; in a pod, the termination message."""
SECRET_ENV_PREFIX: Final = "RAGGRPO_SECRET_"
RESERVED_ENV: Final = frozenset(
    {ENV_CONFIG, ENV_CONFIG_SHA256, ENV_HEAD_STORE, ENV_PREFLIGHT_OUTPUT, ENV_PROGRESS_PORT}
    | {
        ENV_RUN_MARK,
        "CUDA_VISIBLE_DEVICES",
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
    }
)
"""Set by the operator for each process; a job must not set them."""

RESERVED_HEADERS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
"""HTTP headers that belong to the connection, in lower case; a job must not set them."""

HOME_DIR: Final = "/home/ray"
REWARD_CODE_DIR: Final = "/opt/raggrpo/reward-code"
RESERVED_MOUNTS: Final = frozenset(
    {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt/raggrpo"}
    | {"/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var/run", HOME_DIR}
)
"""Folders of the image and of the pods' own volumes; nothing is mounted on, below or above them."""

DRIVER_COMMAND: Final = "python -m raggrpo_trainer"
"""Command line of the driver in a pod."""
RAY_START: Final = "raggrpo_trainer.ray_start"
"""Module that runs Ray's command line for a node."""
HEAD_CONTAINER: Final = "ray-head"
WORKER_CONTAINER: Final = "ray-worker"
PREFLIGHT_CONTAINER: Final = "preflight"
RETRIEVER_CONTAINER: Final = "retriever"
MAIN_CONTAINERS: Final = frozenset(
    {HEAD_CONTAINER, WORKER_CONTAINER, PREFLIGHT_CONTAINER, RETRIEVER_CONTAINER}
)
"""Ours, one in each pod; a cluster may put others into the same pods."""
DASHBOARD_PORT: Final = 8265
PROGRESS_PORT: Final = 8090
RETRIEVER_PORT: Final = 8000
MAX_CONFIG_BYTES: Final = 64 * 1024
MAX_SPEC_BYTES: Final = 64 * 1024
"""Of all texts in a job's spec together, in UTF-8."""
MAX_ENV_BYTES: Final = 32 * 1024
"""Of a job's environment: names, values and references, in UTF-8."""
MAX_PROGRESS_BYTES: Final = 64 * 1024
MAX_PREFLIGHT_BYTES: Final = 4096

ATTEMPTS_DIR: Final = "attempts"
HEADS_DIR: Final = "heads"
"""Below the logs' folder: what heads know of their Ray clusters, by job and name."""
CONFIG_FILE: Final = "config.json"
DRIVER_LOG: Final = "driver.log"
EXPORT_DIR: Final = "export"

MAX_CHILD_NAME: Final = 42
"""Length of a child's name: KubeRay's longest, `<name>-rollout-worker-xxxxx`, then fits into 63."""
MAX_SUFFIX: Final = 16
"""How much of a child's role and number, or endpoint, its name shows."""


def secret_env(name: str, key: str) -> str:
    """Return the environment variable that hands one key of a Secret to the trainer."""
    return SECRET_ENV_PREFIX + re.sub(r"[^A-Z0-9]", "_", f"{name}_{key}".upper())


def submission_id(job: str, attempt: AttemptNumber) -> str:
    """Return the Ray Jobs submission id of an attempt."""
    return f"{job}-a{attempt}"


def ray_driver_log(submission: str) -> str:
    """Return the file with a driver's output, relative to Ray's temporary folder."""
    return f"session_latest/logs/job-driver-{submission}.log"


def child_name(job: str, uid: str, part: str) -> str:
    """Return the name of an object of a job: readable, and no other job's or part's.

    The hash of uid and part keeps jobs apart whose names run into each other, and a job from its
    predecessor of the same name.
    """
    digest = hashlib.sha256(f"{uid}/{part}".encode()).hexdigest()[:8]
    shown = part[:MAX_SUFFIX].rstrip("-")
    readable = job[: MAX_CHILD_NAME - len(shown) - len(digest) - 2].rstrip("-")
    return f"{readable}-{shown}-{digest}"


def cluster_name(job: str, uid: str, number: ClusterNumber) -> str:
    """Return the name of the number-th Ray cluster of a job."""
    return child_name(job, uid, f"c{number}")


def preflight_name(job: str, uid: str) -> str:
    """Return the name of a job's preflight pod."""
    return child_name(job, uid, "preflight")


def config_map_name(job: str, uid: str, attempt: AttemptNumber) -> str:
    """Return the name of the ConfigMap that records one attempt's configuration."""
    return child_name(job, uid, f"a{attempt}")


def retriever_name(job: str, uid: str, endpoint: str) -> str:
    """Return the name of a managed retriever's Deployment and Service."""
    return child_name(job, uid, f"r-{endpoint}")


def network_policy_name(job: str, uid: str) -> str:
    """Return the name of the NetworkPolicy of a job's pods."""
    return child_name(job, uid, "network")


def token_secret_name(job: str, digest: str) -> str:
    """Return the name of the Secret with the job's token.

    Nobody can tell it beforehand, as the digest is derived from the installation's key.
    """
    return f"{job}-token-{digest}"


def ray_namespace(job_uid: str) -> str:
    """Return the Ray namespace of the job's named actors, the same for all attempts."""
    return f"raggrpo-{job_uid}"
