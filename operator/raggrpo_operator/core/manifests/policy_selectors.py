"""Selectors and ports of NetworkPolicy rules."""

from raggrpo_api import names
from raggrpo_api.job import Metadata

from .metadata import Manifest

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def job_pods(job: Metadata) -> Manifest:
    """Return the selector of the job's pods."""
    return {"matchLabels": {names.LABEL_JOB: job.name}}


def namespace_peer(namespace: str) -> Manifest:
    """Return the peer that matches all pods of a namespace."""
    return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: namespace}}}


def policy_port(number: int, protocol: str = "TCP") -> Manifest:
    """Return the port entry of a NetworkPolicy rule."""
    return {"protocol": protocol, "port": number}
