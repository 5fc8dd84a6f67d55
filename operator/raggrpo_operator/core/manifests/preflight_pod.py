"""The preflight pod, which runs before GPUs are allocated.

The termination message of its container is the result of preflight.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.lifecycle.actions import StartPreflight
from raggrpo_operator.core.sizing.size import sizing_for

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, pod_labels, pod_spec, trainer_env

TERMINATION_LOG = "/dev/termination-log"
"""File whose first 4,096 bytes Kubernetes copies to the pod status."""


def render_preflight_pod(
    job: Metadata, settings: ClusterSettings, action: StartPreflight
) -> Manifest:
    """Return the pod that runs the preflight checks without a GPU, labeled with the spec hash."""
    plan = action.plan
    sized = sizing_for(plan.sizing, PodRole.PREFLIGHT)
    own = seal(action.config.to_json()) | {names.ENV_PREFLIGHT_OUTPUT: TERMINATION_LOG}
    env = trainer_env(plan.spec, own, for_driver=True)
    preflight = container(
        plan, settings, names.PREFLIGHT_CONTAINER, sizing=sized, env=env, for_driver=True
    ) | {
        "command": ["python", "-m", "raggrpo_trainer.preflight"],
        "terminationMessagePath": TERMINATION_LOG,
    }
    labels = pod_labels(job, PodRole.PREFLIGHT) | {names.LABEL_SPEC_HASH: action.spec_hash}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": child_metadata(job, names.preflight_name(job.name, job.uid), labels=labels),
        "spec": pod_spec(plan, settings, preflight, sizing=sized, for_driver=True)
        | {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1},
    }
