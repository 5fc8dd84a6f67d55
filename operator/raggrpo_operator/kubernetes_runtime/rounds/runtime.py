"""`KubernetesRuntime`: observe a job's objects and perform the actions of `decide`."""

import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import assert_never

from raggrpo_api import names
from raggrpo_api.fields.base import AttemptNumber, ClusterNumber
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.progress import Progress
from raggrpo_api.trainer.sealed_config import open_sealed, seal
from raggrpo_api.trainer.staging import StagingProgress
from raggrpo_operator.core.lifecycle.actions import (
    Action,
    ApplyServices,
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    DeletePush,
    DeleteStaging,
    DumpStacks,
    StartAgent,
    StartPreflight,
    StartPush,
    StartRetriever,
    StartStaging,
    StopAgent,
    StopAttempt,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.before_attempt.start_from import start_path, unresolved_job
from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    Observed,
    PushObserved,
    StagingObserved,
    StartObserved,
)
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.errors import (
    AccessDenied,
    KeyMissing,
    KeyNotMounted,
    NameTaken,
    NotFound,
    OperatorError,
    TransientError,
    Unreachable,
)
from raggrpo_operator.kube.client import JOBS, PODS, RAY_CLUSTERS, KubeClient, Manifest
from raggrpo_operator.kube.cluster_objects import (
    ClusterObjects,
    JobKey,
    is_being_deleted,
    label_number,
    labels_of,
    owned_by,
)
from raggrpo_operator.kube.pod_evidence import Loss, Pod, StartProblem
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import EvidenceStore
from raggrpo_operator.ray_jobs import config_json

from .children import Children
from .gpu_devices import smallest_device
from .heads import Head, Heads
from .namespace_claims import NamespaceClaims
from .network_policies import NetworkPolicies
from .observe import (
    agent_deployments,
    are_all_live,
    cluster_number,
    cluster_with_orphaned_head,
    image_ids,
    is_head_ready,
    may_head_save,
    observed_agent,
    observed_cluster,
    observed_preflight,
    observed_push,
    observed_retrievers,
    observed_staging,
    oldest_cluster,
    running_address,
    service_names,
)
from .owned_objects import OwnedObjects
from .status_writer import StatusWriter

log = logging.getLogger(__name__)

ENTRYPOINT = f"exec {names.DRIVER_COMMAND}"
"""Command of a submission; with `exec`, Ray sends signals to the driver and not to a shell."""
EVIDENCE_SECONDS = 5.0
"""Seconds to wait for evidence in pod statuses; the kubelet reports an exit within 2 s."""
EARLIEST = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ReconcilerContext:
    """Shared dependencies of all rounds."""

    client: KubeClient
    objects: ClusterObjects
    children: Children
    heads: Heads
    evidence: EvidenceStore
    writer: StatusWriter
    clock: Callable[[], datetime]
    policies: NetworkPolicies
    claims: NamespaceClaims
    reads_nodes: bool = False
    """Whether the operator may list nodes, whose labels contain GPU memory."""


class KubernetesRuntime:
    """The runtime of one round of a job; `body` is the job as read at the start of the round."""

    def __init__(
        self, context: ReconcilerContext, body: Manifest, *, delay_seconds: float = 0.0
    ) -> None:
        self._context, self._body, self._delay_seconds = context, body, delay_seconds
        self._key, self._uid = JobKey.of(body), str(body["metadata"]["uid"])
        self.error: OperatorError | None = None
        """Error, such as AccessDenied, to report in the status although the round continues."""

    @property
    def body(self) -> Manifest:
        """The job as returned by the latest status write of the round."""
        return self._body

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Return an observation of the job's objects, newest attempt and progress."""
        context, now = self._context, self._context.clock()
        pods = list(context.objects.pods.get(self._key, ()))
        owned = owned_by(self._uid, pods)
        observed = Observed(
            staging=await self._staging(owned),
            preflight=observed_preflight(*self._run_once(owned, PodRole.PREFLIGHT)),
            push=await self._push(owned),
            retrievers=observed_retrievers(self._deployments(), pods, self._check_start),
            agent=observed_agent(
                self._deployments(), job.spec.rollout.agent, pods, self._check_start
            ),
            has_services=not self._missing_services(job),
            default_image=context.children.settings.trainer_image,
            delay_seconds=self._delay_seconds,
        )
        has_result = observed.preflight is not None and observed.preflight.result is not None
        if has_result and context.reads_nodes:
            observed = replace(observed, device=await smallest_device(context.client, job))
        if name := unresolved_job(job):
            observed = replace(observed, start=await self._start(job, name))
        number, ray_cluster = await self._ray_cluster(job)
        clusters = [*self._cached_clusters(), *([ray_cluster] if ray_cluster else [])]
        context.evidence.retain(self._key, _uids(clusters), _uids(pods))
        if ray_cluster is not None and self._losses(job, ray_cluster):
            # Kueue may have suspended the cluster, which the cached RayCluster does not show yet.
            ray_cluster = await self._live_cluster(ray_cluster["metadata"]["name"])
        if ray_cluster is None:
            return replace(observed, cluster=cluster_with_orphaned_head(job, pods, now))
        is_reachable, attempt, progress = await self._read_attempt(job, ray_cluster)
        cluster = self._observed_cluster(job, number, ray_cluster, is_reachable)
        if cluster.is_ready and attempt is None:
            cluster = replace(cluster, ray_version=await self._ray_version(ray_cluster))
        return replace(
            observed,
            cluster=cluster,
            attempt=None if cluster.is_lost else attempt,
            progress=None if cluster.is_lost else progress,
            is_head_reachable=is_reachable,
            missing_key=str(self.error) if _is_key_missing(self.error) else "",
            can_replace_cluster=context.children.keys.has_current,
            evidence_seconds=EVIDENCE_SECONDS,
        )

    async def _staging(self, owned: Collection[Manifest]) -> StagingObserved | None:
        """Return the staging pod, with its progress while it runs."""
        pods, problem, is_final = self._run_once(owned, PodRole.STAGING)
        observed = observed_staging(pods, problem, is_final)
        return observed and replace(observed, progress=await self._transfer_progress(pods))

    async def _push(self, owned: Collection[Manifest]) -> PushObserved | None:
        """Return the push pod, with its progress while it runs."""
        pods, problem, is_final = self._run_once(owned, PodRole.PUSH)
        observed = observed_push(pods, problem, is_final)
        return observed and replace(observed, progress=await self._transfer_progress(pods))

    async def _transfer_progress(self, pods: Collection[Manifest]) -> StagingProgress | None:
        address = running_address(pods)
        return await self._context.heads.transfer_progress(address) if address else None

    def _run_once(
        self, owned: Collection[Manifest], role: PodRole
    ) -> tuple[list[Manifest], StartProblem | None, bool]:
        """Return the pods of a role, their start problem, and whether that is final."""
        pods = [each for each in owned if _role(each) == role]
        now = self._context.clock()
        return pods, *self._context.evidence.start_problem(self._key, pods, now)

    async def _start(self, job: RagGrpoJob, name: str) -> StartObserved:
        """Return where the checkpoints of another job in the namespace are."""
        try:
            raw = await self._context.client.get(JOBS, self._key.namespace, name)
        except NotFound:
            namespace = self._key.namespace
            return StartObserved(problem=f"job {name} does not exist in namespace {namespace}")
        other = parse_job(raw)
        if not isinstance(other, RagGrpoJob):
            return StartObserved(problem=f"the spec of job {name} is invalid: {other[0].line()}")
        return start_path(job, other)

    def _check_start(self, pod: Pod) -> tuple[StartProblem | None, bool]:
        return self._context.evidence.start_problem(self._key, [pod], self._context.clock())

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        """Perform one action."""
        children = self._context.children
        match action:
            case StartStaging():
                await children.start_staging(job.metadata, action)
            case DeleteStaging():
                await self._delete_pods(job, PodRole.STAGING)
            case StartPreflight():
                await children.start_preflight(job.metadata, action)
            case DeletePreflight():
                await self._delete_pods(job, PodRole.PREFLIGHT)
            case StartPush():
                await children.start_push(job.metadata, action)
            case DeletePush():
                await self._delete_pods(job, PodRole.PUSH)
            case StartRetriever():
                await children.start_retriever(job.metadata, action)
            case StopRetrievers():
                agents = agent_deployments(self._deployments())
                retrievers = [each for each in self._deployments() if each not in agents]
                await children.stop_servers(job.metadata, retrievers)
            case ApplyServices(agent):
                services = service_names(self._deployments())
                await children.ensure_services(job.metadata, services, agent)
            case StartAgent():
                await children.start_agent(job.metadata, action)
            case StopAgent():
                agents = agent_deployments(self._deployments())
                await children.stop_servers(job.metadata, agents)
            case CreateCluster():
                await children.create_cluster(job.metadata, action)
            case DeleteCluster(number):
                await self._delete_cluster(job, number)
            case SubmitAttempt(config, number):
                await self._submit(job, config, number)
            case StopAttempt(number):
                await (await self._running_head(job)).jobs.stop(_submission_id(job, number))
            case DumpStacks():
                await (await self._running_head(job)).progress.dump_stacks()
            case _:
                assert_never(action)

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:  # noqa: ARG002
        """Persist the status."""
        self._body = await self._context.writer.write(self._body, status)

    async def restore_record(self, job: RagGrpoJob) -> None:
        """Recreate the running attempt's ConfigMap if it was deleted.

        The configuration is read from the Ray job that was submitted, which cannot be edited.
        """
        number, attempts = job.status.attempt, job.status.attempts
        records = self._records()
        if not attempts or not attempts[0].started or attempts[0].cause is not None:
            return
        if number in (label_number(each, names.LABEL_ATTEMPT) for each in records):
            return
        try:
            head = await self._running_head(job)
            environment = await head.jobs.environment(_submission_id(job, number))
            if not environment:  # the head has lost the Ray job; the next round handles that
                return
            config = TrainerConfig.model_validate_json(open_sealed(environment))
            if config.attempt.config_hash != job.status.config_hash:
                raise ValueError("submitted configuration has another hash")
            if (config.attempt.number, config.attempt.job_uid) != (number, self._uid):
                raise ValueError("submitted configuration is of another attempt")
            await self._context.children.record_config(job.metadata, config, records)
            log.info("recreated the ConfigMap of attempt %d", number)
        except NameTaken as error:
            self.error = error
        except OperatorError as error:
            log.info("recreating the ConfigMap of attempt %d failed: %s", number, error)
        except ValueError as error:  # the text of the error might quote the configuration
            kind = type(error).__name__
            log.warning("the submitted configuration of attempt %d is unreadable: %s", number, kind)

    async def restore_network_policy(self, job: RagGrpoJob) -> None:
        """Restore or update the NetworkPolicy of a job that has pods."""
        try:
            await self._context.policies.ensure(self._key, job)
        except OperatorError as error:
            self.error = error

    async def _ray_cluster(self, job: RagGrpoJob) -> tuple[ClusterNumber, Manifest | None]:
        """Return the number of the job's oldest Ray cluster and its RayCluster object, if any.

        While an old cluster is being deleted, two clusters can exist. The old cluster is returned,
        because it must be gone before a new cluster starts. If no cluster is cached, the current
        cluster is read from the API server.
        """
        current = job.status.cluster
        if (cached := oldest_cluster(self._cached_clusters(), current)) is not None:
            return cached
        if not job.status.attempts or job.status.completion_time:
            return current.number, None
        return current.number, await self._live_cluster(current.name)

    def _cached_clusters(self) -> list[Manifest]:
        return owned_by(self._uid, self._context.objects.ray_clusters.get(self._key, ()))

    async def _live_cluster(self, name: str) -> Manifest | None:
        try:
            ray_cluster = await self._context.client.get(RAY_CLUSTERS, self._key.namespace, name)
        except NotFound:
            return None
        return ray_cluster if owned_by(self._uid, [ray_cluster]) else None

    async def _read_attempt(
        self, job: RagGrpoJob, ray_cluster: Manifest
    ) -> tuple[bool, AttemptObserved | None, Progress | None]:
        """Return whether the head responds, the newest attempt, and its progress."""
        number = job.status.attempt
        if not is_head_ready(ray_cluster):
            return False, None, None
        try:
            head = self._head(ray_cluster)
            attempt = await head.jobs.status(_submission_id(job, number), number)
            # Read the progress last, so that the progress of an attempt that has ended is final.
            progress = await head.progress.read() if attempt else None
        except AccessDenied as error:
            self.error = self._token_error(ray_cluster, error)
        except Unreachable as error:
            log.info("%s", error)
        except OperatorError as error:
            self.error = error
        else:
            self._check_key(ray_cluster)
            return True, attempt, progress
        return False, None, None

    def _check_key(self, ray_cluster: Manifest) -> None:
        """Report a key that only this process still has; rounds continue."""
        try:
            self._context.children.keys.check_mounted(_key_id(ray_cluster))
        except KeyNotMounted as error:
            self.error = error

    async def _ray_version(self, ray_cluster: Manifest) -> str:
        try:
            return await self._head(ray_cluster).jobs.ray_version()
        except OperatorError as error:
            log.info("reading the Ray version failed: %s", error)
            return ""

    def _token_error(self, ray_cluster: Manifest, error: AccessDenied) -> AccessDenied:
        """Return `error` extended by the Secret with the head's token, and by the remedy."""
        name = ray_cluster["metadata"]["name"]
        secret = ray_cluster["spec"].get("authOptions", {}).get("secretName", "")
        return AccessDenied(
            f"{error}: the token in Secret {self._key.namespace}/{secret} differs from the "
            f"derived one: delete the Secret and RayCluster {name}; both are recreated"
        )

    def _observed_cluster(
        self, job: RagGrpoJob, number: ClusterNumber, ray_cluster: Manifest, is_reachable: bool
    ) -> ClusterObserved:
        evidence, now = self._context.evidence, self._context.clock()
        uid = ray_cluster["metadata"]["uid"]
        pods = owned_by(uid, self._context.objects.pods.get(self._key, ()))
        problem, is_final = evidence.start_problem(self._key, pods, now)
        has_started = bool(job.status.attempts and job.status.attempts[0].started)
        cluster = observed_cluster(
            number,
            ray_cluster,
            losses=self._losses(job, ray_cluster),
            problem=problem,
            problem_is_final=is_final and not has_started,
            is_reachable=is_reachable,
            all_pods_live=are_all_live(pods),
        )
        may_save = cluster.is_lost and may_head_save(pods, now)
        return replace(cluster, may_save=may_save, image_ids=image_ids(pods))

    def _losses(self, job: RagGrpoJob, ray_cluster: Manifest) -> list[Loss]:
        """Return the pods that the cluster has lost during the newest attempt.

        Losses before the driver started are excluded, because those pods have been replaced. Times
        in the status are in whole seconds. A loss in the same second in which the attempt was
        recorded, such as a preemption, therefore counts for the previous attempt.
        """
        attempts, recorded = job.status.attempts, job.status.restart_state.launch.cluster_since
        since = recorded + timedelta(seconds=1) if recorded else EARLIEST
        if attempts and attempts[0].started and attempts[0].cause is None:
            since = max(since, attempts[0].started)
        return self._context.evidence.losses(self._key, ray_cluster["metadata"]["uid"], since)

    async def _submit(self, job: RagGrpoJob, config: TrainerConfig, number: ClusterNumber) -> None:
        current, ray_cluster = await self._ray_cluster(job)
        if ray_cluster is None or current != number:
            raise TransientError(f"Ray cluster {number} does not exist")
        children = self._context.children
        text = config_json(config)
        services = service_names(self._deployments())
        await children.ensure_services(job.metadata, services, config.rollout.agent)
        await children.record_config(job.metadata, config, self._records())
        attempt = config.attempt.number
        await self._head(ray_cluster).jobs.submit(
            _submission_id(job, attempt),
            ENTRYPOINT,
            seal(text),
            {"attempt": str(attempt)},
        )

    async def _delete_pods(self, job: RagGrpoJob, role: PodRole) -> None:
        for pod in owned_by(self._uid, self._context.objects.pods.get(self._key, ())):
            if _role(pod) == role:
                await self._owned.delete(job.metadata, PODS, pod)

    async def _delete_cluster(self, job: RagGrpoJob, number: ClusterNumber) -> None:
        """Delete all clusters with this number, including a current one that is not cached."""
        current, cached = job.status.cluster, self._cached_clusters()
        matches = [each for each in cached if cluster_number(each, current) == number]
        if not matches and number == current.number:
            live = await self._live_cluster(current.name)
            matches = [live] if live is not None else []
        for each in matches:
            await self._owned.delete(job.metadata, RAY_CLUSTERS, each)

    async def _running_head(self, job: RagGrpoJob) -> Head:
        _, ray_cluster = await self._ray_cluster(job)
        if ray_cluster is None:
            raise TransientError("the job has no Ray cluster")
        return self._head(ray_cluster)

    def _head(self, ray_cluster: Manifest) -> Head:
        token = self._context.children.keys.token(_key_id(ray_cluster), self._uid)
        name = ray_cluster["metadata"]["name"]
        return self._context.heads.head(self._key.namespace, name, token)

    @property
    def _owned(self) -> OwnedObjects:
        return self._context.children.owned

    def _deployments(self) -> list[Manifest]:
        return owned_by(self._uid, self._context.objects.deployments.get(self._key, ()))

    def _missing_services(self, job: RagGrpoJob) -> set[str]:
        """Return the names of Services that do not exist although the job needs them now."""
        expected = {*service_names(self._deployments()).values()}
        expected |= set(map(_name, agent_deployments(self._deployments())))
        agent = job.spec.rollout.agent
        if agent is not None and agent.is_service:
            expected.add(names.gateway_name(job.metadata.name))
        services = owned_by(self._uid, self._context.objects.services.get(self._key, ()))
        return expected - {_name(each) for each in services if not is_being_deleted(each)}

    def _records(self) -> list[Manifest]:
        return owned_by(self._uid, self._context.objects.config_maps.get(self._key, ()))


def _key_id(ray_cluster: Manifest) -> str:
    annotations: dict[str, str] = ray_cluster["metadata"].get("annotations", {})
    return annotations.get(names.ANNOTATION_TOKEN_KEY, "")


def _is_key_missing(error: OperatorError | None) -> bool:
    return isinstance(error, KeyMissing) and not isinstance(error, KeyNotMounted)


def _uids(objects: Iterable[Manifest]) -> set[str]:
    return {each["metadata"]["uid"] for each in objects}


def _name(item: Manifest) -> str:
    return str(item["metadata"]["name"])


def _role(pod: Manifest) -> str:
    return labels_of(pod).get(names.LABEL_ROLE, "")


def _submission_id(job: RagGrpoJob, number: AttemptNumber) -> str:
    return names.submission_id(job.metadata.name, number)
