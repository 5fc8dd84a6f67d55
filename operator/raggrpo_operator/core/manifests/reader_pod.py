"""Temporary pods with a job's volumes, in which `kubectl raggrpo` runs commands."""

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.memory.arithmetic import EXPORT_BYTES_PER_PARAMETER
from raggrpo_api.memory.parameters import checkpoint_bytes
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.sizing import PodRole, PodSizing, Sizing
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import Facts
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_operator.core.lifecycle.actions import PodPlan
from raggrpo_operator.core.sizing.pod_sizing import upload
from raggrpo_operator.core.sizing.size import size, sizing_for
from raggrpo_operator.core.spec.resolve import resolve, trainer_image

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, plain_env, pod_spec, trainer_env

READER = "reader"
"""Name of the pod's container."""
MAX_SECONDS = 600
"""Lifetime of a pod that reads files, in case the command cannot delete the pod."""
EXPORT_BYTES_PER_SECOND = 10_000_000
"""Speed of a slow volume or network, from which the time limit of an export is derived."""
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
    return _sleeping_pod(job, name, plan, settings, reading, SIZING, seconds=MAX_SECONDS)


def render_trainer_pod(
    job: RagGrpoJob, name: str, image: str, config: TrainerConfig, *, exports: bool = False
) -> Manifest:
    """Return a pod with the volumes and variables of the trainer, for its tools.

    With `exports`, it has memory and time to export a checkpoint and to upload the model.
    """
    facts = job.status.preflight.known_facts
    resolved = resolve(job, facts).spec
    used = trainer_image(job.spec, job.status.pinned, image)
    plan = PodPlan(resolved, used, size(resolved, facts))
    settings = _settings(image)
    sizing, seconds = sizing_for(plan.sizing, PodRole.PREFLIGHT), MAX_SECONDS
    if exports:
        sizing, _ = upload(resolved, facts or Facts(), exports=True)
        seconds = export_seconds(resolved, facts or Facts())
    own = seal(config.to_json()) | {names.ENV_PREFLIGHT_OUTPUT: PREFLIGHT_OUTPUT}
    env = trainer_env(resolved, own, for_driver=True)
    tools = container(plan, settings, READER, sizing=sizing, env=env, for_driver=True)
    return _sleeping_pod(job, name, plan, settings, tools, sizing, seconds=seconds, for_driver=True)


def export_seconds(spec: JobSpec, facts: Facts) -> int:
    """Return the time to read a checkpoint and the initial model, and to write and upload one."""
    read = checkpoint_bytes(spec.training, facts)
    moved = read + 3 * EXPORT_BYTES_PER_PARAMETER * facts.parameters
    return MAX_SECONDS + moved // EXPORT_BYTES_PER_SECOND


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
    seconds: int,
    for_driver: bool = False,
) -> Manifest:
    """Return a pod in which commands can be run for some seconds."""
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
            main | {"command": ["sleep", str(seconds)]},
            sizing=sizing,
            for_driver=for_driver,
        )
        | {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": seconds,
        },
    }
