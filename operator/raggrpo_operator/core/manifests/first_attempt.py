"""Everything that a job's first attempt creates in a cluster, except the token's Secret."""

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.preflight import Facts
from raggrpo_operator.core.lifecycle.readiness import spec_hash
from raggrpo_operator.core.sizing.grace import grace_seconds
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import Resolved, trainer_config

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
    sizing = size(resolved.spec, facts)
    config = trainer_config(job, resolved, number=1, facts=facts)
    found = {
        "preflight": render_preflight_pod(
            job, settings, config=config, spec_hash=spec_hash(job), sizing=sizing
        )
    }
    for endpoint in resolved.spec.retrieval.endpoints:
        if endpoint.managed is not None:
            deployment, service = render_retriever(job, settings, endpoint=endpoint, sizing=sizing)
            found[f"retriever-{endpoint.name}"] = deployment
            found[f"retriever-{endpoint.name}-service"] = service
    return found | {
        "networkpolicy": render_network_policy(job, settings),
        "raycluster": render_ray_cluster(
            job,
            settings,
            number=1,
            sizing=sizing,
            grace_seconds=grace_seconds(resolved.spec, job.status),
        ),
        "configmap": render_config_map(job, config=config),
    }
