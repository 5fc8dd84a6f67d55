"""Creates and deletes a job's objects. Every step is safe to repeat; decides nothing."""

import logging
from collections.abc import Collection
from dataclasses import dataclass

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.trainer_config import TrainerConfig
from raggrpo_operator.core.lifecycle.actions import CreateCluster, StartPreflight, StartRetriever
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.config_map import render_config_map
from raggrpo_operator.core.manifests.network_policy import render_network_policy
from raggrpo_operator.core.manifests.preflight_pod import render_preflight_pod
from raggrpo_operator.core.manifests.ray_cluster import render_ray_cluster
from raggrpo_operator.core.manifests.retriever import render_retriever
from raggrpo_operator.core.manifests.token_secret import render_token_secret
from raggrpo_operator.errors import Conflict, NotFound, TransientError
from raggrpo_operator.kube.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    KubeClient,
    Manifest,
    Resource,
    resource_of,
)
from raggrpo_operator.kube.cluster_objects import is_going, owner_uids
from raggrpo_operator.kubernetes_runtime.process.installation_keys import InstallationKeys

log = logging.getLogger(__name__)

KEPT_RECORDS = 10
"""Configurations of finished attempts that are kept as ConfigMaps."""
NO_KUBERAY = (
    "the API server knows no RayCluster: install KubeRay 1.6.0 or newer "
    "(CustomResourceDefinition rayclusters.ray.io and its operator)"
)


@dataclass(frozen=True, slots=True)
class Children:
    """The objects that the operator makes for jobs."""

    client: KubeClient
    settings: ClusterSettings
    keys: InstallationKeys

    async def start_preflight(self, job: Metadata, action: StartPreflight) -> None:
        """Create the preflight pod; one for another spec has to be gone first."""
        existing = await self._create(job, render_preflight_pod(job, self.settings, action))
        if existing is None:
            return
        label = existing["metadata"].get("labels", {}).get(names.LABEL_SPEC_HASH)
        if is_going(existing) or label != action.spec_hash:
            name = existing["metadata"]["name"]
            raise TransientError(f"pod {name} of an earlier preflight is still being deleted")

    async def start_retriever(self, job: Metadata, action: StartRetriever) -> None:
        """Apply Deployment and Service of a managed retriever."""
        for manifest in render_retriever(job, self.settings, action):
            await self.client.apply(manifest)

    async def stop_retrievers(self, job: Metadata, deployments: Collection[Manifest]) -> None:
        """Delete the retrievers' Deployments and Services."""
        for deployment in deployments:
            await self.delete(DEPLOYMENTS, deployment)
            metadata = deployment["metadata"]
            try:
                service = await self.client.get(SERVICES, metadata["namespace"], metadata["name"])
            except NotFound:
                continue
            if job.uid in owner_uids(service):
                await self.delete(SERVICES, service)

    async def create_cluster(self, job: Metadata, action: CreateCluster) -> None:
        """Create token, NetworkPolicy and RayCluster, which is never applied again."""
        key_id = self.keys.current_id
        secret = render_token_secret(job, key_id=key_id, token=self.keys.token(key_id, job.uid))
        try:
            await self.client.create(secret)
        except Conflict:  # the name holds the uid, so the one that exists is the same
            log.debug("the Secret %s exists", secret["metadata"]["name"])
        await self.client.apply(render_network_policy(job, self.settings))
        try:
            existing = await self._create(job, render_ray_cluster(job, self.settings, action))
        except NotFound as error:
            raise NotFound(f"{NO_KUBERAY} ({error})") from error
        if existing is not None and is_going(existing):
            name = existing["metadata"]["name"]
            raise TransientError(f"the earlier RayCluster {name} is still being deleted")

    async def record(
        self, job: Metadata, config: TrainerConfig, records: Collection[Manifest]
    ) -> None:
        """Create the record of an attempt's configuration and keep the newest ones."""
        await self._create(job, render_config_map(job, config=config))
        older = sorted(records, key=_attempt, reverse=True)
        for surplus in older[KEPT_RECORDS - 1 :]:
            await self.delete(CONFIG_MAPS, surplus)

    async def delete(self, resource: Resource, thing: Manifest) -> None:
        """Delete exactly this object, unless it is already being deleted."""
        metadata = thing["metadata"]
        if is_going(thing):
            return
        try:
            await self.client.delete(
                resource, metadata["namespace"], metadata["name"], metadata["uid"]
            )
        except (NotFound, Conflict) as gone:  # gone, or another object took its name
            log.info("%s %s was gone already: %s", resource.plural, metadata["name"], gone)

    async def _create(self, job: Metadata, manifest: Manifest) -> Manifest | None:
        """Create an object; return the one that exists when it is this job's own."""
        namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
        try:
            await self.client.create(manifest)
        except Conflict:
            existing = await self.client.get(resource_of(manifest), namespace, name)
            if job.uid not in owner_uids(existing):
                raise TransientError(
                    f"{manifest['kind']} {name} exists and is not this job's: delete it "
                    "or give the job another name"
                ) from None
            return existing
        return None


def _attempt(config_map: Manifest) -> int:
    return int(config_map["metadata"]["labels"].get(names.LABEL_ATTEMPT, "0"))
