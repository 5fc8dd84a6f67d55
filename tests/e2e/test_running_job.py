"""A job with a managed retriever while it trains: isolation, metrics, loss of the retriever.

All tests of this file use the same run, in order; the last one waits until it completes.
"""

import base64
import json
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from support.builders.trainer.embedding_model import write_embedding_model
from support.processes.waiting import wait_for
from tools.kind.images import Images
from tools.kind.jobs import condition, events_about, has_ended, make_small_job, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_pod
from tools.kind.operator_release import RELEASE, SYSTEM
from tools.kind.training_job import MOUNT, copy_to_volume

pytestmark = pytest.mark.timeout(1200)  # the first test waits for cluster and images

STEPS = 80
START_SECONDS = 600
END_SECONDS = 420
WRITTEN = "$HOME $(HOME) $$"
"""Text that Ray or the kubelet could expand."""
REJECTED = {401, 403, "unreachable"}
"""Results of rejected requests; unreachable if the network plugin enforces NetworkPolicies."""

ASK = """
import json, os, sys, urllib.error, urllib.request
def ask(question):
    body = json.dumps(question["body"]).encode() if question.get("body") else None
    headers = {"Content-Type": "application/json"}
    if question.get("token"):
        headers["Authorization"] = "Bearer " + os.path.expandvars(question["token"])
    request = urllib.request.Request(question["url"], data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return [answer.status, answer.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, ""]
    except OSError:
        return ["unreachable", ""]
print(json.dumps([ask(question) for question in json.loads(sys.argv[1])]))
"""
"""Program that sends requests without a proxy."""


DUMP = """
import json, os, pathlib, sys, time, urllib.request
folder = pathlib.Path(sys.argv[1])
token = {"Authorization": "Bearer " + os.environ["RAY_AUTH_TOKEN"]}
ask = urllib.request.Request("http://127.0.0.1:8090/stacks", headers=token, method="POST")
urllib.request.urlopen(ask, timeout=10)
def stacks():
    return {f.stem.removeprefix("stacks-"): f.read_text()[:200] for f in folder.glob("stacks-*")}
deadline = time.monotonic() + 30
while not all(stacks().values()) and time.monotonic() < deadline:
    time.sleep(0.5)
print(json.dumps(stacks()))
"""


AS_WRITTEN = """
import json, os, pathlib, sys
meta = next(pathlib.Path(sys.argv[1]).rglob("meta.json"))
template = json.loads(meta.read_text())["resume_values"]["retrieval.promptTemplate"]
print(json.dumps([os.environ["WRITTEN"], template]))
"""


INDEXES = """
import json, pathlib, sys
folders = pathlib.Path(sys.argv[1]).glob("**/indexes/*")
print(json.dumps({f.name: [f.stat().st_ino, sorted(p.name for p in f.iterdir())] for f in folders}))
"""


@dataclass(frozen=True)
class Running:
    """The job while it trains."""

    namespace: str
    head: str
    """Address of the head pod."""
    secret: str
    """Name of the Secret with the token."""
    token: str

    @property
    def questions(self) -> list[dict[str, Any]]:
        """Requests of a client without access to Ray's Jobs API and the progress port."""
        jobs, progress = f"http://{self.head}:8265/api/jobs/", f"http://{self.head}:8090/"
        return [
            {"url": jobs, "body": {"entrypoint": "true"}},
            {"url": jobs, "body": {"entrypoint": "true"}, "token": "0" * 64},
            {"url": jobs},
            {"url": progress + "progress"},
            {"url": progress + "stop", "body": {"now": True}},
        ]


def ask(
    cluster: Kubernetes, namespace: str, image: str, questions: list[dict[str, Any]], **more: Any
) -> list[tuple[int | str, str]]:
    """Send requests from a pod; return status, or `unreachable`, and text of each."""
    name = f"ask-{uuid.uuid4().hex[:6]}"
    command = ["python", "-c", ASK, json.dumps(questions)]
    pod = make_pod(name, image, command, env=more.get("env", []))
    pod["metadata"]["labels"] = more.get("labels", {})
    cluster.apply(pod, namespace=namespace)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"pod/{name}", done, "--timeout=90s", "-n", namespace)
    answers = json.loads(cluster.kubectl("logs", name, "-n", namespace).stdout)
    return [(status, text) for status, text in answers]


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny embedding model that knows some numbers."""
    words = ["+", "=", *map(str, range(10))]
    return write_embedding_model(tmp_path_factory.mktemp("embedding"), words)


@pytest.fixture(scope="module")
def running(
    cluster: Kubernetes, operator: Images, shared: str, embedding: Path
) -> Iterator[Running]:
    """A training job that has written its first checkpoint."""
    copy_to_volume(cluster, shared, embedding, "embedding")
    changes = {
        "spec.data.maxPromptLength": 64,
        "spec.training.totalSteps": STEPS,
        "spec.retrieval": {
            "mode": "Prompt",
            "promptTemplate": f"{{passages}}{{prompt}} {WRITTEN}",
            "passageTemplate": "{text} ",
            "maxPassageTokens": 24,
            "endpoints": [
                {
                    "name": "kb",
                    "topK": 1,
                    "cache": False,
                    "managed": {
                        "corpus": f"{MOUNT}/corpus.jsonl",
                        "index": "Hybrid",
                        "embedding": {"path": f"{MOUNT}/embedding"},
                    },
                }
            ],
        },
    }
    job = make_small_job("searching", operator.trainer, changes)
    job["spec"]["env"].append({"name": "WRITTEN", "value": WRITTEN})
    cluster.apply(job, namespace=shared)
    status = wait_for_status(cluster, shared, "searching", has_checkpoint_or_end, START_SECONDS)
    assert status["phase"] == "Running", status
    of_job = ("-n", shared, "-l", "raggrpo.io/job-name=searching,raggrpo.io/role=head")
    [head] = cluster.read("pods", *of_job)["items"]
    [secret] = [
        each
        for each in cluster.read("secrets", "-n", shared)["items"]
        if each["metadata"]["name"].startswith("searching-token-")
    ]
    token = base64.b64decode(secret["data"]["auth_token"]).decode()
    yield Running(shared, head["status"]["podIP"], secret["metadata"]["name"], token)
    cluster.kubectl("delete", "rgj", "searching", "-n", shared)


def exec_in_head(cluster: Kubernetes, running: Running) -> tuple[str, ...]:
    """Return the kubectl arguments that run a command in the head's container."""
    of_head = ("-n", running.namespace, "-l", "raggrpo.io/job-name=searching,raggrpo.io/role=head")
    [head] = cluster.read("pods", *of_head)["items"]
    return ("exec", head["metadata"]["name"], "-n", running.namespace, "-c", "ray-head", "--")


def has_checkpoint_or_end(status: Mapping[str, Any]) -> bool:
    return bool(status.get("checkpoint")) or has_ended(status)


def test_ray_cluster_is_created_after_retriever_is_ready(
    cluster: Kubernetes, running: Running
) -> None:
    notes = [event["note"] for event in events_about(cluster, running.namespace, "searching")]
    assert any(note.startswith("Waiting for managed retrievers") for note in notes)
    of_job = ("-n", running.namespace, "-l", "raggrpo.io/job-name=searching")
    [ray_cluster] = cluster.read("rayclusters", *of_job)["items"]
    status = cluster.read("rgj", "searching", "-n", running.namespace)["status"]
    ready = condition(status, "RetrieverReady")
    assert ready["status"] == "True"
    assert ready["lastTransitionTime"][:19] <= ray_cluster["metadata"]["creationTimestamp"][:19]


@pytest.mark.row("B15")
def test_wide_printer_columns_show_trainer_metrics(cluster: Kubernetes, running: Running) -> None:
    command = ("get", "rgj", "searching", "-n", running.namespace, "-o", "wide")

    def shown(column: str) -> float:
        header, row = cluster.kubectl(*command).stdout.splitlines()
        return float(row[header.index(column) :].split(" ")[0] or 0)

    for column in ("TOKENS/S", "ETA", "S/STEP"):
        wait_for(lambda column=column: shown(column) > 0)


def test_ray_rejects_requests_from_other_namespaces(
    cluster: Kubernetes, operator: Images, running: Running, namespace: str
) -> None:
    answers = ask(cluster, namespace, operator.operator, running.questions)
    assert [status for status, _ in answers if status not in REJECTED] == [], answers


def test_ray_accepts_requests_of_own_pods_only_with_token(
    cluster: Kubernetes, operator: Images, running: Running
) -> None:
    with_token = {"url": f"http://{running.head}:8265/api/jobs/", "token": "$TOKEN"}
    questions = [*running.questions, with_token]
    reference = {"secretKeyRef": {"name": running.secret, "key": "auth_token"}}

    answers = ask(
        cluster,
        running.namespace,
        operator.operator,
        questions,
        labels={"raggrpo.io/job-name": "searching"},
        env=[{"name": "TOKEN", "valueFrom": reference}],
    )

    assert [status for status, _ in answers] == [401, 403, 401, 401, 401, 200]


def test_ray_token_is_stored_only_in_its_secret(cluster: Kubernetes, running: Running) -> None:
    kinds = (
        "raggrpojobs,rayclusters,pods,configmaps,events,events.events.k8s.io,services,"
        "deployments,networkpolicies"
    )
    in_objects = cluster.kubectl("get", kinds, "-n", running.namespace, "-o", "yaml").stdout
    of_operator = cluster.kubectl("logs", f"deployment/{RELEASE}", "-n", SYSTEM).stdout
    of_job = ("-l", "raggrpo.io/job-name=searching", "-n", running.namespace)
    everything = ("--all-containers", "--tail=-1", "--max-log-requests=20")
    of_pods = cluster.kubectl("logs", *of_job, *everything).stdout
    encoded = base64.b64encode(running.token.encode()).decode()

    assert "searching" in in_objects
    assert "searching" in of_operator
    for text in (in_objects, of_operator, of_pods):
        assert running.token not in text
        assert encoded not in text


def test_operator_can_create_but_not_read_secrets(cluster: Kubernetes, running: Running) -> None:
    account = f"system:serviceaccount:{SYSTEM}:{RELEASE}"

    def may(verb: str) -> bool:
        command = ("auth", "can-i", verb, "secrets", "-n", running.namespace, "--as", account)
        return cluster.kubectl(*command, check=False).stdout.strip() == "yes"

    verbs = ("get", "list", "watch", "create", "update", "patch", "delete", "deletecollection")
    assert [verb for verb in verbs if may(verb)] == ["create"]


def test_env_and_templates_are_not_expanded_in_pods(cluster: Kubernetes, running: Running) -> None:
    folder = f"{MOUNT}/searching"
    output = cluster.kubectl(
        *exec_in_head(cluster, running), "python", "-c", AS_WRITTEN, folder
    ).stdout

    variable, template = json.loads(output)
    assert variable == WRITTEN
    assert template.endswith(WRITTEN)


@pytest.mark.row("B26")
def test_metrics_are_served_to_scrape_namespace(
    cluster: Kubernetes, operator: Images, running: Running, monitoring: str
) -> None:
    of_operator = {"url": f"http://{RELEASE}.{SYSTEM}.svc:8080/metrics"}
    of_trainer = {"url": f"http://{running.head}:8090/metrics"}
    answers = ask(cluster, monitoring, operator.operator, [of_operator, of_trainer])

    (first, operator_text), (second, trainer_text) = answers
    assert (first, second) == (200, 200)
    labels = f'name="searching",namespace="{running.namespace}",phase="Running"'
    assert f"raggrpo_job_phase{{{labels}}} 1.0" in operator_text
    assert "raggrpo_" in trainer_text


@pytest.mark.row("B13")
def test_stacks_of_all_processes_are_dumped(cluster: Kubernetes, running: Running) -> None:
    folder = f"{MOUNT}/searching/logs/attempts/1"
    output = cluster.kubectl(*exec_in_head(cluster, running), "python", "-c", DUMP, folder)

    stacks: dict[str, str] = json.loads(output.stdout)
    assert stacks.keys() == {"driver", "rank-0", "engine-0"}
    assert all("Thread 0x" in text for text in stacks.values()), stacks
    status = cluster.read("rgj", "searching", "-n", running.namespace)["status"]
    assert status["attempt"] == 1  # no process was killed


@pytest.mark.row("B21", "B28", "D8")
def test_job_survives_retriever_loss_and_deletes_retriever_when_done(
    cluster: Kubernetes, running: Running
) -> None:
    of_retriever = ("-n", running.namespace, "-l", "raggrpo.io/retriever=kb")
    [killed] = cluster.read("pods", *of_retriever)["items"]
    status = cluster.read("rgj", "searching", "-n", running.namespace)["status"]
    assert status["phase"] == "Running"
    assert status["progress"]["step"] < STEPS - 10  # remaining steps still need passages

    indexes = ("python", "-c", INDEXES, MOUNT)
    before = json.loads(cluster.kubectl(*exec_in_head(cluster, running), *indexes).stdout)
    assert [files for _, files in before.values()] == [["COMPLETE", "vectors.faiss"]]

    now = ("--grace-period=0", "--force", "--wait=false")
    cluster.kubectl("delete", "pod", killed["metadata"]["name"], "-n", running.namespace, *now)

    def next_is_ready() -> bool:
        pods = cluster.read("pods", *of_retriever)["items"]
        others = [pod for pod in pods if pod["metadata"]["uid"] != killed["metadata"]["uid"]]
        return any(condition(pod["status"], "Ready")["status"] == "True" for pod in others)

    wait_for(next_is_ready, 120)
    after = json.loads(cluster.kubectl(*exec_in_head(cluster, running), *indexes).stdout)
    assert after == before  # reused, not rebuilt
    status = wait_for_status(cluster, running.namespace, "searching", has_ended, END_SECONDS)
    assert status["phase"] == "Succeeded", status
    assert condition(status, "RetrieverReady")["status"] == "True"
    assert status["progress"]["step"] == STEPS
    gone = ("deployments", "services", "pods")
    for kind in gone:
        cluster.kubectl("wait", kind, *of_retriever, "--for=delete", "--timeout=90s")
    assert cluster.read(",".join(gone), *of_retriever)["items"] == []
