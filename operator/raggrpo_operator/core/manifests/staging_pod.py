"""The staging pod, which downloads models and data before preflight.

The termination message of its container is the result of staging.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.lifecycle.actions import StartStaging
from raggrpo_operator.core.sizing.size import sizing_for

from .cluster_settings import ClusterSettings
from .metadata import Manifest
from .pods import TERMINATION_LOG, ca_bundle_env, container, run_once_pod, trainer_env

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
    env = trainer_env(plan.spec, own | ca_bundle_env(plan.spec))  # no headers of services
    staging = container(
        plan, settings, names.STAGING_CONTAINER, sizing=sized, env=env, for_driver=True
    ) | {
        "command": ["python", "-m", "raggrpo_staging", "--result", TERMINATION_LOG],
    }
    return run_once_pod(
        job,
        plan,
        settings,
        names.staging_name(job.name, job.uid),
        staging,
        sizing=sized,
        input_hash=action.request_hash,
        grace_seconds=GRACE_SECONDS,
    )
