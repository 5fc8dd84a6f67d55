"""The staging pod, which downloads models and data before preflight.

The termination message of its container is the result of staging.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.lifecycle.actions import StartStaging
from raggrpo_operator.core.sizing.size import sizing_for

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, pod_labels, pod_spec, trainer_env
from .preflight_pod import TERMINATION_LOG

GRACE_SECONDS = 10
"""Seconds to release the locks of sources after SIGTERM."""


def render_staging_pod(job: Metadata, settings: ClusterSettings, action: StartStaging) -> Manifest:
    """Return the pod that downloads the sources, labeled with the hash of the request."""
    plan = action.plan
    sized = sizing_for(plan.sizing, PodRole.STAGING)
    own = {
        names.ENV_STAGING_REQUEST: action.request.model_dump_json(by_alias=True),
        names.ENV_PROGRESS_PORT: str(names.PROGRESS_PORT),
    }
    if plan.spec.ca_bundle:
        own[names.ENV_CA_BUNDLE] = f"{names.CA_BUNDLE_DIR}/{names.CA_BUNDLE_FILE}"
    env = trainer_env(plan.spec, own)  # without the headers of services
    staging = container(
        plan, settings, names.STAGING_CONTAINER, sizing=sized, env=env, for_driver=True
    ) | {
        "command": ["python", "-m", "raggrpo_staging", "--result", TERMINATION_LOG],
        "terminationMessagePath": TERMINATION_LOG,
    }
    labels = pod_labels(job, PodRole.STAGING) | {names.LABEL_SPEC_HASH: action.request_hash}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": child_metadata(job, names.staging_name(job.name, job.uid), labels=labels),
        "spec": pod_spec(plan, settings, staging, sizing=sized, for_driver=True)
        | {"restartPolicy": "Never", "terminationGracePeriodSeconds": GRACE_SECONDS},
    }
