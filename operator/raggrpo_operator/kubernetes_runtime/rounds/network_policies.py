"""`NetworkPolicies`: restore and update the NetworkPolicies of jobs that have pods.

A policy is outdated if it was edited, or if the settings or the release of the operator have
changed since the job started.
"""

import logging
from collections.abc import Mapping

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.config import content_hash
from raggrpo_operator.core.manifests.network_policy import render_network_policies
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey, owned_by
from raggrpo_operator.kubernetes_runtime.watching.trimming import SPEC_HASH

from .children import Children

log = logging.getLogger(__name__)


class NetworkPolicies:
    """Compares the cached policies of a job with the rendered ones, once per version of both."""

    def __init__(self, children: Children, objects: ClusterObjects) -> None:
        self._children, self._objects = children, objects
        self._checked: dict[JobKey, tuple[int, Mapping[str, str]]] = {}

    async def ensure(self, key: JobKey, job: RagGrpoJob) -> None:
        """Apply the policies if the job has pods and a policy is missing or differs.

        Raises:
            OperatorError: A policy cannot be applied.

        """
        if not self._objects.pods.get(key):
            return
        cached = self._cached(key, job)
        versions = {name: each["metadata"]["resourceVersion"] for name, each in cached.items()}
        if cached and self._checked.get(key) == (job.metadata.generation, versions):
            return
        spec = resolve(job, job.status.preflight.known_facts).spec
        for policy in render_network_policies(job.metadata, self._children.settings, spec):
            name = policy["metadata"]["name"]
            current = cached.get(name)
            if current is None or current[SPEC_HASH] != content_hash(policy["spec"]):
                await self._children.owned.apply(job.metadata, policy)
                log.info("restored NetworkPolicy %s", name)
        self._checked[key] = job.metadata.generation, versions

    def remove(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._checked.pop(key, None)

    def _cached(self, key: JobKey, job: RagGrpoJob) -> dict[str, Manifest]:
        """Return the policies of the job by name."""
        policies = owned_by(job.metadata.uid, self._objects.network_policies.get(key, ()))
        return {each["metadata"]["name"]: each for each in policies}
