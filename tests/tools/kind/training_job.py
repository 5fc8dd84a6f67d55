"""Real training jobs on the test cluster, and functions to observe them."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raggrpo_api import names
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import data_of, make_manifest
from support.builders.trainer.word_model import write_word_model
from tools.kind.go_programs import tool_folder
from tools.kind.kind_cluster import BASE_IMAGE
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_claim, make_pod, with_claim
from tools.kind.program import Program

MOUNT = "/mnt/work"
CLAIM = "work"
PROMPTS = 64
KILL_DRIVER = ("pkill", "-KILL", "-f", f"^{names.DRIVER_COMMAND}$")
"""Command for the head's container."""
LIST_SUBMISSIONS = (
    "python",
    "-c",
    "import json, os, urllib.request as u;"
    "r = u.Request('http://127.0.0.1:8265/api/jobs/', headers="
    "{'Authorization': 'Bearer ' + os.environ['RAY_AUTH_TOKEN']});"
    "print(json.dumps([j for j in json.load(u.urlopen(r)) if j['submission_id']]))",
)
"""Command for the head's container that prints all submissions of its Jobs API."""
MAX_MINUTES = 8
"""Minutes to wait for one change of a job's state on a busy machine."""
Status = Mapping[str, Any]


def make_job(name: str, image: str, steps: int, **spec: Any) -> dict[str, Any]:
    """Return a job on the volume that `seed` fills; a step takes at least a second on average."""
    every = 1 + steps // 60  # the value of an environment variable is limited
    slow = range(1, steps + 1, every)
    pace = ";".join(f"slow-step@step={step}:{every}@attempt=0" for step in slow)
    return make_manifest(
        name,
        {
            "image": image,
            "model": {"path": f"{MOUNT}/model"},
            "data": data_of(f"{MOUNT}/train.jsonl", batch=4, prompt=16, response=8),
            "rollout": {"n": 4, "temperature": 1.0},
            "training": {"totalSteps": steps, "learningRate": 1e-3, "precision": "FP32"},
            "checkpoint": {"path": f"{MOUNT}/checkpoints", "everySteps": 4},
            "resources": {"device": "CPU", "cpu": "100m"},
            "volumes": [{"name": "work", "claimName": CLAIM, "mountPath": MOUNT}],
            "env": [{"name": "RAGGRPO_FAULT", "value": pace}],
            **spec,
        },
    )


@dataclass(frozen=True)
class TrainingJob:
    """A job on the cluster, by its name."""

    cluster: Kubernetes
    namespace: str
    name: str

    @property
    def _mine(self) -> str:
        return f"{names.LABEL_JOB}={self.name}"

    @property
    def uid(self) -> str:
        return self.kubectl("get", "rgj", self.name, "-o=jsonpath={.metadata.uid}")

    def record(self, attempt: int) -> str:
        """Return the name of the ConfigMap with an attempt's configuration."""
        return names.config_map_name(self.name, self.uid, attempt)

    def cluster_name(self, number: int) -> str:
        """Return the name of the job's RayCluster `number`."""
        return names.cluster_name(self.name, self.uid, number)

    def policy(self) -> str:
        """Return the name of the NetworkPolicy of the job's pods."""
        return names.network_policy_name(self.name, self.uid)

    def kubectl(self, *arguments: str, **more: Any) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments, **more).stdout

    def patch(self, **spec: Any) -> None:
        patch = json.dumps({"spec": spec})
        self.kubectl("patch", "rgj", self.name, "--type=merge", "-p", patch)

    def status(self) -> Status:
        job = self.cluster.read("rgj", self.name, "-n", self.namespace)
        status: Status = job.get("status", {})
        return status

    def wait_until(self, predicate: Callable[[Status], bool], what: str) -> Status:
        """Wait until `predicate` is true for the status and return it; fail if the job fails."""
        deadline = time.monotonic() + 60 * MAX_MINUTES
        while not predicate(status := self.status()):
            state = json.dumps([status.get(part) for part in ("conditions", "attempts")], indent=1)
            assert status.get("phase") not in ("Failed", "Invalid"), f"no {what}:\n{state}"
            assert time.monotonic() < deadline, f"no {what}:\n{state}"
            time.sleep(1)
        return status

    def wait_for_steps(self, steps: int, attempt: int) -> Status:
        """Wait until an attempt has completed `steps` steps and return the status."""

        def has_steps(status: Status) -> bool:
            newest = (status.get("attempts") or [{}])[0]
            has_started = newest.get("number") == attempt and newest.get("fromStep") is not None
            return has_started and newest.get("toStep", 0) >= newest["fromStep"] + steps

        return self.wait_until(has_steps, f"{steps} steps of attempt {attempt}")

    def wait_for_complete(self) -> Status:
        """Run `kubectl wait` for condition Complete and return the status."""
        self.kubectl(
            "wait", f"rgj/{self.name}", "--for=condition=Complete", f"--timeout={MAX_MINUTES}m",
            deadline=60 * MAX_MINUTES + 30,
        )  # fmt: skip
        return self.status()

    def pod(self, role: str) -> str:
        labels = f"{self._mine},{names.LABEL_ROLE}={role}"
        return self.kubectl("get", "pods", "-l", labels, "-o=name").split()[0].split("/")[1]

    def node_of(self, role: str) -> str:
        return self.kubectl("get", "pod", self.pod(role), "-o=jsonpath={.spec.nodeName}")

    def run_in_head(self, *command: str) -> str:
        return self.kubectl("exec", self.pod("head"), "-c", "ray-head", "--", *command)

    def kill_driver(self) -> None:
        """Send SIGKILL to the driver."""
        self.run_in_head(*KILL_DRIVER)

    def submissions(self) -> dict[str, str]:
        """Return the status of each submission by its id."""
        submissions = json.loads(self.run_in_head(*LIST_SUBMISSIONS))
        return {each["submission_id"]: each["status"] for each in submissions}

    def wait_until_freed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while remaining := self.kubectl("get", "rayclusters,pods", "-l", self._mine, "-o=name"):
            assert time.monotonic() < deadline, f"not deleted after {seconds:.0f} s: {remaining}"
            time.sleep(0.5)

    def ray_cluster(self) -> dict[str, Any]:
        cluster: dict[str, Any]
        [cluster] = self.cluster.read("rayclusters", "-n", self.namespace)["items"]
        return cluster

    def read_volume(self, image: str) -> dict[str, Any]:
        """Return the exported files, the steps in the history, and the pods with saved logs."""
        script = (
            "import json, pathlib as p; from raggrpo_api.trainer.history import read_history as r;"
            f"c = p.Path('{MOUNT}/checkpoints');"
            "print(json.dumps({'export': sorted(f.name for f in (c / 'export').iterdir()),"
            "'steps': [s['step'] for s in r(c / 'logs')],"
            "'logs_of': [f.parent.name for f in c.glob('logs/attempts/1/ray/*/raylet.out')]}))"
        )
        pod = with_claim(make_pod("reader", image, ["python", "-c", script]), CLAIM, MOUNT)
        self.cluster.apply(pod, namespace=self.namespace)
        self.kubectl("wait", "pod/reader", "--for=jsonpath={.status.phase}=Succeeded")
        contents: dict[str, Any] = json.loads(self.kubectl("logs", "reader"))
        return contents


def write_model_and_data(folder: Path) -> Path:
    """Write a tiny model, prompts and passages that fit into a ConfigMap."""
    words = [str(number) for number in range(PROMPTS + 1)]
    write_word_model(folder, ["+", "=", *words])
    numbers = range(PROMPTS)
    prompts = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in numbers]
    write_rows(folder / "train.jsonl", prompts)
    passages = [{"id": str(n), "contents": f"{n} + 1 = {n + 1}"} for n in numbers]
    write_rows(folder / "corpus.jsonl", passages)
    return folder


def seed(cluster: Kubernetes, namespace: str, model: Path) -> None:
    """Create the claim and copy the model and its prompts to it."""
    cluster.apply(make_claim(CLAIM), namespace=namespace)
    copy_to_volume(cluster, namespace, model, "model", f"mv {MOUNT}/model/*.jsonl {MOUNT}")


def copy_to_volume(
    cluster: Kubernetes, namespace: str, folder: Path, name: str, then: str = ""
) -> None:
    """Copy the files of a folder, at most 1 MiB, to the claim's folder `name`."""
    cluster.kubectl("create", "configmap", name, f"--from-file={folder}", "-n", namespace)
    script = f"mkdir {MOUNT}/{name}\ncp -L /copied/* {MOUNT}/{name}\n{then}"
    pod = with_claim(make_pod(f"copy-{name}", BASE_IMAGE, ["bash", "-ec", script]), CLAIM, MOUNT)
    pod["spec"]["volumes"].append({"name": "copied", "configMap": {"name": name}})
    copied = {"name": "copied", "mountPath": "/copied"}
    pod["spec"]["containers"][0]["volumeMounts"].append(copied)
    cluster.apply(pod, namespace=namespace)
    succeeded = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"pod/copy-{name}", succeeded, "--timeout=90s", "-n", namespace)


def attempts(status: Status) -> list[tuple[int, str | None, str]]:
    """Return number, cause and tier of each attempt, oldest first."""
    oldest_first = reversed(status["attempts"])
    return [(each["number"], each.get("cause"), each["tier"]) for each in oldest_first]


@contextmanager
def watch_ray_clusters(cluster: Kubernetes, namespace: str) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that returns every creation and deletion of a RayCluster so far."""
    file = cluster.folder / f"{namespace}.watch"
    command = [
        str(tool_folder("kube") / "kubectl"), "get", "rayclusters", "-n", namespace, "--watch",
        "--output-watch-events", "-o=json", f"--kubeconfig={cluster.kubeconfig}",
    ]  # fmt: skip
    watch = Program("kubectl get --watch", command, file)
    watch.start()
    try:
        yield lambda: list(_created_and_deleted(file.read_text()))
    finally:
        watch.stop()
        file.unlink()


def _created_and_deleted(text: str) -> Iterator[str]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        event, place = decoder.raw_decode(text, place)
        place += 1  # skip the newline
        if event["type"] != "MODIFIED":
            yield f"{event['object']['metadata']['name']} {event['type']}"
