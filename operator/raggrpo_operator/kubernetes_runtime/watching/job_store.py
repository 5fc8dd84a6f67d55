"""`JobStore`: the newest known version of each job, which may be ahead of the informer's cache.

Without it, a round right after a status write would decide on the previous status.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey

from .trimming import trim_job


@dataclass(slots=True)
class _Kept:
    body: Manifest
    pending: JobStatus | None = None
    """A newer status that has not been written yet, since only the progress changed."""


class JobStore:
    """Jobs as last read or as last written, whichever is newer."""

    def __init__(self, objects: ClusterObjects) -> None:
        self._objects = objects
        self._kept: dict[JobKey, _Kept] = {}

    def newest(self, key: JobKey) -> tuple[Manifest, JobStatus | None] | None:
        """Return the job and a status that was held back, if any; None if there is no such job."""
        cached = self._objects.job(key)
        if cached is None:
            self._kept.pop(key, None)
            return None
        kept = self._kept.get(key)
        if kept is not None and _is_ahead(kept, cached):
            return kept.body, kept.pending
        self._kept.pop(key, None)
        return cached, None

    def put(self, key: JobKey, body: Manifest) -> Manifest:
        """Remember the version that the API server returned; returns what is kept of it.

        Its spec, the largest part, is the cache's own where both are of one generation.
        """
        kept, cached = trim_job(body), self._objects.job(key)
        if cached is not None and _generation(cached) == _generation(kept):
            kept["spec"] = cached["spec"]
        self._kept[key] = _Kept(kept)
        return kept

    def is_own_write(self, body: Mapping[str, Any]) -> bool:
        """Return whether this version of a job holds nothing but what the operator wrote or saw."""
        kept = self._kept.get(JobKey.of(body))
        if kept is None or kept.body["metadata"]["uid"] != body["metadata"]["uid"]:
            return False
        return _version(kept.body) >= _version(body)

    def defer_status(self, key: JobKey, body: Manifest, status: JobStatus) -> None:
        """Remember a status to be written later, along with the version of the job it is for."""
        self._kept[key] = _Kept(body, status)

    def remove(self, key: JobKey) -> None:
        """Drop a job."""
        self._kept.pop(key, None)


def _generation(body: Manifest) -> tuple[str, int]:
    """Return what stands for one version of one job's spec."""
    return body["metadata"]["uid"], body["metadata"]["generation"]


def _is_ahead(kept: _Kept, cached: Manifest) -> bool:
    """Return whether this is the same job with anything that the cache does not hold yet."""
    if kept.body["metadata"]["uid"] != cached["metadata"]["uid"]:
        return False
    ours, theirs = _version(kept.body), _version(cached)
    return ours > theirs or (ours == theirs and kept.pending is not None)


def _version(body: Mapping[str, Any]) -> int:
    """Return the version as a number; comparing wrongly would only cost a rejected write."""
    return int(body["metadata"]["resourceVersion"])
