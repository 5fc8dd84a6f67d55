"""`NetworkPolicies`: restore and update the NetworkPolicies of jobs that have pods.

A policy is outdated if it was edited, or if the settings or the release of the operator have
changed since the job started.
"""

import logging

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.config import content_hash
from raggrpo_operator.core.manifests.network_policy import render_network_policy
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey, owned_by
from raggrpo_operator.kubernetes_runtime.watching.trimming import SPEC_HASH

from .children import Children

log = logging.getLogger(__name__)


class NetworkPolicies:
    """Compares the cached policy of a job with the rendered one, once per version of both."""

    def __init__(self, children: Children, objects: ClusterObjects) -> None:
        self._children, self._objects = children, objects
        self._checked: dict[JobKey, tuple[int, str]] = {}

    async def ensure(self, key: JobKey, job: RagGrpoJob) -> None:
        """Apply the policy if the job has pods and the policy is missing or differs.

        Raises:
            OperatorError: The policy cannot be applied.

        """
        if not self._objects.pods.get(key):
            return
        cached = self._cached(key, job)
        version = job.metadata.generation, cached["metadata"]["resourceVersion"] if cached else ""
        if cached and self._checked.get(key) == version:
            return
        spec = resolve(job, job.status.preflight.known_facts).spec
        policy = render_network_policy(job.metadata, self._children.settings, spec)
        if not cached or cached[SPEC_HASH] != content_hash(policy["spec"]):
            await self._children.owned.apply(job.metadata, policy)
            log.info("restored NetworkPolicy %s", policy["metadata"]["name"])
        self._checked[key] = version

    def remove(self, key: JobKey) -> None:
        """Drop the state of a deleted job."""
        self._checked.pop(key, None)

    def _cached(self, key: JobKey, job: RagGrpoJob) -> Manifest | None:
        name = names.network_policy_name(job.metadata.name, job.metadata.uid)
        policies = owned_by(job.metadata.uid, self._objects.network_policies.get(key, ()))
        return next((each for each in policies if each["metadata"]["name"] == name), None)
