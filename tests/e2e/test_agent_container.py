"""A job whose application runs in a container: isolation, keys, loss and replacement of its pod.

The application is that of the quickstart, in an image. All tests of this file use the same run, in
order; the last one waits until it completes.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from tools.kind.images import Images, build_agent_image
from tools.kind.jobs import condition, has_ended, make_small_job, wait_for_ready_pods
from tools.kind.kubernetes import Kubernetes
from tools.kind.network_policies import enforced
from tools.kind.objects import make_pod, with_claim
from tools.kind.training_job import CLAIM, MOUNT, TrainingJob

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

NAME = "agent"
STEPS = 40
AGENT = f"raggrpo.io/job-name={NAME},raggrpo.io/role=agent"
INPUT = f"{MOUNT}/input"
RAY_PORTS = (6379, 8265, 10001, 52365)
READY_SECONDS = 120
HOLD_SECONDS = 120
HOLD = "/tmp/hold"
"""File in the application's pod; while it exists, the application answers no request."""
APPLICATION = f"""
import os, runpy, sys, time
sys.path.insert(0, "/app")
import quickstart_agent
answer = quickstart_agent.answer
def held(request):
    while os.path.exists("{HOLD}"):
        time.sleep(0.1)
    return answer(request)
quickstart_agent.answer = held
runpy.run_path("/app/quickstart_service.py", run_name="__main__")
"""
"""The application of the image, which can be held."""
PROBE = """
import json, os, socket, sys, urllib.error, urllib.request
def port(host, number):
    try:
        socket.create_connection((host, number), timeout=5).close()
    except OSError:
        return "unreachable"
    return "open"
def call(url, key):
    request = urllib.request.Request(url + "/models", headers={"Authorization": "Bearer " + key})
    try:
        return urllib.request.urlopen(request, timeout=5).status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return "unreachable"
key, addresses = json.loads(sys.argv[1])
opened = {f"{host}:{number}": port(host, number) for host, number in addresses}
print(json.dumps([call(os.environ["OPENAI_BASE_URL"], key), opened]))
"""
"""Program that calls the gateway with a key and connects to addresses."""


@pytest.fixture(scope="module")
def running(cluster: Kubernetes, operator: Images, seeded_quickstart: str) -> Iterator[TrainingJob]:
    """The job, which has completed two steps."""
    agent = {
        "type": "Container",
        "identify": "Trace",
        "passages": "passages",
        "container": {
            "image": build_agent_image(operator.trainer),
            "command": ["python", "-c", APPLICATION],
            "healthPath": "/healthz",
            "cpu": "50m",
            "memory": "512Mi",
        },
    }
    changes = {
        "spec.model.path": f"{INPUT}/model",
        "spec.data.trainFiles": [f"{INPUT}/train.parquet"],
        "spec.data.maxPromptLength": 96,
        "spec.data.maxResponseLength": 4,
        "spec.training.totalSteps": STEPS,
        "spec.rollout.agent": agent,
    }
    job = TrainingJob(cluster, seeded_quickstart, NAME)
    manifest = make_small_job(NAME, operator.trainer, changes)
    cluster.apply(manifest, namespace=job.namespace)
    job.wait_for_steps(2, attempt=1)
    yield job
    job.kubectl("delete", "rgj", NAME)


@pytest.fixture(scope="module")
def seeded_quickstart(cluster: Kubernetes, operator: Images, shared: str) -> str:
    """The namespace, with the model and the data of the quickstart on the claim."""
    command = ["python", "-m", "raggrpo_quickstart", "--dir", INPUT, "--steps", "2"]
    pod = with_claim(make_pod("prepare", operator.trainer, command), CLAIM, MOUNT)
    cluster.apply(pod, namespace=shared)
    succeeded = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", "pod/prepare", succeeded, "--timeout=300s", "-n", shared, deadline=330)
    return shared


def agent_pod(job: TrainingJob) -> str:
    [pod] = wait_for_ready_pods(job.cluster, job.namespace, AGENT, 1, READY_SECONDS)
    return str(pod["metadata"]["name"])


def check_that_new_pod_serves(job: TrainingJob, old: str) -> None:
    """Wait for the successor of a pod, and until the first attempt has completed two more steps."""
    job.kubectl("wait", f"pod/{old}", "--for=delete", f"--timeout={READY_SECONDS}s", deadline=130)
    agent_pod(job)
    reached = job.status()["progress"]["step"]
    status = job.wait_until(lambda status: status["progress"]["step"] >= reached + 2, "progress")
    assert status["progress"]["step"] < STEPS  # the application was needed
    assert [each["number"] for each in status["attempts"]] == [1]


def keys_of_samples(job: TrainingJob, pod: str) -> list[str]:
    """Return the keys that the application printed, oldest first."""
    lines = job.kubectl("logs", pod).splitlines()
    return [line.split("-")[1] for line in lines if line.startswith("00-")]


def probe(
    job: TrainingJob, pod: str, key: str, addresses: Sequence[tuple[str, int]] = ()
) -> tuple[int | str, dict[str, str]]:
    """Return the gateway's status for a key, and the state of each address."""
    question = json.dumps([key, addresses])
    status, opened = json.loads(job.kubectl("exec", pod, "--", "python", "-c", PROBE, question))
    return status, opened


@contextmanager
def held_application(job: TrainingJob, pod: str) -> Iterator[str]:
    """Hold the application and yield the key of a sample that it is to answer."""
    job.kubectl("exec", pod, "--", "touch", HOLD)
    try:
        yield accepted_key(job, pod)
    finally:
        job.kubectl("exec", pod, "--", "rm", HOLD)


def accepted_key(job: TrainingJob, pod: str) -> str:
    """Wait until the gateway accepts the newest key, and return it."""
    deadline = time.monotonic() + HOLD_SECONDS
    while True:
        key = keys_of_samples(job, pod)[-1]
        status, _ = probe(job, pod, key)
        if status == 200:
            return key
        assert time.monotonic() < deadline, status
        time.sleep(1)


def test_cluster_is_created_after_container_is_ready(running: TrainingJob) -> None:
    ready = condition(running.status(), "AgentServiceReady")
    assert ready["status"] == "True"
    created = running.ray_cluster()["metadata"]["creationTimestamp"]
    assert ready["lastTransitionTime"][:19] <= created[:19]


@pytest.mark.row("F2")
def test_container_reaches_gateway_but_neither_ray_nor_api_server(running: TrainingJob) -> None:
    pod = agent_pod(running)
    [key, *_] = keys_of_samples(running, pod)
    head = running.kubectl("get", "pod", running.pod("head"), "-o=jsonpath={.status.podIP}")
    addresses = [*((head, port) for port in RAY_PORTS), ("kubernetes.default", 443)]

    with enforced(running.cluster, running.namespace):
        status, opened = probe(running, pod, key, addresses)
        reached = running.status()["progress"]["step"]
        running.wait_until(lambda status: status["progress"]["step"] >= reached + 2, "progress")

    assert status == 401  # the gateway responded; the sample of the key has ended
    assert opened == {f"{host}:{port}": "unreachable" for host, port in addresses}


def test_killed_pod_is_replaced_and_costs_no_attempt(running: TrainingJob) -> None:
    pod = agent_pod(running)

    running.kubectl("delete", "pod", pod, "--grace-period=0", "--force")

    check_that_new_pod_serves(running, pod)


def test_evicted_pod_is_replaced_and_costs_no_attempt(running: TrainingJob) -> None:
    pod = agent_pod(running)
    metadata = {"name": pod, "namespace": running.namespace}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    path = f"/api/v1/namespaces/{running.namespace}/pods/{pod}/eviction"

    running.cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(eviction))

    check_that_new_pod_serves(running, pod)


def test_rolled_container_costs_no_attempt(running: TrainingJob) -> None:
    pod = agent_pod(running)
    deployment = running.kubectl("get", "deployments", "-l", AGENT, "-o=name").strip()

    running.kubectl("rollout", "restart", deployment)
    running.kubectl("rollout", "status", deployment, f"--timeout={READY_SECONDS}s")

    check_that_new_pod_serves(running, pod)


def test_keys_of_earlier_attempt_are_rejected(running: TrainingJob) -> None:
    pod = agent_pod(running)
    with held_application(running, pod) as old:
        pass

    running.kill_driver()

    running.wait_for_steps(1, attempt=2)
    assert agent_pod(running) == pod
    with held_application(running, pod) as current:
        assert current != old
        assert probe(running, pod, old)[0] == 401
        assert probe(running, pod, current)[0] == 200


def test_deleted_deployment_is_recreated_and_job_completes(running: TrainingJob) -> None:
    running.kubectl("delete", "deployments", "-l", AGENT)

    status = running.wait_until(has_ended, "end")

    assert status["phase"] == "Succeeded", status
    assert [each["number"] for each in status["attempts"]] == [2, 1]
    deadline = time.monotonic() + 60
    while running.kubectl("get", "deployments,pods", "-l", AGENT, "-o=name"):
        assert time.monotonic() < deadline
        time.sleep(1)
