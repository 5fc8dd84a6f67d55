"""The preflight pod: runs before any GPU is allocated; its termination message is the result."""

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status import PodRole, Sizing
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_operator.core.sizing.size import pod

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, pod_labels, pod_spec, trainer_env

TERMINATION_LOG = "/dev/termination-log"
"""Kubernetes keeps 4,096 bytes of this file in the pod's status."""


def render_preflight_pod(
    job: RagGrpoJob,
    settings: ClusterSettings,
    *,
    config: TrainerConfig,
    spec_hash: str,
    sizing: Sizing,
) -> Manifest:
    """Return the pod that checks the spec with this hash; it requests no GPU."""
    sized = pod(sizing, PodRole.PREFLIGHT)
    own = {
        names.ENV_CONFIG: config.to_json(),
        names.ENV_PREFLIGHT_OUTPUT: TERMINATION_LOG,
    }
    env = trainer_env(job.spec, own, with_headers=True, with_code=True)
    preflight = container(
        job, settings, "preflight", sizing=sized, env=env, with_reward_code=True
    ) | {
        "command": ["python", "-m", "raggrpo_trainer.preflight"],
        "terminationMessagePath": TERMINATION_LOG,
        # If a check crashes, the end of the log becomes the message.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    metadata = child_metadata(
        job,
        names.preflight_name(job.metadata.name),
        labels=pod_labels(job, PodRole.PREFLIGHT) | {names.LABEL_SPEC_HASH: spec_hash},
    )
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": pod_spec(job, settings, preflight, sizing=sized, with_reward_code=True)
        | {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1},
    }
