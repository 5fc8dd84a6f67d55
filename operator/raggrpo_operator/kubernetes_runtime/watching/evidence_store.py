"""`EvidenceStore`: the losses of pods, retained after KubeRay has deleted the pods.

The evidence is only in memory: after a restart of the operator, only the RayCluster shows that a
deleted pod was lost. Evidence about a RayCluster is dropped once the job has no such RayCluster in
the cache; pods name their RayCluster and job themselves, so there are limits until then.
"""

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from raggrpo_api import names
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import (
    RAY_CLUSTER_LABEL,
    JobKey,
    controller_of,
    labels_of,
)
from raggrpo_operator.kube.pod_evidence import Loss, Pod, StartProblem, loss, start_problem

MAX_CLUSTERS = 8
"""Maximum number of RayClusters of a job with losses between two rounds; the oldest is dropped."""
MAX_LOSSES = 1024
"""Maximum number of losses of a RayCluster; the oldest is dropped."""
_GPU_ROLES = (PodRole.TRAINER, PodRole.ROLLOUT)


class EvidenceStore:
    """Losses by UID of the RayCluster, and the time since which each pod has failed to start."""

    def __init__(self, start_grace: timedelta) -> None:
        self._start_grace = start_grace
        self._losses: dict[JobKey, dict[str, dict[str, Loss]]] = {}
        self._failing_since: dict[JobKey, dict[str, datetime]] = {}

    def record(self, key: JobKey, pod: Manifest, now: datetime, *, was_deleted: bool) -> None:
        """Record the loss of a pod, if the pod is lost.

        Of several losses of a pod, the one with the highest weight is retained, or the first one if
        weights are equal. However, if a container exits again, the latest exit is retained.
        """
        cluster = controller_of(pod).get("uid", "")
        if not cluster or RAY_CLUSTER_LABEL not in labels_of(pod):
            return
        new = loss(pod, now, was_deleted=was_deleted)
        if new is None:
            return
        clusters = self._losses.setdefault(key, {})
        losses = clusters.setdefault(cluster, {})
        known = losses.get(new.uid)
        if known is None or new.weight > known.weight or _is_later_exit(new, known):
            losses[new.uid] = new
        _drop_oldest(clusters, MAX_CLUSTERS)
        _drop_oldest(losses, MAX_LOSSES)

    def losses(self, key: JobKey, cluster: str, since: datetime) -> list[Loss]:
        """Return the losses of a cluster since a time, with descending weight, then by time."""
        losses = self._losses.get(key, {}).get(cluster, {}).values()
        recent = [each for each in losses if each.time >= since]
        return sorted(recent, key=lambda each: (-each.weight, each.time))

    def start_problem(
        self, key: JobKey, pods: Collection[Pod], now: datetime
    ) -> tuple[StartProblem | None, bool]:
        """Return a problem that keeps these pods from starting, if any, and whether it is final.

        A problem is final only after a grace period, in which a user may create a missing Secret or
        a registry may recover.
        """
        problems = [
            each for pod in sorted(pods, key=_scheduling_rank) if (each := start_problem(pod))
        ]
        since = self._failing_since.setdefault(key, {})
        failing = {each.uid for each in problems if each.is_final}
        for uid in {pod["metadata"]["uid"] for pod in pods} - failing:
            since.pop(uid, None)
        for uid in failing:
            since.setdefault(uid, now)
        final = [each for each in problems if each.is_final]
        expired = [each for each in final if now - since[each.uid] >= self._start_grace]
        problem = next(iter(expired or final or problems), None)
        return problem, bool(expired)

    def retain(self, key: JobKey, clusters: Collection[str], pods: Collection[str]) -> None:
        """Drop the evidence about a job's RayClusters and pods except those with these UIDs."""
        losses = self._losses.get(key, {})
        for uid in losses.keys() - set(clusters):
            del losses[uid]
        since = self._failing_since.get(key, {})
        for uid in since.keys() - set(pods):
            del since[uid]

    def remove(self, key: JobKey) -> None:
        """Drop the evidence of a deleted job."""
        self._losses.pop(key, None)
        self._failing_since.pop(key, None)


def _scheduling_rank(pod: Pod) -> int:
    """Return the sort key of a pod; pods with GPUs come first, as they are hardest to schedule."""
    role = labels_of(pod).get(names.LABEL_ROLE)
    return _GPU_ROLES.index(role) if role in _GPU_ROLES else len(_GPU_ROLES)


def _is_later_exit(new: Loss, known: Loss) -> bool:
    """Return whether `new` is a later exit of the container and not the deletion of its pod."""
    return new.weight == known.weight and new.time > known.time and new.weight > 1


def _drop_oldest(entries: dict[str, Any], limit: int) -> None:
    """Drop the entry that was added first if there are more than `limit`."""
    if len(entries) > limit:
        del entries[next(iter(entries))]
