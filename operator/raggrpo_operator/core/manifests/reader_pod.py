"""Temporary pods with a job's volumes, in which `kubectl raggrpo` runs commands."""

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.sizing import PodRole, PodSizing, Sizing
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.lifecycle.actions import PodPlan
from raggrpo_operator.core.sizing.size import size, sizing_for
from raggrpo_operator.core.spec.resolve import resolve, trainer_image

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, plain_env, pod_spec, trainer_env

READER = "reader"
"""Name of the pod's container."""
MAX_SECONDS = 600
"""Maximum lifetime of the pod in seconds, in case the command cannot delete the pod."""
PREFLIGHT_OUTPUT = "/tmp/preflight.json"
SIZING = PodSizing(role=PodRole.PREFLIGHT, cpu="50m", memory="64Mi")


def render_reader_pod(job: RagGrpoJob, name: str, image: str) -> Manifest:
    """Return the pod; `image` is used for jobs without `spec.image`.

    The pod has no job label, so the operator does not count the exit of the pod as a loss.
    """
    spec = resolve(job).spec
    plan = PodPlan(spec, trainer_image(spec, job.status.pinned, image), Sizing())
    settings = _settings(image)
    reading = container(
        plan, settings, READER, sizing=SIZING, env=plain_env({}), read_only_claims=True
    )
    return _sleeping_pod(job, name, plan, settings, reading, SIZING)


def render_trainer_pod(job: RagGrpoJob, name: str, image: str, config: TrainerConfig) -> Manifest:
    """Return a pod with the volumes and variables of the trainer, for its tools."""
    facts = job.status.preflight.known_facts
    resolved = resolve(job, facts).spec
    used = trainer_image(job.spec, job.status.pinned, image)
    plan = PodPlan(resolved, used, size(resolved, facts))
    settings = _settings(image)
    sizing = sizing_for(plan.sizing, PodRole.PREFLIGHT)
    own = seal(config.to_json()) | {names.ENV_PREFLIGHT_OUTPUT: PREFLIGHT_OUTPUT}
    env = trainer_env(resolved, own, for_driver=True)
    tools = container(plan, settings, READER, sizing=sizing, env=env, for_driver=True)
    return _sleeping_pod(job, name, plan, settings, tools, sizing, for_driver=True)


def _settings(image: str) -> ClusterSettings:
    return ClusterSettings(trainer_image=image, operator_namespace="")


def _sleeping_pod(
    job: RagGrpoJob,
    name: str,
    plan: PodPlan,
    settings: ClusterSettings,
    main: Manifest,
    sizing: PodSizing,
    *,
    for_driver: bool = False,
) -> Manifest:
    """Return a pod in which commands can be run for MAX_SECONDS."""
    metadata = child_metadata(job.metadata, name)
    metadata["labels"] = {
        "app.kubernetes.io/part-of": "raggrpo",
        "app.kubernetes.io/component": READER,
        "app.kubernetes.io/instance": metadata["labels"]["app.kubernetes.io/instance"],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": pod_spec(
            plan,
            settings,
            main | {"command": ["sleep", str(MAX_SECONDS)]},
            sizing=sizing,
            for_driver=for_driver,
        )
        | {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": MAX_SECONDS,
        },
    }
