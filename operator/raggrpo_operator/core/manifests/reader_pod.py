"""A pod that mounts a job's volumes read-only, for `kubectl raggrpo logs`."""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.sizing import PodRole, PodSizing, Sizing
from raggrpo_operator.core.lifecycle.actions import PodPlan
from raggrpo_operator.core.spec.resolve import trainer_image

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata
from .pods import container, plain_env, pod_spec

READER = "reader"
"""Name of the pod's container."""
MAX_SECONDS = 600
"""Maximum lifetime of the pod in seconds, in case the command cannot delete the pod."""
SIZING = PodSizing(role=PodRole.PREFLIGHT, cpu="50m", memory="64Mi")


def render_reader_pod(job: RagGrpoJob, name: str, image: str) -> Manifest:
    """Return the pod; `image` is used for jobs without `spec.image`.

    The pod has no job label, so the operator does not count the exit of the pod as a loss.
    """
    plan = PodPlan(job.spec, trainer_image(job.spec, job.status.pinned, image), Sizing())
    settings = ClusterSettings(trainer_image=image, operator_namespace="")
    reading = container(
        plan, settings, READER, sizing=SIZING, env=plain_env({}), read_only_claims=True
    ) | {"command": ["sleep", str(MAX_SECONDS)]}
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
        "spec": pod_spec(plan, settings, reading, sizing=SIZING)
        | {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "activeDeadlineSeconds": MAX_SECONDS,
        },
    }
