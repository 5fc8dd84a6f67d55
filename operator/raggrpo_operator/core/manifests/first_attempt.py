"""All objects of a job with one attempt, except the token Secret."""

from dataclasses import replace

from raggrpo_api import names
from raggrpo_api.job import Metadata, RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.job_status import ClusterStatus
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.lifecycle.actions import (
    PodPlan,
    StartAgent,
    StartPreflight,
    StartPush,
    StartRetriever,
    StartStaging,
)
from raggrpo_operator.core.lifecycle.after_attempt.push import push_hash
from raggrpo_operator.core.lifecycle.before_attempt.launch import create_cluster, next_cluster
from raggrpo_operator.core.lifecycle.before_attempt.preflight import spec_hash
from raggrpo_operator.core.lifecycle.before_attempt.services import agent_hash
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import Resolved, trainer_config, trainer_image
from raggrpo_operator.core.spec.sources import request_hash, staging_request

from .agent import (
    agent_address,
    render_agent,
    render_agent_service,
    render_gateway_service,
)
from .claim import render_claims
from .cluster_settings import ClusterSettings
from .config_map import render_config_map
from .metadata import Manifest
from .network_policy import render_network_policies
from .preflight_pod import render_preflight_pod
from .push_pod import render_push_pod
from .ray_cluster import render_ray_cluster
from .retriever import render_deployment, render_service
from .service_pods import service_address
from .staging_pod import render_staging_pod
from .token_secret import NAME_DIGITS, TokenRef

PLACEHOLDER_DIGEST = "0" * NAME_DIGITS
"""Placeholder for the token Secret's digest, which requires the operator's installation key."""


def render_first_attempt(
    job: RagGrpoJob, resolved: Resolved, settings: ClusterSettings, facts: Facts | None = None
) -> dict[str, Manifest]:
    """Return the manifests by purpose, in order of creation."""
    metadata = job.metadata
    spec = resolved.spec
    status = job.status
    image = trainer_image(spec, status.pinned, settings.trainer_image)
    plan = PodPlan(spec, image, size(spec, facts))
    config = trainer_config(job, resolved, facts=facts)
    preflight = StartPreflight(plan, config, spec_hash(job))
    first = next_cluster(metadata, ClusterStatus())
    cluster = create_cluster(plan, replace(status, cluster=first))
    manifests = {
        **_network_policies(metadata, settings, spec),
        **{f"claim-{name}": claim for name, claim in render_claims(metadata, spec)},
        **_staging(job, plan, settings),
        "preflight": render_preflight_pod(metadata, settings, preflight),
    }
    addresses = {}
    for name, managed in spec.retrieval.managed.items():
        service = names.retriever_name(metadata.name, metadata.uid, name)
        addresses[name] = service_address(metadata.namespace, service, names.RETRIEVER_PORT)
        start = StartRetriever(plan, name, managed)
        manifests[f"retriever-{name}-service"] = render_service(metadata, name)
        manifests[f"retriever-{name}"] = render_deployment(metadata, settings, start)
    manifests |= _agent(metadata, plan, settings)
    agent = spec.rollout.agent
    own = agent.container if agent is not None else None
    submitted = trainer_config(
        job,
        resolved,
        facts=facts,
        retriever_addresses=addresses,
        agent_address=agent_address(metadata, own) if own is not None else "",
    )
    pushes = {"push": _push(job, plan, settings)} if spec.output.push else {}
    token = TokenRef(names.token_secret_name(metadata.name, PLACEHOLDER_DIGEST), "current")
    return manifests | {
        "raycluster": render_ray_cluster(metadata, settings, cluster, token),
        "configmap": render_config_map(metadata, config=submitted),
        **pushes,
    }


def _network_policies(
    job: Metadata, settings: ClusterSettings, spec: JobSpec
) -> dict[str, Manifest]:
    purposes = ("networkpolicy", "agent-networkpolicy")
    return dict(zip(purposes, render_network_policies(job, settings, spec), strict=False))


def _agent(job: Metadata, plan: PodPlan, settings: ClusterSettings) -> dict[str, Manifest]:
    agent = plan.spec.rollout.agent
    if agent is None or not agent.is_service:
        return {}
    gateway = {"gateway-service": render_gateway_service(job)}
    if agent.container is None:
        return gateway
    start = StartAgent(plan, agent.container, agent_hash(plan.spec))
    return gateway | {
        "agent-service": render_agent_service(job, agent.container),
        "agent": render_agent(job, settings, start),
    }


def _staging(job: RagGrpoJob, plan: PodPlan, settings: ClusterSettings) -> dict[str, Manifest]:
    request = staging_request(plan.spec, job.status.staging, use_hub_cache=False)
    if request is None:
        return {}
    action = StartStaging(plan, request, request_hash(plan.spec))
    return {"staging": render_staging_pod(job.metadata, settings, action)}


def _push(job: RagGrpoJob, plan: PodPlan, settings: ClusterSettings) -> Manifest:
    action = StartPush(plan, job, push_hash(job, job.status))
    return render_push_pod(job.metadata, settings, action)
