"""What rules for incoming and for outgoing traffic are made of."""

from raggrpo_api import names
from raggrpo_api.job import Metadata

from .metadata import Manifest

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def job_pods(job: Metadata) -> Manifest:
    """Return the selector of a job's pods in its namespace."""
    return {"matchLabels": {names.LABEL_JOB: job.name}}


def namespace_peer(namespace: str) -> Manifest:
    """Return the peers in a namespace."""
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: namespace}}}


def policy_port(number: int, protocol: str = "TCP") -> Manifest:
    """Return one port of a rule."""
    return {"protocol": protocol, "port": number}
