import asyncio
from typing import Any

import pytest

from raggrpo_api import names
from raggrpo_operator.kube.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    JOBS,
    NETWORK_POLICIES,
    PODS,
    RAY_CLUSTERS,
    SERVICES,
    Manifest,
    Resource,
)
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches, ListTimeout

A, B = JobKey("team", "a"), JobKey("team", "b")
KINDS = (JOBS, RAY_CLUSTERS, PODS, CONFIG_MAPS, DEPLOYMENTS, SERVICES, NETWORK_POLICIES)


def make_body(uid: str, key: JobKey = A, kind: str = "Pod", **more: Any) -> Manifest:
    labels = {names.LABEL_JOB: key.name}
    metadata = {"uid": uid, "namespace": key.namespace, "name": key.name, "labels": labels}
    return {"kind": kind, "metadata": metadata, **more}


def apply_list(caches: Caches, kind: Resource, *bodies: Manifest, namespace: str = "") -> None:
    """Apply a list of a single page."""
    caches.apply_page(kind.path(namespace), kind.kind, bodies, is_first=True, is_last=True)


def uids(caches: Caches, key: JobKey = A) -> list[str]:
    return [each["metadata"]["uid"] for each in caches.objects.pods.get(key, ())]


def record_events(caches: Caches) -> list[tuple[str, str]]:
    """Return a list that records (event type, uid) of all events of the caches."""
    events: list[tuple[str, str]] = []
    caches.on_event = lambda event_type, body: events.append((event_type, body["metadata"]["uid"]))
    return events


def test_caches_are_synced_when_all_kinds_and_namespaces_are_listed() -> None:
    caches = Caches(2)
    paths = [(kind, namespace) for kind in KINDS for namespace in ("team", "other")]
    for kind, namespace in paths:
        assert not caches.synced.is_set()
        apply_list(caches, kind, namespace=namespace)

    assert caches.synced.is_set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_caches_are_not_synced_before_last_page(kind: Resource) -> None:
    caches = Caches(1)
    for other in KINDS:
        if other is not kind:
            apply_list(caches, other)

    first, second = (make_body(uid, kind=kind.kind) for uid in "12")
    caches.apply_page(kind.path(""), kind.kind, [first], is_first=True, is_last=False)
    assert not caches.synced.is_set()
    caches.apply_page(kind.path(""), kind.kind, [second], is_first=False, is_last=True)
    assert caches.synced.is_set()


@pytest.mark.parametrize("is_last", [True, False])
def test_caches_sync_without_kind_that_cluster_does_not_serve(is_last: bool) -> None:
    caches = Caches(1)
    if not is_last:
        caches.mark_unserved("RayCluster")
    for kind in KINDS:
        if kind is not RAY_CLUSTERS:
            assert not caches.synced.is_set()
            apply_list(caches, kind)
    if is_last:
        assert not caches.synced.is_set()
        caches.mark_unserved("RayCluster")

    assert caches.synced.is_set()


def test_cached_objects_are_grouped_by_job() -> None:
    caches = Caches(1)
    apply_list(caches, PODS, make_body("1"), make_body("2", B), make_body("3"))
    apply_list(caches, JOBS, make_body("4", kind=names.KIND, spec={"model": {}}))

    assert (uids(caches), uids(caches, B)) == (["1", "3"], ["2"])
    job = caches.objects.job(A)
    assert job is not None
    assert (job["metadata"]["uid"], job["spec"]) == ("4", {"model": {}})
    assert list(caches.objects.jobs) == [A]


def test_watch_events_update_move_and_remove_objects() -> None:
    caches, path = Caches(1), PODS.path("")
    apply_list(caches, PODS, make_body("1"), make_body("2"))
    events = record_events(caches)
    caches.apply_event(path, "MODIFIED", make_body("1", status={"phase": "Running"}))
    caches.apply_event(path, "DELETED", make_body("2"))
    caches.apply_event(path, "DELETED", make_body("never known"))
    caches.apply_event(path, "ADDED", make_body("3"))

    assert [each["status"].get("phase") for each in caches.objects.pods[A]] == ["Running", None]
    assert uids(caches) == ["1", "3"]
    types = ["MODIFIED", "DELETED", "DELETED", "ADDED"]
    assert events == list(zip(types, ["1", "2", "never known", "3"], strict=True))
    caches.apply_event(path, "MODIFIED", make_body("1", B))
    caches.apply_event(path, "DELETED", make_body("3"))
    assert (list(caches.objects.pods), uids(caches, B)) == ([B], ["1"])


def test_cache_is_updated_before_listener_is_called() -> None:
    caches = Caches(1)
    observed: list[list[str]] = []
    caches.on_event = lambda *_: observed.append(uids(caches))

    apply_list(caches, PODS, make_body("1"))
    caches.apply_event(PODS.path(""), "DELETED", make_body("1"))

    assert observed == [["1"], []]


def test_listener_error_does_not_stop_later_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caches = Caches(1)
    events: list[str] = []

    def fails_first(_: str, body: Manifest) -> None:
        events.append(body["metadata"]["uid"])
        if len(events) == 1:
            raise TypeError("malformed status")

    caches.on_event = fails_first
    apply_list(caches, PODS, make_body("1"), make_body("2"))

    assert events == ["1", "2"]
    assert "failed to handle a Pod event" in caplog.text


def test_deleted_objects_are_removed_from_cache_by_next_list() -> None:
    caches, path = Caches(2), PODS.path("team")
    elsewhere = make_body("9", JobKey("other", "a"))
    apply_list(caches, PODS, make_body("1"), make_body("2"), namespace="team")
    apply_list(caches, PODS, elsewhere, namespace="other")
    caches.apply_event(path, "ADDED", make_body("3"))
    caches.apply_event(path, "ADDED", make_body("4"))
    caches.apply_event(path, "DELETED", make_body("4"))
    events = record_events(caches)

    apply_list(caches, PODS, make_body("2"), namespace="team")

    assert sorted(events) == [("LISTED", "2"), ("VANISHED", "1"), ("VANISHED", "3")]
    assert uids(caches) == ["2"]
    assert uids(caches, JobKey("other", "a")) == ["9"], "not affected by the list of another path"
    apply_list(caches, PODS, make_body("2"), namespace="team")
    assert len(events) == 4


def test_cached_objects_of_aborted_list_are_removed_by_next_list() -> None:
    caches, path = Caches(1), PODS.path("")
    apply_list(caches, PODS, make_body("1"), make_body("2"))
    events = record_events(caches)
    caches.apply_page(path, "Pod", [make_body("1"), make_body("new")], is_first=True, is_last=False)
    assert uids(caches) == ["1", "2", "new"]

    apply_list(caches, PODS, make_body("2"))

    assert sorted(events)[-2:] == [("VANISHED", "1"), ("VANISHED", "new")]
    assert uids(caches) == ["2"]


async def test_unlisted_kind_raises_list_timeout() -> None:
    caches = Caches(1)
    for kind in (JOBS, PODS, CONFIG_MAPS):
        apply_list(caches, kind)

    with pytest.raises(ListTimeout, match="no list of Deployment, NetworkPolicy, RayCluster"):
        await caches.wait_until_synced(page_seconds=0.01)


async def test_slow_paginated_list_does_not_time_out() -> None:
    caches = Caches(1)
    waiting = asyncio.create_task(caches.wait_until_synced(page_seconds=0.2))
    for _ in range(8):
        await asyncio.sleep(0.05)
        caches.apply_page(PODS.path(""), "Pod", [], is_first=True, is_last=False)
    assert not waiting.done()
    for kind in KINDS:
        apply_list(caches, kind)
    await asyncio.wait_for(waiting, 5)
