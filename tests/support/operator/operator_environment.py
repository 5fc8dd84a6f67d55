"""A real API server and operator with a fake KubeRay, kubelet and Ray heads."""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from raggrpo_api.job import Metadata
from support.builders.operator.jobs import make_raw_job
from support.fakes.fake_kuberay import Api, FakeKubeRay, Manifest, fake_kuberay, path_of
from support.fakes.fake_ray import FakeRay, fake_ray
from support.kubernetes.chart_release import Account
from tools.kind.api_server import PLAYERS, ApiServer
from tools.kind.program import Program

SECONDS = 90.0
JOBS = "raggrpo.io/v1alpha1"
RUNNER = Path(__file__).parent / "operator_under_test.py"


@dataclass
class OperatorEnvironment:
    """The fake cluster of a test."""

    api: Api
    namespace: str
    ray: FakeRay
    kuberay: FakeKubeRay
    operator: Program

    async def apply(
        self, changes: Mapping[str, Any] | None = None, name: str = "small"
    ) -> Metadata:
        """Create a job; keys are paths such as `spec.suspend`."""
        raw = make_raw_job(
            {
                "spec.training.totalSteps": 20,
                "spec.data.trainBatchSize": 8,
                "spec.data.maxPromptLength": 64,
                "spec.data.maxResponseLength": 16,
                "spec.checkpoint.everySteps": 5,
                "spec.resources": {"device": "CPU"},
                "spec.image": "trainer:test",
                **(changes or {}),
            }
        )
        raw["metadata"] = {"name": name}
        created = await self.api.create(path_of(JOBS, "raggrpojobs", self.namespace), raw)
        return Metadata.model_validate(created["metadata"])

    async def change(self, changes: Mapping[str, Any], name: str = "small") -> None:
        await self.api.patch(self.path_of_job(name), changes)

    @property
    def job_path(self) -> str:
        return self.path_of_job("small")

    def path_of_job(self, name: str) -> str:
        return path_of(JOBS, "raggrpojobs", self.namespace, name)

    async def cluster_name(self) -> str:
        """Return the name of the current RayCluster of the job `small`."""
        return str((await self.status())["cluster"]["name"])

    async def status(self, name: str = "small") -> Manifest:
        job = await self.api.get(self.path_of_job(name))
        assert job is not None
        status: Manifest = job.get("status", {})
        return status

    async def until(self, condition: Callable[[Manifest], bool], name: str = "small") -> Manifest:
        deadline, status = time.monotonic() + SECONDS, {}
        while time.monotonic() < deadline:
            status = await self.status(name)
            if condition(status):
                return status
            self.check_operator()
            await asyncio.sleep(0.05)
        log = self.operator.log_file.read_text()[-3000:]
        raise AssertionError(
            f"the status of {name} did not satisfy the condition in time: {status}\n{log}"
        )

    def check_operator(self) -> None:
        """Fail if the operator has exited."""
        process = self.operator.process
        assert process is not None, "the operator was not started"
        assert process.poll() is None, self.operator.log_file.read_text()[-3000:]

    async def until_true(self, condition: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + SECONDS
        while not await condition():
            assert time.monotonic() < deadline, self.operator.log_file.read_text()[-3000:]
            await asyncio.sleep(0.05)

    async def all_of(self, version: str, plural: str) -> list[Manifest]:
        return await self.api.items(path_of(version, plural, self.namespace))


@asynccontextmanager
async def make_environment(
    api_server: ApiServer, account: Account, namespace: str, folder: Path
) -> AsyncIterator[OperatorEnvironment]:
    """Yield a fake cluster. Its operator watches one namespace and has not been started."""
    api = Api(api_server.kubeconfig)
    async with fake_ray() as ray, fake_kuberay(api, namespace, ray) as kuberay:
        environment = OperatorEnvironment(
            api, namespace, ray, kuberay, make_operator(account, folder, ray, namespace)
        )
        try:
            yield environment
            log = environment.operator.log_file
            assert not log.exists() or "ValidatingAdmissionPolicy" not in log.read_text()
        finally:
            environment.operator.stop()  # a test may have replaced the operator
    await api.close()


def make_operator(
    account: Account, folder: Path, ray: FakeRay, namespace: str, **more: str
) -> Program:
    """Return the operator as a child process that has not been started."""
    key = folder / "key" / "current"
    key.parent.mkdir(exist_ok=True)
    key.write_text("an installation key for tests only")
    settings = {
        "RAGGRPO_WATCH_NAMESPACES": namespace,
        "RAGGRPO_NAMESPACE": account.namespace,
        "RAGGRPO_LEASE_NAME": account.name,
        "RAGGRPO_KEY_FOLDER": str(key.parent),
        "RAGGRPO_KEY_SECRET": "operator-key",
        "RAGGRPO_TRAINER_IMAGE": "trainer:test",
        "RAGGRPO_POLL_SECONDS": "0.2",
        "RAGGRPO_STATUS_SECONDS": "0.5",
        "RAGGRPO_START_GRACE_SECONDS": "1",
        "RAGGRPO_HTTP_PORT": "0",
        "KUBECONFIG": str(account.kubeconfig),
        "HEADS": ray.url,
        **more,
    }
    environment = [f"{name}={value}" for name, value in settings.items()]
    command = ["env", *environment, sys.executable, str(RUNNER)]
    name = settings.get("RAGGRPO_POD_NAME", "operator")
    return Program(name, command, folder / f"{name}.log")


def two_replicas(
    account: Account, folder: Path, ray: FakeRay, namespace: str
) -> dict[str, Program]:
    """Return two replicas of the operator by name; they have not been started."""
    elected = {"RAGGRPO_LEADER_ELECTION": "true"}
    return {
        name: make_operator(account, folder, ray, namespace, RAGGRPO_POD_NAME=name, **elected)
        for name in ("one", "two")
    }


async def leader(api: Api, account: Account) -> str:
    """Return the name of the leader, or "" if there is none yet."""
    path = path_of("coordination.k8s.io/v1", "leases", account.namespace, account.name)
    lease = await api.get(path)
    return str(lease["spec"]["holderIdentity"]) if lease else ""


def changes_by_operator(server: ApiServer, namespace: str) -> list[Manifest]:
    """Return the successful write requests of the operator."""
    return [
        each
        for each in server.audit_events()
        if each.get("objectRef", {}).get("namespace") == namespace
        and each["verb"] not in ("get", "list", "watch")
        and not each["userAgent"].startswith(PLAYERS)
        and each["responseStatus"]["code"] < HTTPStatus.BAD_REQUEST
    ]


def is_phase(phase: str) -> Callable[[Manifest], bool]:
    return lambda status: status.get("phase") == phase
