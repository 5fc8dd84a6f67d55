"""NetworkPolicies of a job's pods and of the container of its agent.

The pods accept connections from each other, from the operator on the ports of Ray's Jobs API and of
the trainer's progress, and from scrapers on the latter, which also serves metrics. All other ports
of Ray (GCS, client, agents, workers, metrics) are closed to them. Any client that reaches Ray's
ports could run code in the pods, so Ray also requires a token.

The container of an agent is the user's application: it has its own policy and reaches only the
gateway on the head, DNS and the servers that its spec names. So does an application that is a
service outside the job: the pods of `allowFrom` reach the gateway.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.agent import AgentContainer, GatewayClient
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.core.spec.servers import agent_servers, servers

from .cluster_settings import ClusterSettings
from .egress import egress_rules
from .metadata import Manifest, child_metadata
from .policy_selectors import job_pods, namespace_peer, pods_of_role, policy_port


def render_network_policies(
    job: Metadata, settings: ClusterSettings, spec: JobSpec
) -> list[Manifest]:
    """Return the policy of the job's pods and, if there is one, of the agent's container."""
    policies = [_of_job(job, settings, spec)]
    agent = spec.rollout.agent
    if agent is not None and agent.container is not None:
        policies.append(_of_agent(job, settings, spec, agent.container))
    return policies


def _of_job(job: Metadata, settings: ClusterSettings, spec: JobSpec) -> Manifest:
    """Return the policy for all pods of the job except the agent's container."""
    operator = namespace_peer(settings.operator_namespace) | {
        "podSelector": {"matchLabels": dict(settings.operator_labels)}
    }
    ingress: list[Manifest] = [
        {"from": [{"podSelector": job_pods(job)}]},
        {
            "from": [operator],
            "ports": [policy_port(names.DASHBOARD_PORT), policy_port(names.PROGRESS_PORT)],
        },
    ]
    if settings.scrape_namespaces:
        scrapers = [namespace_peer(each) for each in settings.scrape_namespaces]
        ingress.append({"from": scrapers, "ports": [policy_port(names.PROGRESS_PORT)]})
    own: list[Manifest] = []
    agent = spec.rollout.agent
    if agent is not None and agent.container is not None:
        pods = [{"podSelector": pods_of_role(job, PodRole.AGENT)}]
        ingress.append({"from": pods, "ports": [policy_port(names.GATEWAY_PORT)]})
        own.append({"to": pods, "ports": [policy_port(agent.container.port)]})
    if agent is not None and agent.allow_from is not None:
        peer = _client(agent.allow_from)
        ingress.append({"from": [peer], "ports": [policy_port(names.GATEWAY_PORT)]})
    peers = [{"podSelector": job_pods(job)}]
    egress = egress_rules(job, settings, servers(spec), peers=peers, own_rules=own)
    name = names.network_policy_name(job.name, job.uid)
    return _policy(job, name, job_pods(job), ingress, egress)


def _of_agent(
    job: Metadata, settings: ClusterSettings, spec: JobSpec, container: AgentContainer
) -> Manifest:
    head = [{"podSelector": pods_of_role(job, PodRole.HEAD)}]
    ingress = [{"from": head, "ports": [policy_port(container.port)]}]
    gateway = [{"to": head, "ports": [policy_port(names.GATEWAY_PORT)]}]
    egress = egress_rules(job, settings, agent_servers(spec), own_rules=gateway)
    name = names.agent_policy_name(job.name, job.uid)
    return _policy(job, name, pods_of_role(job, PodRole.AGENT), ingress, egress)


def _client(client: GatewayClient) -> Manifest:
    labels = dict(pair.split("=") for pair in client.pod_selector.split(","))
    return namespace_peer(client.namespace) | {"podSelector": {"matchLabels": labels}}


def _policy(
    job: Metadata, name: str, pods: Manifest, ingress: list[Manifest], egress: list[Manifest]
) -> Manifest:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(job, name),
        "spec": {
            "podSelector": pods,
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress,
        },
    }
