"""Fake KubeRay and kubelet: they write the statuses of RayClusters and pods."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import yaml

from raggrpo_api.job_variables import job_from_variables
from raggrpo_api.names import ENV_STAGING_REQUEST
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.staging import PushOutcome, PushResult, StagingRequest
from support.builders.operator.jobs import KNOWN_TINY
from support.fakes.fake_ray import FakeRay
from support.fakes.fake_runtime import staged

LOOK_SECONDS = 0.1
POD_IP = "10.1.0.1"
NOW = "2026-11-21T12:00:00Z"
FOREIGN = "raggrpo.test/foreign"
"""Annotation of objects that the fakes ignore."""
Manifest = dict[str, Any]


class Api:
    """Client of the API server with administrator rights."""

    def __init__(self, kubeconfig: Path) -> None:
        content = yaml.safe_load(kubeconfig.read_text())
        token = content["users"][0]["user"]["token"]
        self._http = httpx.AsyncClient(
            base_url=content["clusters"][0]["cluster"]["server"],
            headers={"Authorization": f"Bearer {token}"},
            verify=False,  # only the operator's client verifies certificates
            trust_env=False,
            timeout=20,
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def get(self, path: str) -> Manifest | None:
        answer = await self._http.get(path)
        return None if answer.status_code == 404 else _read(answer)

    async def items(self, path: str) -> list[Manifest]:
        """Return all objects of a collection, or none if the kind does not exist."""
        collection = await self.get(path)
        return collection["items"] if collection is not None else []

    async def watch(self, path: str) -> AsyncIterator[tuple[str, Manifest]]:
        """Yield (event type, object) forever: first all existing objects, then changes.

        A server under load closes watches; then all existing objects are yielded again.
        """
        query = {"watch": "1"}
        while True:
            with suppress(httpx.TransportError):
                async with self._http.stream("GET", path, params=query, timeout=None) as answer:
                    async for line in answer.aiter_lines():
                        event = json.loads(line)
                        if event["type"] != "ERROR":
                            yield event["type"], event["object"]

    async def create(self, path: str, manifest: Mapping[str, Any]) -> Manifest:
        return _read(await self._http.post(path, json=dict(manifest)))

    async def patch(self, path: str, changes: Mapping[str, Any]) -> Manifest:
        headers = {"Content-Type": "application/merge-patch+json"}
        return _read(await self._http.patch(path, json=dict(changes), headers=headers))

    async def delete(self, path: str) -> None:
        _read(await self._http.delete(path))


class FakeKubeRay:
    """Creates the pods of RayClusters and makes them and preflight pods ready."""

    def __init__(self, api: Api, namespace: str, ray: FakeRay) -> None:
        self._api, self._namespace, self._ray = api, namespace, ray
        self.preflight = PreflightResult(facts=KNOWN_TINY)
        self.pods_waiting: dict[str, str] = {}
        """Reason and message of containers that do not start; empty if they start."""
        self.image_id = ""
        """`imageID` that nodes report for every pod."""
        self.is_active = True
        self.clusters_seen: set[str] = set()
        """uids of all past and present RayClusters."""
        self.most_at_once = 0
        self._suspended: set[str] = set()

    async def run(self) -> None:
        """Poll objects until canceled."""
        while True:
            with suppress(httpx.HTTPStatusError):  # changed or deleted in the meantime
                if self.is_active:
                    await self.poll()
            await asyncio.sleep(LOOK_SECONDS)

    async def poll(self) -> None:
        clusters = await self._items("ray.io/v1", "rayclusters")
        self.most_at_once = max(self.most_at_once, len(clusters))
        for cluster in clusters:
            uid = cluster["metadata"]["uid"]
            if cluster["spec"].get("suspend"):
                if uid not in self._suspended:
                    await self._suspend(cluster)
                    self._suspended.add(uid)
            elif uid not in self.clusters_seen or uid in self._suspended:
                await self._start_pods(cluster)
                self._suspended.discard(uid)
        for pod in await self._items("v1", "pods"):
            role = pod["metadata"]["labels"]["raggrpo.io/role"]
            if not pod["status"].get("containerStatuses"):
                await self._start(pod, self._result_of(pod, role))

    async def _start_pods(self, cluster: Manifest) -> None:
        metadata, spec = cluster["metadata"], cluster["spec"]
        await self._expect_token(cluster)
        groups = [("head", spec["headGroupSpec"], 1)]
        groups += [("worker", each, each["replicas"]) for each in spec["workerGroupSpecs"]]
        for kind, group, replicas in groups:
            for index in range(replicas):
                await self._create_pod(cluster, kind, group["template"], index)
        if not self.pods_waiting:
            await self.make_ready(metadata["name"])
        self.clusters_seen.add(metadata["uid"])

    async def _expect_token(self, cluster: Manifest) -> None:
        if "authOptions" not in cluster["spec"]:
            return
        name = cluster["spec"]["authOptions"]["secretName"]
        secret = await self._api.get(self._path("v1", "secrets", name))
        assert secret is not None, "the RayCluster was created before its token"
        token = base64.b64decode(secret["data"]["auth_token"]).decode()
        self._ray.expect(cluster["metadata"]["name"], token)

    async def _suspend(self, cluster: Manifest) -> None:
        """Delete the pods; the head's preStop hook lets the driver save first."""
        metadata = cluster["metadata"]
        self._ray.fail(metadata["name"], ExitCode.PREEMPTED)
        for pod in await self._api.items(self._path("v1", "pods")):
            if pod["metadata"]["labels"].get("ray.io/cluster") == metadata["name"]:
                await self._api.delete(self._path("v1", "pods", pod["metadata"]["name"]))
        self._ray.lose(metadata["name"])
        conditions = [
            _condition("HeadPodReady", "False", "HeadPodNotFound"),
            _condition("RayClusterSuspended", "True", "RayClusterSuspended"),
        ]
        status = {"conditions": conditions, "readyWorkerReplicas": 0, "desiredWorkerReplicas": 0}
        path = self._path("ray.io/v1", "rayclusters", metadata["name"])
        await self._api.patch(f"{path}/status", {"status": status})

    async def make_ready(self, name: str) -> None:
        cluster = await self._api.get(self._path("ray.io/v1", "rayclusters", name))
        assert cluster is not None
        workers = sum(each["replicas"] for each in cluster["spec"]["workerGroupSpecs"])
        ready = _condition("HeadPodReady", "True", "HeadPodRunningAndReady")
        status = {
            "conditions": [ready],
            "readyWorkerReplicas": workers,
            "desiredWorkerReplicas": workers,
        }
        path = self._path("ray.io/v1", "rayclusters", name)
        await self._api.patch(f"{path}/status", {"status": status})

    async def _create_pod(
        self, cluster: Manifest, kind: str, template: Manifest, index: int
    ) -> None:
        metadata = cluster["metadata"]
        owner = {
            "apiVersion": "ray.io/v1",
            "kind": "RayCluster",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        labels = template["metadata"]["labels"] | {
            "ray.io/cluster": metadata["name"],
            "ray.io/node-type": kind,
        }
        metadata = {
            "name": f"{metadata['name']}-{kind}-{index}",
            "labels": labels,
            "ownerReferences": [owner],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}
        await self._api.create(self._path("v1", "pods"), pod)

    def _result_of(self, pod: Manifest, role: str) -> str:
        """Return the result that a pod writes that runs once, or "" for other pods."""
        if role == "preflight":
            return self.preflight.model_dump_json(by_alias=True)
        env = {each["name"]: each.get("value") for each in pod["spec"]["containers"][0]["env"]}
        if role == "push":
            url = job_from_variables(env).spec.output.push or ""
            result = PushResult(url=url, revision="c0ffee", bytes=1)
            return PushOutcome(pushed=result).model_dump_json(by_alias=True)
        if role != "staging":
            return ""
        request = StagingRequest.model_validate_json(env[ENV_STAGING_REQUEST])
        return staged(request).model_dump_json(by_alias=True)

    async def _start(self, pod: Manifest, message: str) -> None:
        name = pod["metadata"]["name"]
        if self.pods_waiting and not message:
            state: Manifest = {"waiting": self.pods_waiting}
        elif message:
            ended = {"exitCode": 0, "reason": "Completed", "message": message, "finishedAt": NOW}
            state = {"terminated": ended}
        else:
            state = {"running": {"startedAt": NOW}}
        await self.set_state(name, pod, state)

    async def set_state(self, name: str, pod: Manifest, state: Manifest) -> None:
        container = pod["spec"]["containers"][0]
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": self.image_id,
            "ready": "running" in state,
            "restartCount": 0,
            "state": state,
        }
        changes: Manifest = {"containerStatuses": [status], "phase": "Running"}
        if "terminated" in state:
            changes["phase"] = "Succeeded"
        if "running" in state:  # read by the real KubeRay, if it runs
            changes["conditions"] = [_condition("Ready", "True", "")]
            changes |= {"podIP": POD_IP, "podIPs": [{"ip": POD_IP}]}
        path = self._path("v1", "pods", name)
        await self._api.patch(f"{path}/status", {"status": changes})

    async def _items(self, version: str, plural: str) -> list[Manifest]:
        objects = await self._api.items(self._path(version, plural))
        return [each for each in objects if FOREIGN not in each["metadata"].get("annotations", {})]

    def _path(self, version: str, plural: str, name: str = "") -> str:
        return path_of(version, plural, self._namespace, name)


def _condition(kind: str, value: str, reason: str) -> Manifest:
    return {
        "type": kind,
        "status": value,
        "reason": reason,
        "message": "",
        "lastTransitionTime": NOW,
    }


def path_of(version: str, plural: str, namespace: str, name: str = "") -> str:
    prefix = "apis" if "/" in version else "api"
    return f"/{prefix}/{version}/namespaces/{namespace}/{plural}" + (f"/{name}" if name else "")


@asynccontextmanager
async def fake_kuberay(api: Api, namespace: str, ray: FakeRay) -> AsyncIterator[FakeKubeRay]:
    """Run a fake KubeRay in the background. Its errors fail the test."""
    kuberay = FakeKubeRay(api, namespace, ray)
    task = asyncio.create_task(kuberay.run())
    try:
        yield kuberay
        if task.done():
            task.result()
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def _read(answer: httpx.Response) -> Manifest:
    if answer.is_error:
        text = f"{answer.request.method} {answer.request.url.path}: {answer.text}"
        raise httpx.HTTPStatusError(text, request=answer.request, response=answer)
    manifest: Manifest = answer.json()
    return manifest
