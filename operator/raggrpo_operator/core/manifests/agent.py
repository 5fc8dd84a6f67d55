"""The container of an agent: a Deployment and a Service, and the Service of the gateway.

Its pods are not among the pods that the job's NetworkPolicy admits to Ray's ports. They have no
volumes of the job, and only the environment that their own spec names.
"""

from dataclasses import replace

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.agent import AgentContainer
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.lifecycle.actions import StartAgent
from raggrpo_operator.core.sizing.size import sizing_for

from .cluster_settings import ClusterSettings
from .metadata import Manifest
from .pods import container, job_variables, literal, plain_env, pod_spec
from .service_pods import deployment, server_ports_and_probes, service, service_address


def render_agent(job: Metadata, settings: ClusterSettings, action: StartAgent) -> Manifest:
    """Return the Deployment of an agent's container."""
    own = action.container
    spec = action.plan.spec.model_copy(update={"volumes": []})
    plan = replace(action.plan, spec=spec, image=own.image)
    sized = sizing_for(plan.sizing, PodRole.AGENT)
    url = gateway_url(job)
    gateway = {"OPENAI_BASE_URL": url, "OPENAI_API_BASE": url, "OPENAI_API_KEY": names.NO_API_KEY}
    env = [*plain_env(gateway), *job_variables(own.env)]
    server = container(plan, settings, names.AGENT_CONTAINER, sizing=sized, env=env)
    server |= {
        name: [literal(word) for word in words]
        for name, words in (("command", own.command), ("args", own.args))
        if words
    }
    start_seconds = spec.recovery.deadlines.provisioning_seconds
    server |= server_ports_and_probes(own.port, own.health_path, start_seconds)
    pod = pod_spec(plan, settings, server, sizing=sized)
    return deployment(
        job,
        names.agent_name(job.name, job.uid),
        PodRole.AGENT,
        _label(PodRole.AGENT),
        pod,
        replicas=own.replicas,
        spec_hash={names.LABEL_SPEC_HASH: action.spec_hash},
    )


def render_agent_service(job: Metadata, own: AgentContainer) -> Manifest:
    """Return the Service of an agent's container."""
    name = names.agent_name(job.name, job.uid)
    return service(job, name, _label(PodRole.AGENT), own.port)


def render_gateway_service(job: Metadata) -> Manifest:
    """Return the Service of the gateway, whose pod is the Ray head."""
    name = names.gateway_name(job.name)
    return service(job, name, _label(PodRole.HEAD), names.GATEWAY_PORT, names.GATEWAY_PORT)


def gateway_url(job: Metadata) -> str:
    """Return the URL at which applications outside the head reach the gateway."""
    address = service_address(job.namespace, names.gateway_name(job.name), names.GATEWAY_PORT)
    return f"{address}/v1"


def agent_address(job: Metadata, own: AgentContainer) -> str:
    """Return the base URL of an agent's container."""
    return service_address(job.namespace, names.agent_name(job.name, job.uid), own.port)


def _label(role: PodRole) -> dict[str, str]:
    return {names.LABEL_ROLE: str(role)}
