"""`JobStore`: the newest known version of each job, which may be ahead of the informer cache.

Without this store, a round right after a status write would use the previous status.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.kube.client import Manifest
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey

from .trimming import trim_job


@dataclass(slots=True)
class _Entry:
    body: Manifest
    pending: JobStatus | None = None
    """Newer status whose write is deferred, because only progress has changed."""


class JobStore:
    """The newest version of each job, from the caches or from the operator's last write."""

    def __init__(self, objects: ClusterObjects) -> None:
        self._objects = objects
        self._entries: dict[JobKey, _Entry] = {}

    def newest(self, key: JobKey) -> tuple[Manifest, JobStatus | None] | None:
        """Return the job and its deferred status, if any, or None if the job does not exist."""
        cached = self._objects.job(key)
        if cached is None:
            self._entries.pop(key, None)
            return None
        entry = self._entries.get(key)
        if entry is not None and _is_ahead(entry, cached):
            return entry.body, entry.pending
        self._entries.pop(key, None)
        return cached, None

    def put(self, key: JobKey, body: Manifest) -> Manifest:
        """Store the version that the API server returned; return the trimmed job.

        The spec, which is large, is shared with the cached job if both have the same generation.
        """
        job = trim_job(body)
        cached = self._objects.job(key)
        if cached is not None and _generation(cached) == _generation(job):
            job["spec"] = cached["spec"]
        self._entries[key] = _Entry(job)
        return job

    def is_own_write(self, body: Mapping[str, Any]) -> bool:
        """Return whether this version of a job is not newer than the stored version."""
        entry = self._entries.get(JobKey.of(body))
        if entry is None or entry.body["metadata"]["uid"] != body["metadata"]["uid"]:
            return False
        return _version(entry.body) >= _version(body)

    def defer_status(self, key: JobKey, body: Manifest, status: JobStatus) -> None:
        """Store a status to be written later, and the job version to which the status applies."""
        self._entries[key] = _Entry(body, status)

    def remove(self, key: JobKey) -> None:
        """Drop the stored version of a deleted job."""
        self._entries.pop(key, None)


def _generation(body: Manifest) -> tuple[str, int]:
    """Return a key that identifies this version of the job's spec."""
    return body["metadata"]["uid"], body["metadata"]["generation"]


def _is_ahead(entry: _Entry, cached: Manifest) -> bool:
    """Return whether the entry is newer than the cached version of the same job."""
    if entry.body["metadata"]["uid"] != cached["metadata"]["uid"]:
        return False
    version = _version(entry.body)
    cached_version = _version(cached)
    return version > cached_version or (version == cached_version and entry.pending is not None)


def _version(body: Mapping[str, Any]) -> int:
    """Return the resource version as a number; a wrong order only causes a rejected write."""
    return int(body["metadata"]["resourceVersion"])
