"""The push pod, which uploads the results of a complete job.

The termination message of its container is the outcome.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.job_variables import job_variables
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.lifecycle.actions import StartPush
from raggrpo_operator.core.sizing.size import sizing_for

from .cluster_settings import ClusterSettings
from .metadata import Manifest
from .pods import TERMINATION_LOG, ca_bundle_env, container, run_once_pod, trainer_env


def render_push_pod(job: Metadata, settings: ClusterSettings, action: StartPush) -> Manifest:
    """Return the pod that uploads the results, labeled with the hash of the request."""
    plan = action.plan
    sized = sizing_for(plan.sizing, PodRole.PUSH)
    own = job_variables(action.job) | ca_bundle_env(plan.spec)
    own[names.ENV_PROGRESS_PORT] = str(names.PROGRESS_PORT)
    env = trainer_env(plan.spec, own)  # no headers of services
    push = container(
        plan, settings, names.PUSH_CONTAINER, sizing=sized, env=env, for_driver=True
    ) | {
        "command": ["python", "-m", names.PUSH_RESULTS, "--result", TERMINATION_LOG],
    }
    return run_once_pod(
        job,
        plan,
        settings,
        names.push_name(job.name, job.uid),
        push,
        sizing=sized,
        input_hash=action.request_hash,
        grace_seconds=1,
    )
