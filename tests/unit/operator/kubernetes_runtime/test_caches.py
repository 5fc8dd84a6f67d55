import asyncio
from typing import Any

import pytest

from raggrpo_api import names
from raggrpo_operator.kube.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    PODS,
    RAY_CLUSTERS,
    Manifest,
    Resource,
)
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches, ListTimeout

A, B = JobKey("team", "a"), JobKey("team", "b")
KINDS = (JOBS, RAY_CLUSTERS, PODS, CONFIG_MAPS, DEPLOYMENTS)


def make_body(uid: str, key: JobKey = A, kind: str = "Pod", **more: Any) -> Manifest:
    labels = {names.LABEL_JOB: key.name}
    metadata = {"uid": uid, "namespace": key.namespace, "name": key.name, "labels": labels}
    return {"kind": kind, "metadata": metadata, **more}


def take(caches: Caches, kind: Resource, *bodies: Manifest, namespace: str = "") -> None:
    """Take a list that has a single page."""
    caches.apply_page(kind.path(namespace), kind.kind, bodies, is_first=True, is_last=True)


def uids(caches: Caches, key: JobKey = A) -> list[str]:
    return [each["metadata"]["uid"] for each in caches.objects.pods.get(key, ())]


def what_is_told(caches: Caches) -> list[tuple[str, str]]:
    """Return a list that grows by (type of event, uid) with all that the caches tell."""
    told: list[tuple[str, str]] = []
    caches.on_event = lambda event_type, body: told.append((event_type, body["metadata"]["uid"]))
    return told


def test_caches_are_filled_when_all_kinds_and_namespaces_are_listed() -> None:
    caches = Caches(2)
    paths = [(kind, namespace) for kind in KINDS for namespace in ("team", "other")]
    for kind, namespace in paths:
        assert not caches.filled.is_set()
        take(caches, kind, namespace=namespace)

    assert caches.filled.is_set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_caches_are_not_filled_before_last_page(kind: Resource) -> None:
    caches = Caches(1)
    for other in KINDS:
        if other is not kind:
            take(caches, other)

    first, second = (make_body(uid, kind=kind.kind) for uid in "12")
    caches.apply_page(kind.path(""), kind.kind, [first], is_first=True, is_last=False)
    assert not caches.filled.is_set()
    caches.apply_page(kind.path(""), kind.kind, [second], is_first=False, is_last=True)
    assert caches.filled.is_set()


@pytest.mark.parametrize("is_told_last", [True, False])
def test_unserved_kind_is_not_required(is_told_last: bool) -> None:
    caches = Caches(1)
    if not is_told_last:
        caches.mark_unserved("RayCluster")
    for kind in KINDS:
        if kind is not RAY_CLUSTERS:
            assert not caches.filled.is_set()
            take(caches, kind)
    if is_told_last:
        assert not caches.filled.is_set()
        caches.mark_unserved("RayCluster")

    assert caches.filled.is_set()


def test_objects_are_grouped_by_job() -> None:
    caches = Caches(1)
    take(caches, PODS, make_body("1"), make_body("2", B), make_body("3"))
    take(caches, JOBS, make_body("4", kind=names.KIND, spec={"model": {}}))

    assert (uids(caches), uids(caches, B)) == (["1", "3"], ["2"])
    job = caches.objects.job(A)
    assert job is not None
    assert (job["metadata"]["uid"], job["spec"]) == ("4", {"model": {}})
    assert list(caches.objects.jobs) == [A]


def test_watch_events_update_move_and_remove_objects() -> None:
    caches, path = Caches(1), PODS.path("")
    take(caches, PODS, make_body("1"), make_body("2"))
    told = what_is_told(caches)
    caches.apply_event(path, "MODIFIED", make_body("1", status={"phase": "Running"}))
    caches.apply_event(path, "DELETED", make_body("2"))
    caches.apply_event(path, "DELETED", make_body("never known"))
    caches.apply_event(path, "ADDED", make_body("3"))

    assert [each["status"].get("phase") for each in caches.objects.pods[A]] == ["Running", None]
    assert uids(caches) == ["1", "3"]
    types = ["MODIFIED", "DELETED", "DELETED", "ADDED"]
    assert told == list(zip(types, ["1", "2", "never known", "3"], strict=True))
    caches.apply_event(path, "MODIFIED", make_body("1", B))
    caches.apply_event(path, "DELETED", make_body("3"))
    assert (list(caches.objects.pods), uids(caches, B)) == ([B], ["1"])


def test_listener_sees_updated_cache() -> None:
    caches = Caches(1)
    seen: list[list[str]] = []
    caches.on_event = lambda *_: seen.append(uids(caches))

    take(caches, PODS, make_body("1"))
    caches.apply_event(PODS.path(""), "DELETED", make_body("1"))

    assert seen == [["1"], []]


def test_listener_error_does_not_stop_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caches = Caches(1)
    told: list[str] = []

    def fails_first(_: str, body: Manifest) -> None:
        told.append(body["metadata"]["uid"])
        if len(told) == 1:
            raise TypeError("of an odd status")

    caches.on_event = fails_first
    take(caches, PODS, make_body("1"), make_body("2"))

    assert told == ["1", "2"]
    assert "event of a Pod failed" in caplog.text


def test_vanished_objects_are_removed_after_next_list() -> None:
    caches, path = Caches(2), PODS.path("team")
    elsewhere = make_body("9", JobKey("other", "a"))
    take(caches, PODS, make_body("1"), make_body("2"), namespace="team")
    take(caches, PODS, elsewhere, namespace="other")
    caches.apply_event(path, "ADDED", make_body("3"))
    caches.apply_event(path, "ADDED", make_body("4"))
    caches.apply_event(path, "DELETED", make_body("4"))
    told = what_is_told(caches)

    take(caches, PODS, make_body("2"), namespace="team")

    assert sorted(told) == [("LISTED", "2"), ("VANISHED", "1"), ("VANISHED", "3")]
    assert uids(caches) == ["2"]
    assert uids(caches, JobKey("other", "a")) == ["9"], "another path's list says nothing of it"
    take(caches, PODS, make_body("2"), namespace="team")
    assert len(told) == 4


def test_aborted_list_changes_nothing() -> None:
    caches, path = Caches(1), PODS.path("")
    take(caches, PODS, make_body("1"), make_body("2"))
    told = what_is_told(caches)
    caches.apply_page(path, "Pod", [make_body("1"), make_body("new")], is_first=True, is_last=False)
    assert uids(caches) == ["1", "2", "new"]

    take(caches, PODS, make_body("2"))

    assert sorted(told)[-2:] == [("VANISHED", "1"), ("VANISHED", "new")]
    assert uids(caches) == ["2"]


async def test_unlisted_kind_raises_list_timeout() -> None:
    caches = Caches(1)
    for kind in (JOBS, PODS, CONFIG_MAPS):
        take(caches, kind)

    with pytest.raises(ListTimeout, match="no list of Deployment, RayCluster"):
        await caches.wait_until_filled(page_seconds=0.01)


async def test_slow_list_with_pages_does_not_time_out() -> None:
    caches = Caches(1)
    waiting = asyncio.create_task(caches.wait_until_filled(page_seconds=0.2))
    for _ in range(8):
        await asyncio.sleep(0.05)
        caches.apply_page(PODS.path(""), "Pod", [], is_first=True, is_last=False)
    assert not waiting.done()
    for kind in KINDS:
        take(caches, kind)
    await asyncio.wait_for(waiting, 5)
