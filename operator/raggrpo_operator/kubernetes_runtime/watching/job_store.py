"""`JobStore`: the newest known version of each job, which the informer's cache may lag behind.

Without it a round right after a status write would decide on the status before it.
"""

from dataclasses import dataclass

from raggrpo_api.status import JobStatus
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey


@dataclass(slots=True)
class _Kept:
    body: Manifest
    pending: JobStatus | None = None
    """Newer than the body's: a change of progress only, not written yet."""


class JobStore:
    """Jobs as last read or written, whichever is newer."""

    def __init__(self, objects: ClusterObjects) -> None:
        self._objects = objects
        self._kept: dict[JobKey, _Kept] = {}

    def newest(self, key: JobKey) -> tuple[Manifest, JobStatus | None] | None:
        """Return the job, with a status that was held back; None when there is no such job."""
        cached = next(iter(self._objects.jobs.get(key, ())), None)
        if cached is None:
            self._kept.pop(key, None)
            return None
        kept = self._kept.get(key)
        if kept is not None and _is_current(kept.body, cached):
            return kept.body, kept.pending
        self._kept.pop(key, None)
        return cached, None

    def read(self, key: JobKey, body: Manifest) -> None:
        """Keep what the API server answered."""
        self._kept[key] = _Kept(body)

    def hold_back(self, key: JobKey, body: Manifest, status: JobStatus) -> None:
        """Keep a status that is to be written later, on top of this version of the job."""
        self._kept[key] = _Kept(body, status)

    def forget(self, key: JobKey) -> None:
        """Drop a job."""
        self._kept.pop(key, None)


def _is_current(kept: Manifest, cached: Manifest) -> bool:
    """Tell whether this is the same job, in a version that is not older."""
    same_job: bool = kept["metadata"]["uid"] == cached["metadata"]["uid"]
    return same_job and _version(kept) >= _version(cached)


def _version(body: Manifest) -> int:
    """Return the version as a number; a wrong order would only cost a refused write."""
    return int(body["metadata"]["resourceVersion"])
