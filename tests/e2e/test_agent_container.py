"""A job whose application runs in a container: isolation, keys, loss and replacement of its pod.

All tests of this file use the same run, in order; the last one waits until it completes.
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tools.kind.images import Images
from tools.kind.jobs import (
    condition,
    has_ended,
    make_small_job,
    wait_for_ready_pods,
    wait_for_status,
)
from tools.kind.kubernetes import Kubernetes

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]

NAME = "agent"
STEPS = 60
START_SECONDS = 600
END_SECONDS = 420
LABELS = f"raggrpo.io/job-name={NAME},raggrpo.io/role=agent"
APPLICATION = """
import http.server, json, urllib.request
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print("key", asked["key"], flush=True)
        body = json.dumps({"model": "policy", "prompt": asked["question"], "max_tokens": 4})
        headers = {"Authorization": "Bearer " + asked["key"], "Content-Type": "application/json"}
        url = asked["url"] + "/completions"
        call = urllib.request.Request(url, body.encode(), headers)
        with urllib.request.urlopen(call, timeout=100) as reply:
            text = json.load(reply)["choices"][0]["text"]
        answer = json.dumps({"answer": text}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
    def log_message(self, *arguments):
        pass
http.server.ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""
"""An application of the standard library, which knows nothing of training."""

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
head, ports, key = json.loads(sys.argv[1])
opened = {str(number): port(head, number) for number in ports}
print(json.dumps([opened, call(os.environ["OPENAI_BASE_URL"], key)]))
"""
RAY_PORTS = (6379, 8265, 10001, 52365)


@pytest.fixture(scope="module")
def running(cluster: Kubernetes, operator: Images, shared: str) -> Iterator[str]:
    """The namespace of a job that has completed two steps."""
    agent = {
        "type": "Container",
        "identify": "Request",
        "request": {"question": "{question}", "url": "{baseUrl}", "key": "{apiKey}"},
        "container": {
            "image": operator.trainer,
            "command": ["python", "-c", APPLICATION],
            "cpu": "50m",
            "memory": "128Mi",
        },
    }
    changes = {"spec.training.totalSteps": STEPS, "spec.rollout.agent": agent}
    cluster.apply(make_small_job(NAME, operator.trainer, changes), namespace=shared)
    status = wait_for_status(cluster, shared, NAME, has_two_steps_or_end, START_SECONDS)
    assert status["phase"] == "Running", status
    yield shared
    cluster.kubectl("delete", "rgj", NAME, "-n", shared)


def has_two_steps_or_end(status: Mapping[str, Any]) -> bool:
    return steps(status) >= 2 or has_ended(status)


def steps(status: Mapping[str, Any]) -> int:
    return int(status.get("progress", {}).get("step", 0))


def status_of(cluster: Kubernetes, namespace: str) -> dict[str, Any]:
    status: dict[str, Any] = cluster.read("rgj", NAME, "-n", namespace)["status"]
    return status


def agent_pod(cluster: Kubernetes, namespace: str) -> str:
    [pod] = wait_for_ready_pods(cluster, namespace, LABELS, 1, 120)
    return str(pod["metadata"]["name"])


def trains_on(cluster: Kubernetes, namespace: str) -> None:
    """Wait until the job has completed two more steps."""
    reached = steps(status_of(cluster, namespace))

    def has_progressed(status: Mapping[str, Any]) -> bool:
        return steps(status) >= reached + 2 or has_ended(status)

    status = wait_for_status(cluster, namespace, NAME, has_progressed, END_SECONDS)
    assert steps(status) >= reached + 2, status


def test_cluster_is_created_after_container_is_ready(cluster: Kubernetes, running: str) -> None:
    of_job = ("-n", running, "-l", f"raggrpo.io/job-name={NAME}")
    [ray_cluster] = cluster.read("rayclusters", *of_job)["items"]
    ready = condition(status_of(cluster, running), "AgentServiceReady")
    assert ready["status"] == "True"
    assert ready["lastTransitionTime"][:19] <= ray_cluster["metadata"]["creationTimestamp"][:19]


@pytest.mark.row("F2")
def test_container_reaches_gateway_but_not_ray_and_old_keys_are_rejected(
    cluster: Kubernetes, running: str
) -> None:
    pod = agent_pod(cluster, running)
    keys = [
        line.split()[1]
        for line in cluster.kubectl("logs", pod, "-n", running).stdout.splitlines()
        if line.startswith("key ")
    ]
    of_head = ("-n", running, "-l", f"raggrpo.io/job-name={NAME},raggrpo.io/role=head")
    [head] = cluster.read("pods", *of_head)["items"]
    question = json.dumps([head["status"]["podIP"], RAY_PORTS, keys[0]])

    probe = cluster.kubectl("exec", pod, "-n", running, "--", "python", "-c", PROBE, question)

    opened, old_key = json.loads(probe.stdout)
    assert old_key == 401  # the gateway is reachable, and the sample of the key has ended
    assert opened == dict.fromkeys(map(str, RAY_PORTS), "unreachable")


def test_killed_pod_is_replaced_and_costs_no_attempt(cluster: Kubernetes, running: str) -> None:
    pod = agent_pod(cluster, running)

    cluster.kubectl("delete", "pod", pod, "-n", running, "--grace-period=0", "--force")

    trains_on(cluster, running)
    assert agent_pod(cluster, running) != pod
    assert len(status_of(cluster, running)["attempts"]) == 1


def test_rolled_container_costs_no_attempt(cluster: Kubernetes, running: str) -> None:
    [deployment] = cluster.read("deployments", "-n", running, "-l", LABELS)["items"]
    name = deployment["metadata"]["name"]

    cluster.kubectl("rollout", "restart", f"deployment/{name}", "-n", running)

    trains_on(cluster, running)
    assert len(status_of(cluster, running)["attempts"]) == 1


def test_deleted_deployment_is_recreated_and_job_completes(
    cluster: Kubernetes, running: str
) -> None:
    cluster.kubectl("delete", "deployments", "-n", running, "-l", LABELS)

    status = wait_for_status(cluster, running, NAME, has_ended, END_SECONDS)

    assert status["phase"] == "Succeeded", status
    assert len(status["attempts"]) == 1
    deadline = time.monotonic() + 60
    while cluster.read("deployments", "-n", running, "-l", LABELS)["items"]:
        assert time.monotonic() < deadline
        time.sleep(1)
