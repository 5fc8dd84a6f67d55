"""`Caches`: what lists and watches last told of jobs and of what belongs to them.

What vanished while nobody watched is dropped with the next list. Of each object only what rounds
read is kept, whatever its creator put into it.
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
    PODS,
    RAY_CLUSTERS,
    Manifest,
)
from raggrpo_operator.kube.cluster_objects import ClusterObjects, JobKey, job_key_of

from .trimming import CHILDREN, IDENTITY, trim_object

log = logging.getLogger(__name__)

KINDS = frozenset(each.kind for each in (JOBS, *CHILDREN))
PATIENCE_SECONDS = 180.0
"""How long no page of any list may arrive; kopf gives up on an API server earlier."""


class ListTimeout(Exception):
    """A kind is not listed at all: kopf looked for kinds before it was served."""


class KindCache(Mapping[JobKey, Collection[Manifest]]):
    """Objects of one kind by job."""

    def __init__(self, key_of: Callable[[Mapping[str, Any]], JobKey]) -> None:
        self._key_of = key_of
        self._by_job: dict[JobKey, dict[str, Manifest]] = {}
        self._jobs: dict[str, JobKey] = {}

    def put(self, body: Manifest) -> None:
        """Take an object's newest version; it may have changed hands."""
        uid, key = body["metadata"]["uid"], self._key_of(body)
        if self._jobs.get(uid, key) != key:
            self.drop(uid)
        self._jobs[uid] = key
        self._by_job.setdefault(key, {})[uid] = body

    def drop(self, uid: str) -> Manifest | None:
        """Forget an object and return what was known of it, None if nothing was."""
        key = self._jobs.pop(uid, None)
        if key is None:
            return None
        of_job = self._by_job[key]
        found = of_job.pop(uid)
        if not of_job:
            del self._by_job[key]
        return found

    def __getitem__(self, key: JobKey) -> ValuesView[Manifest]:
        return self._by_job[key].values()

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._by_job)

    def __len__(self) -> int:
        return len(self._by_job)


class Caches:
    """The caches of all kinds. Each list or watch is known by its path, which is one namespace's.

    `num_paths` is how many paths each kind has: one for each namespace, or one for all.
    """

    def __init__(self, num_paths: int) -> None:
        self.on_event: Callable[[str, Manifest], None] = lambda *_: None
        """Called with the type of event (`DELETED`, `VANISHED` while nobody watched, or another)
        and what is kept of its object, once the cache has it."""
        self.filled = asyncio.Event()
        """Every kind that is served was listed to its end: only now a missing object is none."""
        jobs, children = KindCache(JobKey.of), {each: KindCache(job_key_of) for each in CHILDREN}
        self.objects = ClusterObjects(
            jobs=jobs,
            ray_clusters=children[RAY_CLUSTERS],
            pods=children[PODS],
            config_maps=children[CONFIG_MAPS],
            deployments=children[DEPLOYMENTS],
        )
        self._kinds = {each.kind: cache for each, cache in {JOBS: jobs, **children}.items()}
        self._num_paths = num_paths
        self._known: defaultdict[str, set[str]] = defaultdict(set)
        """Path → uids in the caches."""
        self._listed: defaultdict[str, set[str]] = defaultdict(set)
        """Path → uids of the list under way."""
        self._complete: defaultdict[str, set[str]] = defaultdict(set)
        """Kind → paths that were listed to their end."""
        self._absent: set[str] = set()
        self._num_pages = 0

    async def wait_until_filled(self, patience: float = PATIENCE_SECONDS) -> None:
        """Wait until `filled`. Raises ListTimeout when a list does not begin or does not go on."""
        while not self.filled.is_set():
            num_pages = self._num_pages
            try:
                await asyncio.wait_for(self.filled.wait(), patience)
            except TimeoutError:
                if self._num_pages == num_pages:
                    kinds = ", ".join(self._missing_kinds())
                    raise ListTimeout(
                        f"no list of {kinds} within {patience:g} s: restarting"
                    ) from None

    def apply_page(
        self, path: str, kind: str, items: Iterable[Manifest], *, is_first: bool, is_last: bool
    ) -> None:
        """Take a page of a list; the last one tells what has vanished."""
        cache, listed, known = self._kinds[kind], self._listed[path], self._known[path]
        if is_first:
            listed.clear()
        for body in items:
            listed.add(self._put(path, "LISTED", body))
        self._num_pages += 1
        if not is_last:
            return
        for uid in known - listed:
            known.discard(uid)
            if (gone := cache.drop(uid)) is not None:
                self._notify("VANISHED", gone)
        listed.clear()
        self._complete[kind].add(path)
        self._set_if_filled()

    def apply_event(self, path: str, event_type: str, body: Manifest) -> None:
        """Take what a watch tells of an object."""
        if event_type != "DELETED":
            self._put(path, event_type, body)
            return
        uid, found = body["metadata"]["uid"], _readable(body)
        self._kinds[body["kind"]].drop(uid)
        self._known[path].discard(uid)
        self._notify(event_type, found)

    def mark_unserved(self, kind: str) -> None:
        """Wait no longer for the list of a kind that the API server does not serve."""
        self._absent.add(kind)
        self._set_if_filled()

    def _put(self, path: str, event_type: str, body: Manifest) -> str:
        uid: str = body["metadata"]["uid"]
        found = _readable(body)
        self._kinds[body["kind"]].put(found)
        self._known[path].add(uid)
        self._notify(event_type, found)
        return uid

    def _notify(self, event_type: str, body: Manifest) -> None:
        try:
            self.on_event(event_type, body)
        except Exception:  # or kopf would end every watch
            log.exception("what happened to a %s cannot be told", body["kind"])

    def _set_if_filled(self) -> None:
        if not self._missing_kinds():
            self.filled.set()

    def _missing_kinds(self) -> list[str]:
        wanted = KINDS - self._absent
        return sorted(kind for kind in wanted if len(self._complete[kind]) < self._num_paths)


def _readable(body: Mapping[str, Any]) -> Manifest:
    """Return what is kept of an object; only whose it is if that fails, or kopf would end."""
    try:
        return trim_object(body)
    except Exception:
        log.exception("a %s cannot be read", body["kind"])
        metadata = {field: body["metadata"].get(field) for field in IDENTITY}
        return {"kind": body["kind"], "metadata": metadata}
