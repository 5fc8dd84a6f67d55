"""Names shared by operator, trainer and user: labels, environment variables, ports, files.

Sections: API group, labels and annotations, environment variables, reserved values, containers and
ports, files, names of Kubernetes objects and Ray submissions. Size limits are in `limits`.
"""

import hashlib
import re
from typing import Final, Literal

from .fields.base import AttemptNumber, ClusterNumber

# --- API group

GROUP: Final = "raggrpo.io"
VERSION: Final = "v1alpha1"
API_VERSION: Final[Literal["raggrpo.io/v1alpha1"]] = "raggrpo.io/v1alpha1"
KIND: Final[Literal["RagGrpoJob"]] = "RagGrpoJob"
PLURAL: Final = "raggrpojobs"

# --- Labels and annotations

LABEL_JOB: Final = "raggrpo.io/job-name"
LABEL_ROLE: Final = "raggrpo.io/role"
"""Value: a `PodRole`."""
LABEL_ATTEMPT: Final = "raggrpo.io/attempt"
LABEL_CLUSTER: Final = "raggrpo.io/cluster"
"""Value: number of the Ray cluster."""
LABEL_RETRIEVER: Final = "raggrpo.io/retriever"
"""Value: name of the managed endpoint."""
LABEL_SPEC_HASH: Final = "raggrpo.io/spec-hash"
"""On a pod that runs once; value: hash of the spec or request that the pod processes."""
LABEL_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGER: Final = "raggrpo-operator"
"""Value of LABEL_MANAGED_BY, and field manager of the operator."""
NAMESPACE_LEASE: Final = "raggrpo-jobs"
"""Name of the Lease with which an operator claims a namespace."""
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
ANNOTATION_TOKEN_KEY: Final = "raggrpo.io/token-key-id"
"""On a RayCluster; value: id of the installation key from which the token is derived."""
ANNOTATION_HEAD_RETURNS: Final = "raggrpo.io/head-returns"
"""On a RayCluster whose Ray head stores its state on a volume, so that a new head restores it."""
ANNOTATION_RETRY: Final = "raggrpo.io/retry"

# --- Environment variables

ENV_CONFIG: Final = "RAGGRPO_CONFIG"
"""`TrainerConfig` as base64-encoded JSON."""
ENV_CONFIG_SHA256: Final = "RAGGRPO_CONFIG_SHA256"
"""SHA-256 of the JSON in ENV_CONFIG, in hexadecimal."""
ENV_FAULT: Final = "RAGGRPO_FAULT"
"""Faults to inject in drills, such as kill-rank@step=7."""
ENV_HEAD_STORE: Final = "RAGGRPO_HEAD_STORE"
"""Folder of the Ray head's persistent state."""
ENV_PROGRESS_PORT: Final = "RAGGRPO_PROGRESS_PORT"
ENV_RUN_MARK: Final = "RAGGRPO_RUN_MARK"
"""Id of a local run in the environment of its processes; a cleanup kills only these processes."""
ENV_PREFLIGHT_OUTPUT: Final = "RAGGRPO_PREFLIGHT_OUTPUT"
"""File to which preflight writes its result; in a pod, the termination log."""
ENV_STAGING_REQUEST: Final = "RAGGRPO_STAGING_REQUEST"
"""`StagingRequest` as JSON."""
ENV_PUSH_JOB: Final = "RAGGRPO_PUSH_JOB"
ENV_PUSH_STATUS: Final = "RAGGRPO_PUSH_STATUS"
"""The job whose results are pushed, and its status, as JSON."""
ENV_RETRIEVER_TOKEN: Final = "RAGGRPO_RETRIEVER_TOKEN"
"""Bearer token that a run's managed retrievers require."""
ENV_CA_BUNDLE: Final = "RAGGRPO_CA_BUNDLE"
"""Path of the PEM file with the authorities of `spec.caBundle`."""
ENV_GATEWAY_URL: Final = "RAGGRPO_GATEWAY_URL"
"""URL at which the application of an agent reaches the gateway, if it runs elsewhere."""
ENV_CHECKPOINT_KEY: Final = "RAGGRPO_CHECKPOINT_KEY"
"""Secret in `spec.env` with which checkpoints are sealed; backups without its seal are not used."""
SECRET_ENV_PREFIX: Final = "RAGGRPO_SECRET_"

# --- Values that a job must not use

RESERVED_ENV: Final = frozenset(
    {ENV_CONFIG, ENV_CONFIG_SHA256, ENV_HEAD_STORE, ENV_PREFLIGHT_OUTPUT, ENV_PROGRESS_PORT}
    | {
        ENV_CA_BUNDLE,
        ENV_GATEWAY_URL,
        ENV_PUSH_JOB,
        ENV_PUSH_STATUS,
        ENV_RETRIEVER_TOKEN,
        ENV_RUN_MARK,
        ENV_STAGING_REQUEST,
        "CUDA_VISIBLE_DEVICES",
        "RAY_ADDRESS",
        "RAY_AUTH_MODE",
        "RAY_AUTH_TOKEN",
        "RAY_AUTH_TOKEN_PATH",
    }
)
"""Environment variables that the operator sets per process."""
GATEWAY_ENV: Final = frozenset({"OPENAI_API_BASE", "OPENAI_API_KEY", "OPENAI_BASE_URL"})
"""Environment variables of an agent with the URL of the gateway and its key."""
NO_API_KEY: Final = "none"
"""API key of an agent whose keys belong to samples; clients do not start without one."""
RESERVED_HEADERS: Final = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "te", "trailer"}
    | {"transfer-encoding", "upgrade"}
)
"""HTTP headers that the HTTP client sets and a job must not set, in lower case."""
HOME_DIR: Final = "/home/ray"
RESERVED_MOUNTS: Final = frozenset(
    {"/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/opt/raggrpo"}
    | {"/proc", "/root", "/run", "/sbin", "/sys", "/tmp", "/usr", "/var/run", HOME_DIR}
)
"""Folders of the image and of the pods' own volumes; a mount must not overlap them."""

# --- Containers, commands and ports

HEAD_CONTAINER: Final = "ray-head"
WORKER_CONTAINER: Final = "ray-worker"
PREFLIGHT_CONTAINER: Final = "preflight"
STAGING_CONTAINER: Final = "staging"
PUSH_CONTAINER: Final = "push"
RETRIEVER_CONTAINER: Final = "retriever"
AGENT_CONTAINER: Final = "agent"
MAIN_CONTAINERS: Final = frozenset(
    {HEAD_CONTAINER, WORKER_CONTAINER, PREFLIGHT_CONTAINER, STAGING_CONTAINER}
    | {PUSH_CONTAINER, RETRIEVER_CONTAINER, AGENT_CONTAINER}
)
"""The operator's containers, one per pod; admission webhooks may inject others."""
DRIVER_COMMAND: Final = "python -m raggrpo_trainer"
"""Command line of the driver in a pod."""
RAY_START: Final = "raggrpo_trainer.ray_start"
"""Module that runs Ray's command line on a node."""
PUSH_RESULTS: Final = "raggrpo_cli.push_results"
"""Module that uploads the results of a job."""
DASHBOARD_PORT: Final = 8265
PROGRESS_PORT: Final = 8090
RETRIEVER_PORT: Final = 8000
GATEWAY_PORT: Final = 8091
"""Port of the gateway on the Ray head, for agents that are services."""

# --- Files and folders

REWARD_CODE_DIR: Final = "/opt/raggrpo/reward-code"
CA_BUNDLE_DIR: Final = "/opt/raggrpo/ca-bundle"
CA_BUNDLE_FILE: Final = "ca.crt"
ATTEMPTS_DIR: Final = "attempts"
HEADS_DIR: Final = "heads"
"""Folder below the log folder with the persistent state of Ray heads, by job and cluster."""
CONFIG_FILE: Final = "config.json"
DRIVER_LOG: Final = "driver.log"
EXPORT_DIR: Final = "export"
BEST_DIR: Final = "best"
"""Folder of the best checkpoint's model below the folder of the exported model."""

# --- Kubernetes objects and Ray submissions

MAX_CHILD_NAME: Final = 42
"""Maximum characters; KubeRay's longest derived name, <name>-rollout-worker-xxxxx, may have 63."""
MAX_SUFFIX: Final = 16
"""Maximum characters of the readable suffix of a child's name."""


def secret_env(name: str, key: str) -> str:
    """Return the environment variable that passes a key of a Secret to the trainer."""
    return SECRET_ENV_PREFIX + re.sub(r"[^A-Z0-9]", "_", f"{name}_{key}".upper())


def submission_id(job: str, attempt: AttemptNumber) -> str:
    """Return the Ray Jobs submission id of an attempt."""
    return f"{job}-a{attempt}"


def ray_driver_log(submission: str) -> str:
    """Return the file of a driver's output, relative to Ray's temporary folder."""
    return f"session_latest/logs/job-driver-{submission}.log"


def child_name(job: str, uid: str, suffix: str) -> str:
    """Return the unique, readable name of a job's object.

    The hash of `uid` and `suffix` prevents collisions with objects of jobs whose names start alike
    and of an earlier job with the same name.
    """
    digest = hashlib.sha256(f"{uid}/{suffix}".encode()).hexdigest()[:8]
    short_suffix = suffix[:MAX_SUFFIX].rstrip("-")
    prefix = job[: MAX_CHILD_NAME - len(short_suffix) - len(digest) - 2].rstrip("-")
    return f"{prefix}-{short_suffix}-{digest}"


def cluster_name(job: str, uid: str, number: ClusterNumber) -> str:
    """Return the name of a job's RayCluster."""
    return child_name(job, uid, f"c{number}")


def preflight_name(job: str, uid: str) -> str:
    """Return the name of a job's preflight pod."""
    return child_name(job, uid, "preflight")


def staging_name(job: str, uid: str) -> str:
    """Return the name of a job's staging pod."""
    return child_name(job, uid, "staging")


def push_name(job: str, uid: str) -> str:
    """Return the name of a job's push pod."""
    return child_name(job, uid, "push")


def config_map_name(job: str, uid: str, attempt: AttemptNumber) -> str:
    """Return the name of the ConfigMap that records an attempt's configuration."""
    return child_name(job, uid, f"a{attempt}")


def retriever_name(job: str, uid: str, endpoint: str) -> str:
    """Return the name of a managed retriever's Deployment and Service."""
    return child_name(job, uid, f"r-{endpoint}")


def agent_name(job: str, uid: str) -> str:
    """Return the name of the Deployment and Service of an agent's container."""
    return child_name(job, uid, "agent")


def agent_policy_name(job: str, uid: str) -> str:
    """Return the name of the NetworkPolicy of an agent's container."""
    return child_name(job, uid, "agent-network")


def gateway_name(job: str) -> str:
    """Return the name of the Service of the gateway on the Ray head.

    It does not depend on the job's UID, so that applications can be configured before the job
    exists.
    """
    return f"{job}-gateway"


def claim_name(job: str, volume: str) -> str:
    """Return the name of the claim that the operator creates for a volume.

    It does not depend on the job's UID, so that a new job with the same name finds a kept claim.
    """
    return f"{job}-{volume}"


def network_policy_name(job: str, uid: str) -> str:
    """Return the name of the NetworkPolicy of a job's pods."""
    return child_name(job, uid, "network")


def token_secret_name(job: str, digest: str) -> str:
    """Return the name of the Secret with the job's token.

    The name is unpredictable, because `digest` is derived from the installation key.
    """
    return f"{job}-token-{digest}"


def ray_namespace(job_uid: str) -> str:
    """Return the Ray namespace of the job's named actors, which all attempts share."""
    return f"raggrpo-{job_uid}"
