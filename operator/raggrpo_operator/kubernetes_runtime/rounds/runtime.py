"""`KubernetesRuntime`: observe and perform for `decide` in a cluster."""

import logging
from collections.abc import Callable
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
from raggrpo_operator.core.lifecycle.actions import (
    Action,
    CreateCluster,
    DeleteCluster,
    DeletePreflight,
    DumpStacks,
    StartPreflight,
    StartRetriever,
    StopAttempt,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.observed import AttemptObserved, ClusterObserved, Observed
from raggrpo_operator.errors import (
    AccessDenied,
    NameTaken,
    NotFound,
    OperatorError,
    TransientError,
    Unreachable,
)
from raggrpo_operator.kube.client import PODS, RAY_CLUSTERS, KubeClient, Manifest
from raggrpo_operator.kube.cluster_objects import (
    ClusterObjects,
    JobKey,
    label_number,
    labels_of,
    owned_by,
)
from raggrpo_operator.kube.pod_evidence import Loss
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import EvidenceStore
from raggrpo_operator.ray_jobs import config_json

from .children import Children
from .gpu_devices import smallest_device
from .heads import Head, Heads
from .observe import (
    all_live,
    cluster_number,
    ending_cluster,
    head_is_ready,
    image_ids,
    may_save,
    observed_cluster,
    observed_preflight,
    observed_retrievers,
    oldest_cluster,
    service_names,
)
from .owned_objects import OwnedObjects
from .status_writer import StatusWriter

log = logging.getLogger(__name__)

ENTRYPOINT = f"exec {names.DRIVER_COMMAND}"
"""`exec` passes Ray's signals to the driver without a shell."""
EVIDENCE_SECONDS = 5.0
"""How long to wait for the pod status; the kubelet reports an exit within two seconds."""
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
    reads_nodes: bool = False
    """Whether the operator may list nodes, whose labels contain GPU memory."""


class KubernetesRuntime:
    """One round of one job, based on the version of the job at its start."""

    def __init__(
        self, context: ReconcilerContext, body: Manifest, *, delay_seconds: float = 0.0
    ) -> None:
        self._context, self._body, self._delay_seconds = context, body, delay_seconds
        self._key, self._uid = JobKey.of(body), str(body["metadata"]["uid"])
        self.error: OperatorError | None = None
        """Error to report although the round continues: a rejected token or a name conflict."""

    @property
    def body(self) -> Manifest:
        """The job after the round's last write."""
        return self._body

    async def observe(self, job: RagGrpoJob) -> Observed:
        """Return what exists in the cluster for the job."""
        context, now = self._context, self._context.clock()
        pods = list(context.objects.pods.get(self._key, ()))
        mine = owned_by(self._uid, pods)
        preflights = [each for each in mine if _role(each) == PodRole.PREFLIGHT]
        problem, is_final = context.evidence.start_problem(self._key, preflights, now)
        observed = Observed(
            preflight=observed_preflight(preflights, problem, is_final),
            retrievers=observed_retrievers(self._deployments(), pods),
            default_image=context.children.settings.trainer_image,
            delay_seconds=self._delay_seconds,
        )
        has_result = observed.preflight is not None and observed.preflight.result is not None
        if has_result and context.reads_nodes:
            observed = replace(observed, device=await smallest_device(context.client, job))
        number, ray_cluster = await self._ray_cluster(job)
        if ray_cluster is not None and self._losses(job, ray_cluster):
            # A suspension that is not in the cache yet would explain them.
            ray_cluster = await self._live_cluster(ray_cluster["metadata"]["name"])
        if ray_cluster is None:
            return replace(observed, cluster=ending_cluster(job, pods, now))
        is_reachable, attempt, progress = await self._follow(job, ray_cluster)
        cluster = self._observed_cluster(job, number, ray_cluster, is_reachable)
        if cluster.is_ready and attempt is None:
            cluster = replace(cluster, ray_version=await self._ray_version(ray_cluster))
        return replace(
            observed,
            cluster=cluster,
            attempt=None if cluster.is_lost else attempt,
            progress=None if cluster.is_lost else progress,
            is_head_reachable=is_reachable,
            evidence_seconds=EVIDENCE_SECONDS,
        )

    async def perform(self, job: RagGrpoJob, action: Action) -> None:
        """Perform one action."""
        children = self._context.children
        match action:
            case StartPreflight():
                await children.start_preflight(job.metadata, action)
            case DeletePreflight():
                await self._delete_preflights(job)
            case StartRetriever():
                await children.start_retriever(job.metadata, action)
            case StopRetrievers():
                await children.stop_retrievers(job.metadata, self._deployments())
            case CreateCluster():
                await children.create_cluster(job.metadata, action)
            case DeleteCluster(number):
                await self._delete_cluster(job, number)
            case SubmitAttempt(config, number):
                await self._submit(job, config, number)
            case StopAttempt(number):
                await (await self._running_head(job)).jobs.stop(_submission(job, number))
            case DumpStacks():
                await (await self._running_head(job)).progress.dump_stacks()
            case _:
                assert_never(action)

    async def write_status(self, job: RagGrpoJob, status: JobStatus) -> None:  # noqa: ARG002
        """Persist the status."""
        self._body = await self._context.writer.write(self._body, status)

    async def restore_record(self, job: RagGrpoJob) -> None:
        """Put the running attempt's ConfigMap back if it was deleted.

        Its configuration is read from the submission, which cannot be changed.
        """
        number, attempts, records = job.status.attempt, job.status.attempts, self._records()
        if not attempts or not attempts[0].started or attempts[0].cause is not None:
            return
        if number in (label_number(each, names.LABEL_ATTEMPT) for each in records):
            return
        try:
            head = await self._running_head(job)
            environment = await head.jobs.environment(_submission(job, number))
            if not environment:  # the head lost the submission: handled by the next round
                return
            config = TrainerConfig.model_validate_json(open_sealed(environment))
            if config.attempt.config_hash != job.status.config_hash:
                raise ValueError("another configuration")
            if (config.attempt.number, config.attempt.job_uid) != (number, self._uid):
                raise ValueError("another attempt")
            await self._context.children.record(job.metadata, config, records)
            log.info("the record of attempt %d was put back", number)
        except NameTaken as error:
            self.error = error
        except OperatorError as error:
            log.info("the record of attempt %d could not be put back: %s", number, error)
        except ValueError as error:  # its text might quote the configuration
            kind = type(error).__name__
            log.warning("attempt %d: what was submitted is not readable: %s", number, kind)

    async def _ray_cluster(self, job: RagGrpoJob) -> tuple[ClusterNumber, Manifest | None]:
        """Return the job's Ray cluster, from the API server if it is not in the cache.

        While an old cluster terminates, two may exist. The old one is returned, because nothing
        starts before it is gone. A cluster missing from the cache between two attempts may still
        exist, too.
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

    async def _follow(
        self, job: RagGrpoJob, ray_cluster: Manifest
    ) -> tuple[bool, AttemptObserved | None, Progress | None]:
        """Return whether the head answers, the newest attempt and its progress."""
        number = job.status.attempt
        if not head_is_ready(ray_cluster):
            return False, None, None
        try:
            head = self._head(ray_cluster)
            attempt = await head.jobs.status(_submission(job, number), number)
            # Read last: when the attempt has ended, this is its final word.
            return True, attempt, await head.progress.read() if attempt else None
        except AccessDenied as error:
            self.error = self._refused(ray_cluster, error)
        except Unreachable as error:
            log.info("%s", error)
        except OperatorError as error:
            self.error = error
        return False, None, None

    async def _ray_version(self, ray_cluster: Manifest) -> str:
        try:
            return await self._head(ray_cluster).jobs.ray_version()
        except OperatorError as error:
            log.info("Ray's version is unknown: %s", error)
            return ""

    def _refused(self, ray_cluster: Manifest, error: AccessDenied) -> AccessDenied:
        """Return an error that names the Secret with the head's token."""
        name = ray_cluster["metadata"]["name"]
        secret = ray_cluster["spec"].get("authOptions", {}).get("secretName", "")
        return AccessDenied(
            f"{error}: the token in Secret {self._key.namespace}/{secret} is not the one that the "
            f"operator derives: delete it and RayCluster {name}, both are made again"
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
            is_complete=all_live(pods),
        )
        saves = cluster.is_lost and may_save(pods, now)
        return replace(cluster, may_save=saves, image_ids=image_ids(pods))

    def _losses(self, job: RagGrpoJob, ray_cluster: Manifest) -> list[Loss]:
        """Return the cluster's losses since the newest attempt started.

        Pods that failed during provisioning were replaced, or the attempt would not have started.
        Times in the status have whole seconds: losses in the second in which the attempt was
        recorded (for example pods preempted by a queue) belong to the previous attempt.
        """
        attempts, recorded = job.status.attempts, job.status.restart_state.launch.cluster_since
        since = recorded + timedelta(seconds=1) if recorded else EARLIEST
        if attempts and attempts[0].started and attempts[0].cause is None:
            since = max(since, attempts[0].started)
        return self._context.evidence.losses(self._key, ray_cluster["metadata"]["uid"], since)

    async def _submit(self, job: RagGrpoJob, config: TrainerConfig, number: ClusterNumber) -> None:
        current, ray_cluster = await self._ray_cluster(job)
        if ray_cluster is None or current != number:
            raise TransientError(f"there is no Ray cluster {number}")
        children = self._context.children
        text = config_json(config)
        await children.ensure_services(job.metadata, service_names(self._deployments()))
        await children.record(job.metadata, config, self._records())
        attempt = config.attempt.number
        await self._head(ray_cluster).jobs.submit(
            _submission(job, attempt),
            ENTRYPOINT,
            seal(text),
            {"attempt": str(attempt)},
        )

    async def _delete_preflights(self, job: RagGrpoJob) -> None:
        for pod in owned_by(self._uid, self._context.objects.pods.get(self._key, ())):
            if _role(pod) == PodRole.PREFLIGHT:
                await self._owned.delete(job.metadata, PODS, pod)

    async def _delete_cluster(self, job: RagGrpoJob, number: ClusterNumber) -> None:
        """Delete every cluster of this number; one may be missing from the cache."""
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
            raise TransientError("there is no Ray cluster")
        return self._head(ray_cluster)

    def _head(self, ray_cluster: Manifest) -> Head:
        metadata = ray_cluster["metadata"]
        key_id = metadata.get("annotations", {}).get(names.ANNOTATION_TOKEN_KEY, "")
        token = self._context.children.keys.token(key_id, self._uid)
        return self._context.heads.head(self._key.namespace, metadata["name"], token)

    @property
    def _owned(self) -> OwnedObjects:
        return self._context.children.owned

    def _deployments(self) -> list[Manifest]:
        return owned_by(self._uid, self._context.objects.deployments.get(self._key, ()))

    def _records(self) -> list[Manifest]:
        return owned_by(self._uid, self._context.objects.config_maps.get(self._key, ()))


def _role(pod: Manifest) -> str:
    return labels_of(pod).get(names.LABEL_ROLE, "")


def _submission(job: RagGrpoJob, number: AttemptNumber) -> str:
    return names.submission_id(job.metadata.name, number)
