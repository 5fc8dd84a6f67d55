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
from raggrpo_operator.kubernetes_runtime.watching.caches import Caches

A, B = JobKey("team", "a"), JobKey("team", "b")
KINDS = (JOBS, RAY_CLUSTERS, PODS, CONFIG_MAPS, DEPLOYMENTS)


def a_body(uid: str, key: JobKey = A, **more: Any) -> Manifest:
    labels = {names.LABEL_JOB: key.name}
    metadata = {"uid": uid, "namespace": key.namespace, "name": key.name, "labels": labels}
    return {"metadata": metadata, **more}


def take(caches: Caches, kind: Resource, *bodies: Manifest, namespace: str = "") -> list[Manifest]:
    """Take a list that has a single page."""
    path = kind.path(namespace)
    return caches.page(path, kind.kind, bodies, is_first=True, is_last=True)


def uids(caches: Caches, key: JobKey = A) -> list[str]:
    return [each["metadata"]["uid"] for each in caches.objects.pods.get(key, ())]


def test_they_are_filled_when_every_kind_was_listed_to_its_end_in_every_namespace() -> None:
    caches = Caches(2)
    paths = [(kind, namespace) for kind in KINDS for namespace in ("team", "other")]
    for kind, namespace in paths:
        assert not caches.filled.is_set()
        take(caches, kind, namespace=namespace)

    assert caches.filled.is_set()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.kind)
def test_a_list_that_has_another_page_is_waited_for(kind: Resource) -> None:
    caches = Caches(1)
    for other in KINDS:
        if other is not kind:
            take(caches, other)

    caches.page(kind.path(""), kind.kind, [a_body("1")], is_first=True, is_last=False)
    assert not caches.filled.is_set()
    caches.page(kind.path(""), kind.kind, [a_body("2")], is_first=False, is_last=True)
    assert caches.filled.is_set()


@pytest.mark.parametrize("is_told_last", [True, False])
def test_a_kind_that_is_not_served_is_not_waited_for(is_told_last: bool) -> None:
    caches = Caches(1)
    if not is_told_last:
        caches.lacks("RayCluster")
    for kind in KINDS:
        if kind is not RAY_CLUSTERS:
            assert not caches.filled.is_set()
            take(caches, kind)
    if is_told_last:
        assert not caches.filled.is_set()
        caches.lacks("RayCluster")

    assert caches.filled.is_set()


def test_objects_are_found_by_the_job_they_belong_to() -> None:
    caches = Caches(1)
    take(caches, PODS, a_body("1"), a_body("2", B), a_body("3"))
    job = {"metadata": {"uid": "4", "namespace": "team", "name": "a"}}
    take(caches, JOBS, job)

    assert (uids(caches), uids(caches, B)) == (["1", "3"], ["2"])
    assert caches.objects.job(A) == job
    assert list(caches.objects.jobs) == [A]


def test_a_watch_changes_removes_and_moves_what_was_listed() -> None:
    caches, path = Caches(1), PODS.path("")
    take(caches, PODS, a_body("1"), a_body("2"))
    caches.event(path, "Pod", "MODIFIED", a_body("1", spec="new"))
    caches.event(path, "Pod", "DELETED", a_body("2"))
    caches.event(path, "Pod", "DELETED", a_body("never known"))
    caches.event(path, "Pod", "ADDED", a_body("3"))

    assert [each.get("spec") for each in caches.objects.pods[A]] == ["new", None]
    assert uids(caches) == ["1", "3"]
    caches.event(path, "Pod", "MODIFIED", a_body("1", B))
    caches.event(path, "Pod", "DELETED", a_body("3"))
    assert (list(caches.objects.pods), uids(caches, B)) == ([B], ["1"])


def test_what_vanished_while_nobody_watched_is_dropped_with_the_next_list_and_told_once() -> None:
    caches, path = Caches(2), PODS.path("team")
    elsewhere = a_body("9", JobKey("other", "a"))
    take(caches, PODS, a_body("1"), a_body("2"), namespace="team")
    take(caches, PODS, elsewhere, namespace="other")
    caches.event(path, "Pod", "ADDED", a_body("3"))
    caches.event(path, "Pod", "ADDED", a_body("4"))
    caches.event(path, "Pod", "DELETED", a_body("4"))

    vanished = take(caches, PODS, a_body("2"), namespace="team")

    assert sorted(each["metadata"]["uid"] for each in vanished) == ["1", "3"]
    assert uids(caches) == ["2"]
    assert uids(caches, JobKey("other", "a")) == ["9"], "another path's list says nothing of it"
    assert take(caches, PODS, a_body("2"), namespace="team") == []


def test_a_list_that_broke_off_is_no_reason_to_drop_or_to_keep_anything() -> None:
    caches, path = Caches(1), PODS.path("")
    take(caches, PODS, a_body("1"), a_body("2"))
    caches.page(path, "Pod", [a_body("1"), a_body("new")], is_first=True, is_last=False)
    assert uids(caches) == ["1", "2", "new"]

    vanished = take(caches, PODS, a_body("2"))

    assert sorted(each["metadata"]["uid"] for each in vanished) == ["1", "new"]
    assert uids(caches) == ["2"]
