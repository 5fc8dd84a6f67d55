"""Who may reach a job's pods: each other, the operator, and scrapers on the metrics port.

Anyone who can reach Ray's ports can run code in the pods, so they are also guarded by Ray's token.
"""

from raggrpo_api import names
from raggrpo_api.job import Metadata

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_metadata

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def render_network_policy(job: Metadata, settings: ClusterSettings) -> Manifest:
    """Return the policy for all pods of the job; outgoing traffic is not restricted."""
    own_pods = {"matchLabels": {names.LABEL_JOB: job.name}}
    ingress: list[Manifest] = [
        {"from": [{"podSelector": own_pods}]},
        {
            "from": [
                {
                    "namespaceSelector": _named(settings.operator_namespace),
                    "podSelector": {"matchLabels": dict(settings.operator_labels)},
                }
            ],
            "ports": [_port(names.DASHBOARD_PORT), _port(names.PROGRESS_PORT)],
        },
    ]
    if settings.scrape_namespaces:
        scrapers = [{"namespaceSelector": _named(each)} for each in settings.scrape_namespaces]
        ingress.append({"from": scrapers, "ports": [_port(names.PROGRESS_PORT)]})
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(job, job.name),
        "spec": {"podSelector": own_pods, "policyTypes": ["Ingress"], "ingress": ingress},
    }


def _named(namespace: str) -> Manifest:
    return {"matchLabels": {NAMESPACE_NAME: namespace}}


def _port(number: int) -> Manifest:
    return {"protocol": "TCP", "port": number}
