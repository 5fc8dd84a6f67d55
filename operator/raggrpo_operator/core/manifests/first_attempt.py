"""Everything that a job's first attempt creates in a cluster, except the token's Secret."""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.preflight import Facts
from raggrpo_operator.core.lifecycle.actions import PodPlan, StartPreflight, StartRetriever
from raggrpo_operator.core.lifecycle.launch import create_cluster
from raggrpo_operator.core.lifecycle.readiness import spec_hash
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import Resolved, trainer_config, trainer_image

from .cluster_settings import ClusterSettings
from .config_map import render_config_map
from .metadata import Manifest
from .network_policy import render_network_policy
from .preflight_pod import render_preflight_pod
from .ray_cluster import render_ray_cluster
from .retriever import render_retriever


def render_first_attempt(
    job: RagGrpoJob, resolved: Resolved, settings: ClusterSettings, facts: Facts | None = None
) -> dict[str, Manifest]:
    """Return the manifests by purpose, in order of creation."""
    metadata, spec, status = job.metadata, resolved.spec, job.status
    image = trainer_image(spec, status.pinned, settings.trainer_image)
    plan = PodPlan(spec, image, size(spec, facts))
    config = trainer_config(job, resolved, number=1, facts=facts)
    preflight = StartPreflight(plan, config, spec_hash(job))
    cluster = create_cluster(plan, 1, status)
    found = {"preflight": render_preflight_pod(metadata, settings, preflight)}
    for name, managed in spec.retrieval.managed.items():
        deployment, service = render_retriever(
            metadata, settings, StartRetriever(plan, name, managed)
        )
        found[f"retriever-{name}"] = deployment
        found[f"retriever-{name}-service"] = service
    return found | {
        "networkpolicy": render_network_policy(metadata, settings),
        "raycluster": render_ray_cluster(metadata, settings, cluster),
        "configmap": render_config_map(metadata, config=config),
    }
