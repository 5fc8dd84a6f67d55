"""`Caches`: what lists and watches last told of jobs and of what belongs to them.

They are filled as answers arrive, before kopf reports anything of them, so that no event waits for
the others. What vanished while nobody watched is dropped with the next list.
"""

import asyncio
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

from .kept import CHILDREN

KINDS = frozenset(each.kind for each in (JOBS, *CHILDREN))


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

    def page(
        self, path: str, kind: str, items: Iterable[Manifest], *, is_first: bool, is_last: bool
    ) -> list[Manifest]:
        """Take a page of a list; with the last one, return what has vanished since it was known."""
        cache, listed, known = self._kinds[kind], self._listed[path], self._known[path]
        if is_first:
            listed.clear()
        for body in items:
            cache.put(body)
            listed.add(body["metadata"]["uid"])
        known |= listed
        if not is_last:
            return []
        vanished = [gone for uid in known - listed if (gone := cache.drop(uid)) is not None]
        known &= listed
        listed.clear()
        self._complete[kind].add(path)
        self._look_whether_filled()
        return vanished

    def event(self, path: str, kind: str, event_type: str, body: Manifest) -> None:
        """Take what a watch tells of an object."""
        uid = body["metadata"]["uid"]
        if event_type == "DELETED":
            self._kinds[kind].drop(uid)
            self._known[path].discard(uid)
        else:
            self._kinds[kind].put(body)
            self._known[path].add(uid)

    def lacks(self, kind: str) -> None:
        """Wait no longer for the list of a kind that the API server does not serve."""
        self._absent.add(kind)
        self._look_whether_filled()

    def _look_whether_filled(self) -> None:
        if all(len(self._complete[kind]) >= self._num_paths for kind in KINDS - self._absent):
            self.filled.set()
