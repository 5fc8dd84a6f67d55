"""NetworkPolicy of a job's pods.

The pods accept connections from each other, from the operator on the ports of Ray's Jobs API and of
the trainer's progress, and from scrapers on the latter, which also serves metrics. All other ports
of Ray (GCS, client, agents, workers, metrics) are closed to them. Any client that reaches Ray's
ports could run code in the pods, so Ray also requires a token.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.job_spec import JobSpec

from .cluster_settings import ClusterSettings
from .egress import egress_rules
from .metadata import Manifest, child_metadata
from .policy_selectors import job_pods, namespace_peer, policy_port


def render_network_policy(job: Metadata, settings: ClusterSettings, spec: JobSpec) -> Manifest:
    """Return the policy for all pods of the job, including preflight and retrievers."""
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
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(job, names.network_policy_name(job.name, job.uid)),
        "spec": {
            "podSelector": job_pods(job),
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": egress_rules(job, settings, spec),
        },
    }
