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
from .metadata import Manifest
from .pods import TERMINATION_LOG, container, run_once_pod, trainer_env


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
    }
    return run_once_pod(
        job,
        plan,
        settings,
        names.preflight_name(job.name, job.uid),
        preflight,
        sizing=sized,
        input_hash=action.spec_hash,
        grace_seconds=1,
    )
