"""Create and delete a job's objects. All operations are idempotent."""

import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    PodPlan,
    StartAgent,
    StartPreflight,
    StartPush,
    StartRetriever,
    StartStaging,
)
from raggrpo_operator.core.manifests.agent import (
    render_agent,
    render_agent_service,
    render_gateway_service,
)
from raggrpo_operator.core.manifests.claim import render_claims
from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.core.manifests.config_map import render_config_map
from raggrpo_operator.core.manifests.network_policy import render_network_policies
from raggrpo_operator.core.manifests.preflight_pod import render_preflight_pod
from raggrpo_operator.core.manifests.push_pod import render_push_pod
from raggrpo_operator.core.manifests.ray_cluster import render_ray_cluster
from raggrpo_operator.core.manifests.retriever import render_deployment, render_service
from raggrpo_operator.core.manifests.staging_pod import render_staging_pod
from raggrpo_operator.core.manifests.token_secret import TokenRef, render_token_secret, secret_name
from raggrpo_operator.errors import AlreadyExists, NotFound, TransientError
from raggrpo_operator.kube.client import (
    CLAIMS,
    CONFIG_MAPS,
    DEPLOYMENTS,
    SERVICES,
    KubeClient,
    Manifest,
)
from raggrpo_operator.kube.cluster_objects import is_being_deleted, label_number, labels_of
from raggrpo_operator.kubernetes_runtime.process.installation_keys import InstallationKeys

from .owned_objects import OwnedObjects, name_taken

log = logging.getLogger(__name__)

MAX_RECORDS = 10
"""Number of newest attempts whose configuration is retained as a ConfigMap."""
NO_KUBERAY = (
    "the API server does not serve RayClusters: install KubeRay 1.6.0 or newer "
    "(CustomResourceDefinition rayclusters.ray.io and its operator)"
)


@dataclass(frozen=True, slots=True)
class Children:
    """Creates and deletes the objects that a job owns."""

    client: KubeClient
    settings: ClusterSettings
    keys: InstallationKeys

    @property
    def owned(self) -> OwnedObjects:
        """Writer that changes only objects that a job owns."""
        return OwnedObjects(self.client)

    async def start_preflight(self, job: Metadata, action: StartPreflight) -> None:
        """Create the preflight pod.

        Raises TransientError while a terminating pod, or a pod of another spec, has its name.
        """
        pod = render_preflight_pod(job, self.settings, action)
        await self._start_pod(job, action.plan, pod)

    async def start_staging(self, job: Metadata, action: StartStaging) -> None:
        """Create the staging pod; raises like `start_preflight`."""
        await self._start_pod(job, action.plan, render_staging_pod(job, self.settings, action))

    async def start_push(self, job: Metadata, action: StartPush) -> None:
        """Create the push pod; raises like `start_preflight`."""
        await self._start_pod(job, action.plan, render_push_pod(job, self.settings, action))

    async def start_retriever(self, job: Metadata, action: StartRetriever) -> None:
        """Apply the Service and Deployment of a managed retriever.

        The Deployment is applied last, because its existence marks the retriever as started.
        """
        await self._ensure_network_policy(job, action.plan)
        await self.owned.apply(job, render_service(job, action.name))
        await self.owned.apply(job, render_deployment(job, self.settings, action))

    async def start_agent(self, job: Metadata, action: StartAgent) -> None:
        """Apply the Services and the Deployment of an agent's container; see `start_retriever`.

        The application may resolve the name of the gateway when it starts.
        """
        await self._ensure_network_policy(job, action.plan)
        await self.owned.apply(job, render_gateway_service(job))
        await self.owned.apply(job, render_agent_service(job, action.container))
        await self.owned.apply(job, render_agent(job, self.settings, action))

    async def ensure_services(
        self, job: Metadata, services: Mapping[str, str], agent: AgentSpec | None
    ) -> None:
        """Apply the Services that an attempt needs.

        `services` maps the endpoints of managed retrievers to Service names.
        """
        for endpoint, name in services.items():
            await self.owned.apply(job, render_service(job, endpoint, name))
        if agent is not None and agent.is_service:
            await self.owned.apply(job, render_gateway_service(job))
        if agent is not None and agent.container is not None:
            await self.owned.apply(job, render_agent_service(job, agent.container))

    async def stop_servers(self, job: Metadata, deployments: Collection[Manifest]) -> None:
        """Delete Deployments, and the Services of the same names."""
        for deployment in deployments:
            await self.owned.delete(job, DEPLOYMENTS, deployment)
            metadata = deployment["metadata"]
            with suppress(NotFound):
                service = await self.client.get(SERVICES, metadata["namespace"], metadata["name"])
                await self.owned.delete(job, SERVICES, service)

    async def create_cluster(self, job: Metadata, action: CreateCluster) -> None:
        """Create the NetworkPolicy, token Secret and RayCluster; reuse a RayCluster that exists."""
        await self._ensure_network_policy(job, action.plan)
        await self._ensure_claims(job, action.plan)
        token = await self._ensure_token(job)
        cluster = render_ray_cluster(job, self.settings, action, token)
        try:
            existing = await self.owned.create(job, cluster)
        except NotFound as error:
            raise NotFound(f"{NO_KUBERAY} ({error})") from error
        if existing is not None and is_being_deleted(existing):
            name = existing["metadata"]["name"]
            raise TransientError(f"waiting for the earlier RayCluster {name} to terminate")

    async def record_config(
        self, job: Metadata, config: TrainerConfig, records: Collection[Manifest]
    ) -> None:
        """Create the ConfigMap with an attempt's configuration; retain the newest MAX_RECORDS."""
        await self.owned.create(job, render_config_map(job, config=config))
        newest_first = sorted(records, key=_attempt_number, reverse=True)
        for surplus in newest_first[MAX_RECORDS - 1 :]:
            await self.owned.delete(job, CONFIG_MAPS, surplus)

    async def _start_pod(self, job: Metadata, plan: PodPlan, pod: Manifest) -> None:
        """Create a pod that is labeled with the hash of its input, and what the pod needs."""
        await self._ensure_network_policy(job, plan)
        await self._ensure_claims(job, plan)
        existing = await self.owned.create(job, pod)
        if existing is None:
            return
        expected = labels_of(pod)[names.LABEL_SPEC_HASH]
        if is_being_deleted(existing) or labels_of(existing).get(names.LABEL_SPEC_HASH) != expected:
            name = existing["metadata"]["name"]
            raise TransientError(f"waiting for the earlier pod {name} to terminate")

    async def _ensure_network_policy(self, job: Metadata, plan: PodPlan) -> None:
        """Apply the NetworkPolicies, which must exist before the job's first pod."""
        for policy in render_network_policies(job, self.settings, plan.spec):
            await self.owned.apply(job, policy)

    async def _ensure_claims(self, job: Metadata, plan: PodPlan) -> None:
        """Create the claims of the job's templates; a claim that exists is used as it is.

        Raises NameTaken for a claim that the operator did not create for a job of this name.
        """
        for _, claim in render_claims(job, plan.spec):
            metadata = claim["metadata"]
            try:
                existing = await self.client.get(CLAIMS, job.namespace, metadata["name"])
            except NotFound:
                await self.client.create(claim)
                continue
            if is_being_deleted(existing):
                raise TransientError(f"claim {metadata['name']} of an earlier job is terminating")
            if not metadata["labels"].items() <= labels_of(existing).items():
                raise name_taken(claim)

    async def _ensure_token(self, job: Metadata) -> TokenRef:
        """Create the Secret with the token for the job's Ray clusters."""
        key_id, key = self.keys.current()
        name = secret_name(key, job)
        secret = render_token_secret(job, name=name, token=self.keys.token(key_id, job.uid))
        try:
            await self.client.create(secret)
        except AlreadyExists:  # the operator created it: only the operator can derive the name
            log.debug("Secret %s already exists", name)
        return TokenRef(name, key_id)


def _attempt_number(config_map: Manifest) -> int:
    return label_number(config_map, names.LABEL_ATTEMPT) or 0
