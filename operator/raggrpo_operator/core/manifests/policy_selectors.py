"""Selectors and ports of NetworkPolicy rules."""

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.status.sizing import PodRole

from .metadata import Manifest

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def job_pods(job: Metadata) -> Manifest:
    """Return the selector of the job's pods, except those of an agent's container."""
    no_agent = {"key": names.LABEL_ROLE, "operator": "NotIn", "values": [str(PodRole.AGENT)]}
    return {"matchLabels": {names.LABEL_JOB: job.name}, "matchExpressions": [no_agent]}


def pods_of_role(job: Metadata, role: PodRole) -> Manifest:
    """Return the selector of the job's pods with a role."""
    return {"matchLabels": {names.LABEL_JOB: job.name, names.LABEL_ROLE: str(role)}}


def namespace_peer(namespace: str) -> Manifest:
    """Return the peer that matches all pods of a namespace."""
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: namespace}}}


def policy_port(number: int, protocol: str = "TCP") -> Manifest:
    """Return the port entry of a NetworkPolicy rule."""
    return {"protocol": protocol, "port": number}
