"""A reader pod that does not start: the error quotes its Events, if they may be read."""

from typing import Any, cast

import pytest

from raggrpo_cli.kubectl import reader as module
from raggrpo_cli.kubectl.reader import temporary_pod
from raggrpo_operator.core.manifests.reader_pod import render_reader_pod
from raggrpo_operator.errors import AccessDenied, PermanentError
from raggrpo_operator.kube.client import Manifest, Resource
from raggrpo_operator.kube.user_client import UserClient
from support.builders.operator.jobs import make_job

MOUNT = {"type": "Warning", "message": "MountVolume failed: no such share"}


class Cluster:
    """An API server whose pods stay pending."""

    def __init__(self, events: "list[Manifest] | AccessDenied") -> None:
        self._events = events
        self.pods: list[str] = []

    async def create(self, pod: Manifest) -> Manifest:
        self.pods.append(pod["metadata"]["name"])
        return {**pod, "metadata": {**pod["metadata"], "uid": "u"}}

    async def get(self, _: Resource, namespace: str, name: str) -> Manifest:
        return {"metadata": {"name": name, "namespace": namespace, "uid": "u"}, "status": {}}

    async def find(self, *_: Any, **__: Any) -> list[Manifest]:
        if isinstance(self._events, AccessDenied):
            raise self._events
        return self._events

    async def delete(self, _: Resource, __: str, name: str, ___: str) -> None:
        self.pods.remove(name)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{"type": "Normal", "message": "Scheduled"}, MOUNT], "MountVolume failed: no such share"),
        ([], "its Events give no reason"),
        (AccessDenied("no"), "its Events is not permitted"),
    ],
)
async def test_reader_pod_is_deleted_with_reason_when_start_times_out(
    events: "list[Manifest] | AccessDenied", reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "START_SECONDS", 0.05)
    monkeypatch.setattr(module, "POLL_SECONDS", 0.01)
    cluster = Cluster(events)

    job = make_job()

    def render(name: str) -> Manifest:
        return render_reader_pod(job, name, "image:1")

    with pytest.raises(
        PermanentError, match=f"volumes cannot be read: pod small-reader-.*{reason}"
    ):
        async with temporary_pod(cast(UserClient, cluster), job, render):
            raise AssertionError("it never runs")

    assert cluster.pods == []
