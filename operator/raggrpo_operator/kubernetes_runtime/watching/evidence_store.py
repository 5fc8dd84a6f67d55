"""`EvidenceStore`: how pods failed. It outlives the pods, which KubeRay deletes when they fail.

It is in memory only: after a restart, the loss of a vanished pod shows only in its cluster. It also
outlives the cluster, since the cache may still hold a RayCluster that has just been deleted.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from raggrpo_api import names
from raggrpo_api.status.sizing import PodRole
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import (
    RAY_CLUSTER_LABEL,
    JobKey,
    controller_of,
    labels_of,
)
from raggrpo_operator.kube.pod_evidence import Loss, StartProblem, loss, start_problem

_HARDEST = (PodRole.TRAINER, PodRole.ROLLOUT)


class EvidenceStore:
    """Losses by uid of their Ray cluster, and how long each pod has been failing to start."""

    def __init__(self, start_grace: timedelta) -> None:
        self._start_grace = start_grace
        self._losses: dict[tuple[JobKey, str], dict[str, Loss]] = {}
        self._failing_since: dict[JobKey, dict[str, datetime]] = {}

    def record(self, key: JobKey, pod: Manifest, now: datetime, *, was_deleted: bool) -> None:
        """Record how this pod was lost, if it was; the weightiest account counts, then the first.

        If a container ends again, its latest end replaces the earlier one.
        """
        cluster = controller_of(pod).get("uid", "")
        if not cluster or RAY_CLUSTER_LABEL not in labels_of(pod):
            return
        found = loss(pod, now, was_deleted=was_deleted)
        if found is None:
            return
        kept = self._losses.setdefault((key, cluster), {})
        known = kept.get(found.uid)
        if known is None or found.weight > known.weight or _is_later_end(found, known):
            kept[found.uid] = found

    def losses(self, key: JobKey, cluster: str, since: datetime) -> list[Loss]:
        """Return a cluster's losses since a point in time, weightiest first, then earliest."""
        kept = self._losses.get((key, cluster), {}).values()
        found = [each for each in kept if each.time >= since]
        return sorted(found, key=lambda each: (-each.weight, each.time))

    def start_problem(
        self, key: JobKey, pods: Collection[Manifest], now: datetime
    ) -> tuple[StartProblem | None, bool]:
        """Return what keeps these pods from starting, and whether that is final by now.

        There is a grace period: a missing Secret may yet be created, a registry may recover.
        """
        found = [each for pod in sorted(pods, key=_rank) if (each := start_problem(pod))]
        since = self._failing_since.setdefault(key, {})
        failing = {each.uid for each in found if each.is_final}
        for uid in {pod["metadata"]["uid"] for pod in pods} - failing:
            since.pop(uid, None)
        for uid in failing:
            since.setdefault(uid, now)
        final = [each for each in found if each.is_final]
        late = [each for each in final if now - since[each.uid] >= self._start_grace]
        problem = next(iter(late or final or found), None)
        return problem, bool(late)

    def remove(self, key: JobKey) -> None:
        """Drop everything about a deleted job."""
        for known in [each for each in self._losses if each[0] == key]:
            del self._losses[known]
        self._failing_since.pop(key, None)


def _rank(pod: Manifest) -> int:
    """Return a pod's place among those whose trouble is told: GPUs are the hardest to get."""
    role = labels_of(pod).get(names.LABEL_ROLE)
    return _HARDEST.index(role) if role in _HARDEST else len(_HARDEST)


def _is_later_end(found: Loss, known: Loss) -> bool:
    """Return whether the container ended again, as opposed to its pod just being deleted."""
    return found.weight == known.weight and found.time > known.time and found.weight > 1
