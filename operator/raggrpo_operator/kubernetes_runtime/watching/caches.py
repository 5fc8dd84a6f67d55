"""`Caches`: jobs and their objects as last reported by lists and watches.

An object that was deleted between two watches is removed after the next list. Cached objects have
only the fields that rounds read, so no user can make the caches arbitrarily large.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, ValuesView
from typing import Any

from raggrpo_operator.kube.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    RAY_CLUSTERS,
    SERVICES,
    Manifest,
)
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey, job_key_of

from .trimming import CHILDREN, IDENTITY, trim_object

log = logging.getLogger(__name__)

KINDS = frozenset(each.kind for each in (JOBS, *CHILDREN))
PAGE_SECONDS = 180.0
"""Maximum seconds without a page of any list; longer than all retries of kopf together."""


class ListTimeout(Exception):
    """A kind was not listed, because the API server did not serve it when kopf discovered kinds."""


class KindCache(Mapping[JobKey, Collection[Manifest]]):
    """Objects of one kind, by job."""

    def __init__(self, key_of: Callable[[Mapping[str, Any]], JobKey]) -> None:
        self._key_of = key_of
        self._by_job: dict[JobKey, dict[str, Manifest]] = {}
        self._jobs: dict[str, JobKey] = {}

    def put(self, body: Manifest) -> None:
        """Store the newest version of an object, which may belong to another job than before."""
        uid = body["metadata"]["uid"]
        key = self._key_of(body)
        if self._jobs.get(uid, key) != key:
            self.drop(uid)
        self._jobs[uid] = key
        self._by_job.setdefault(key, {})[uid] = body

    def drop(self, uid: str) -> Manifest | None:
        """Remove and return an object, or return None if it is not cached."""
        key = self._jobs.pop(uid, None)
        if key is None:
            return None
        objects = self._by_job[key]
        body = objects.pop(uid)
        if not objects:
            del self._by_job[key]
        return body

    def __getitem__(self, key: JobKey) -> ValuesView[Manifest]:
        return self._by_job[key].values()

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._by_job)

    def __len__(self) -> int:
        return len(self._by_job)


class Caches:
    """The caches of all kinds. A list or watch is identified by its URL path.

    `num_paths` is the number of paths per kind: one per watched namespace, or one for all.
    """

    def __init__(self, num_paths: int) -> None:
        self.on_event: Callable[[str, Manifest], None] = lambda *_: None
        """Callback after each update, called with the event type and the trimmed object.

        The type is LISTED for an object in a list, and VANISHED for an object that was deleted
        between two watches.
        """
        self.synced = asyncio.Event()
        """Set once all served kinds are listed; until then, existing objects may not be cached."""
        jobs, children = KindCache(JobKey.of), {each: KindCache(job_key_of) for each in CHILDREN}
        self.objects = ClusterObjects(
            jobs=jobs,
            ray_clusters=children[RAY_CLUSTERS],
            pods=children[PODS],
            config_maps=children[CONFIG_MAPS],
            deployments=children[DEPLOYMENTS],
            services=children[SERVICES],
            network_policies=children[NETWORK_POLICIES],
        )
        self._kinds = {each.kind: cache for each, cache in {JOBS: jobs, **children}.items()}
        self._num_paths = num_paths
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        """Path → UIDs of the cached objects."""
        self._listed: defaultdict[str, set[str]] = defaultdict(set)
        """Path → UIDs on the pages of the list in progress."""
        self._complete: defaultdict[str, set[str]] = defaultdict(set)
        """Kind → paths whose list is complete."""
        self._unserved: set[str] = set()
        self._num_pages = 0

    async def wait_until_synced(self, page_seconds: float = PAGE_SECONDS) -> None:
        """Wait for `synced`. Raises ListTimeout if no page arrives within `page_seconds`."""
        while not self.synced.is_set():
            num_pages = self._num_pages
            try:
                await asyncio.wait_for(self.synced.wait(), page_seconds)
            except TimeoutError:
                if self._num_pages == num_pages:
                    kinds = ", ".join(self._missing_kinds())
                    raise ListTimeout(
                        f"no list of {kinds} within {page_seconds:g} s: restarting"
                    ) from None

    def apply_page(
        self, path: str, kind: str, items: Iterable[Manifest], *, is_first: bool, is_last: bool
    ) -> None:
        """Store a page of a list; after the last page, remove objects that are not in the list."""
        cache = self._kinds[kind]
        listed = self._listed[path]
        known = self._known[path]
        if is_first:
            listed.clear()
        for body in items:
            listed.add(self._put(path, "LISTED", body))
        self._num_pages += 1
        if not is_last:
            return
        for uid in known - listed:
            known.discard(uid)
            if (vanished := cache.drop(uid)) is not None:
                self._notify("VANISHED", vanished)
        listed.clear()
        self._complete[kind].add(path)
        self._set_if_synced()

    def apply_event(self, path: str, event_type: str, body: Manifest) -> None:
        """Apply an event of a watch."""
        if event_type != "DELETED":
            self._put(path, event_type, body)
            return
        uid = body["metadata"]["uid"]
        trimmed = _trim(body)
        self._kinds[body["kind"]].drop(uid)
        self._known[path].discard(uid)
        self._notify(event_type, trimmed)

    def mark_unserved(self, kind: str) -> None:
        """Stop waiting for the list of a kind that the API server does not serve."""
        self._unserved.add(kind)
        self._set_if_synced()

    def _put(self, path: str, event_type: str, body: Manifest) -> str:
        uid: str = body["metadata"]["uid"]
        trimmed = _trim(body)
        self._kinds[body["kind"]].put(trimmed)
        self._known[path].add(uid)
        self._notify(event_type, trimmed)
        return uid

    def _notify(self, event_type: str, body: Manifest) -> None:
        try:
            self.on_event(event_type, body)
        except Exception:  # an exception would stop all watches of kopf
            log.exception("failed to handle a %s event", body["kind"])

    def _set_if_synced(self) -> None:
        if not self._missing_kinds():
            self.synced.set()

    def _missing_kinds(self) -> list[str]:
        return sorted(
            kind for kind in KINDS - self._unserved if len(self._complete[kind]) < self._num_paths
        )


def _trim(body: Mapping[str, Any]) -> Manifest:
    """Return the trimmed object, or only its kind and identity if trimming fails."""
    try:
        return trim_object(body)
    except Exception:
        log.exception("a %s has an unexpected format", body["kind"])
        metadata = {field: body["metadata"].get(field) for field in IDENTITY}
        return {"kind": body["kind"], "metadata": metadata}
