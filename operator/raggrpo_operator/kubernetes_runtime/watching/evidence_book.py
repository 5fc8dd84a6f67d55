"""`EvidenceBook`: what failed pods revealed, kept longer than the pods, which KubeRay deletes.

Only in this process: after a restart the loss of a vanished pod shows only in its cluster. What is
known of a cluster outlives it, because the cache may show a deleted RayCluster a moment longer.
"""

from collections.abc import Collection
from datetime import datetime, timedelta

from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import RAY_CLUSTER_LABEL, JobKey
from raggrpo_operator.kube.pod_evidence import Loss, StartProblem, loss, start_problem


class EvidenceBook:
    """Losses by Ray cluster, and since when a pod has failed to start."""

    def __init__(self, start_grace: timedelta) -> None:
        self._start_grace = start_grace
        self._losses: dict[tuple[JobKey, str], dict[str, Loss]] = {}
        self._failing_since: dict[JobKey, dict[str, datetime]] = {}

    def note(self, key: JobKey, pod: Manifest, now: datetime, *, was_deleted: bool) -> None:
        """Keep what this pod of the job shows now; its first and heaviest evidence counts."""
        cluster = pod["metadata"].get("labels", {}).get(RAY_CLUSTER_LABEL)
        if cluster is None:
            return
        found = loss(pod, now, was_deleted=was_deleted)
        if found is None:
            return
        kept = self._losses.setdefault((key, cluster), {})
        known = kept.get(found.uid)
        if known is None or found.weight > known.weight or _is_later_end(found, known):
            kept[found.uid] = found

    def losses(self, key: JobKey, cluster: str, since: datetime) -> list[Loss]:
        """Return the losses of a cluster from a moment on, the weightiest and the first ahead."""
        kept = self._losses.get((key, cluster), {}).values()
        found = [each for each in kept if each.time >= since]
        return sorted(found, key=lambda each: (-each.weight, each.time))

    def start_problem(
        self, key: JobKey, pods: Collection[Manifest], now: datetime
    ) -> tuple[StartProblem | None, bool]:
        """Return what keeps these pods from starting, and whether that is final by now.

        A missing Secret may still be made and a registry may come back, so there is a grace.
        """
        found = [each for pod in pods if (each := start_problem(pod)) is not None]
        since = self._failing_since.setdefault(key, {})
        failing = {each.uid for each in found if each.is_final}
        for uid in {pod["metadata"]["uid"] for pod in pods} - failing:
            since.pop(uid, None)
        for uid in failing:
            since.setdefault(uid, now)
        final = [each for each in found if each.is_final]
        late = [each for each in final if now - since[each.uid] >= self._start_grace]
        shown = next(iter(late or final or found), None)
        return shown, bool(late)

    def forget(self, key: JobKey) -> None:
        """Drop everything about a job that is gone."""
        for known in [each for each in self._losses if each[0] == key]:
            del self._losses[known]
        self._failing_since.pop(key, None)


def _is_later_end(found: Loss, known: Loss) -> bool:
    """Tell whether the container ended once more, which a plain deletion afterwards is not."""
    return found.weight == known.weight and found.time > known.time and found.weight > 1
