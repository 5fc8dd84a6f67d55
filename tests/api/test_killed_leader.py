"""Kill the leader while many jobs start: no job is lost and no action is repeated."""

import asyncio
import os
from collections import Counter
from pathlib import Path

from support.fakes.fake_kuberay import Api, path_of
from support.fakes.fake_kuberay_watch import FakeKubeRayWatch
from support.fakes.fake_ray import Script, fake_ray
from support.kubernetes.chart_release import Account
from support.operator.operator_environment import (
    JOBS,
    OperatorEnvironment,
    changes_by_operator,
    leader,
    two_replicas,
)
from tools.kind.api_server import ApiServer

NUM_JOBS = int(os.environ.get("RAGGRPO_STARTING_JOBS", "30"))
SECONDS_PER_JOB = 2
MADE_ONCE = ("networkpolicies", "pods", "secrets", "rayclusters", "configmaps")


async def test_leader_loss_during_many_job_starts_does_not_lose_or_repeat_actions(
    api_server: ApiServer, operator_account: Account, namespace: str, tmp_path: Path
) -> None:
    api = Api(api_server.kubeconfig)
    names = [f"job-{number:04}" for number in range(NUM_JOBS)]
    phases: dict[str, str] = {}

    async def follow() -> None:
        async for _, job in api.watch(path_of(JOBS, "raggrpojobs", namespace)):
            phases[job["metadata"]["name"]] = job.get("status", {}).get("phase", "")

    async with fake_ray() as ray, asyncio.TaskGroup() as group:
        ray.scripts = {f"{name}-a1": Script(waits_at=0) for name in names}
        kuberay = FakeKubeRayWatch(api, namespace, ray)
        players = [group.create_task(part) for part in (kuberay.run(), follow())]
        replicas = two_replicas(operator_account, tmp_path, ray, namespace)
        environment = OperatorEnvironment(api, namespace, ray, kuberay, replicas["one"])

        async def until_running(number: int) -> None:
            async with asyncio.timeout(60 + SECONDS_PER_JOB * NUM_JOBS):
                while Counter(phases.values())["Running"] < number:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

        try:
            for replica in replicas.values():
                replica.start()
            for name in names:
                await environment.apply(name=name)
            await until_running(NUM_JOBS // 3)
            process = replicas[await leader(api, operator_account)].process
            assert process is not None
            process.kill()
            running_then = Counter(phases.values())["Running"]
            await until_running(NUM_JOBS)
        finally:
            for replica in replicas.values():
                replica.stop()
            for player in players:
                player.cancel()
        statuses = [await environment.status(name) for name in names]
    await api.close()

    assert running_then < NUM_JOBS, "all jobs had started before the leader was killed"
    assert sorted(ray.submitted) == [f"{name}-a1" for name in names]
    assert {each["attempt"] for each in statuses} == {1}
    assert not [each for each in statuses if each.get("restarts", {}).get("total")]
    made = Counter(
        (each["objectRef"]["resource"], each["objectRef"]["name"])
        for each in changes_by_operator(api_server, namespace)
        if each["verb"] == "create" and each["objectRef"]["resource"] in MADE_ONCE
    )
    assert set(made.values()) == {1}, made.most_common(5)
    assert Counter(resource for resource, _ in made)["rayclusters"] == NUM_JOBS
