"""A job that really trains on the test cluster, and what a test asks of it while it does."""

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
from tools.kind.objects import make_claim, make_pod, mounting
from tools.kind.program import Program

MOUNT = "/mnt/work"
CLAIM = "work"
PROMPTS = 64
KILL_DRIVER = ("pkill", "-KILL", "-f", f"^{names.DRIVER_COMMAND}$")
"""For the head's container."""
LIST_SUBMISSIONS = (
    "python",
    "-c",
    "import json, os, urllib.request as u;"
    "r = u.Request('http://127.0.0.1:8265/api/jobs/', headers="
    "{'Authorization': 'Bearer ' + os.environ['RAY_AUTH_TOKEN']});"
    "print(json.dumps([j for j in json.load(u.urlopen(r)) if j['submission_id']]))",
)
"""For the head's container: what its Jobs API tells of every submission."""
MINUTES = 8
"""How long one change of a job's state may take on a busy machine."""
Status = Mapping[str, Any]


def make_job(name: str, image: str, steps: int, **spec: Any) -> dict[str, Any]:
    """Return a job on the volume that `seeded` fills; a step takes at least a second on average."""
    every = 1 + steps // 60  # a variable's text is limited
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
    """One job by its name."""

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
        """Return the name of the job's Ray cluster of this number."""
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
        found: Status = job.get("status", {})
        return found

    def until(self, is_so: Callable[[Status], bool], what: str) -> Status:
        """Wait until the status is so and return it; a job that has failed never will be."""
        deadline = time.monotonic() + 60 * MINUTES
        while not is_so(status := self.status()):
            told = json.dumps([status.get(part) for part in ("conditions", "attempts")], indent=1)
            assert status.get("phase") not in ("Failed", "Invalid"), f"no {what}:\n{told}"
            assert time.monotonic() < deadline, f"no {what}:\n{told}"
            time.sleep(1)
        return status

    def until_done(self, steps: int, attempt: int) -> Status:
        """Wait until an attempt has done so many steps and return the status."""

        def is_so(status: Status) -> bool:
            newest = (status.get("attempts") or [{}])[0]
            begun = newest.get("number") == attempt and newest.get("fromStep") is not None
            return begun and newest["toStep"] >= newest["fromStep"] + steps

        return self.until(is_so, f"{steps} steps of attempt {attempt}")

    def until_complete(self) -> Status:
        """Wait as a user's script would, and return the status."""
        self.kubectl(
            "wait", f"rgj/{self.name}", "--for=condition=Complete", f"--timeout={MINUTES}m",
            deadline=60 * MINUTES + 30,
        )  # fmt: skip
        return self.status()

    def pod(self, role: str) -> str:
        labels = f"{self._mine},{names.LABEL_ROLE}={role}"
        return self.kubectl("get", "pods", "-l", labels, "-o=name").split()[0].split("/")[1]

    def node_of(self, role: str) -> str:
        return self.kubectl("get", "pod", self.pod(role), "-o=jsonpath={.spec.nodeName}")

    def in_head(self, *command: str) -> str:
        return self.kubectl("exec", self.pod("head"), "-c", "ray-head", "--", *command)

    def kill_driver(self) -> None:
        """End the driver as the kernel would."""
        self.in_head(*KILL_DRIVER)

    def submissions(self) -> dict[str, str]:
        """Return the status of every submission that the head knows."""
        found = json.loads(self.in_head(*LIST_SUBMISSIONS))
        return {each["submission_id"]: each["status"] for each in found}

    def until_freed(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while left := self.kubectl("get", "rayclusters,pods", "-l", self._mine, "-o=name"):
            assert time.monotonic() < deadline, f"still there after {seconds:.0f} s: {left}"
            time.sleep(0.5)

    def ray_cluster(self) -> dict[str, Any]:
        [found] = self.cluster.read("rayclusters", "-n", self.namespace)["items"]
        cluster: dict[str, Any] = found
        return cluster

    def on_volume(self, image: str) -> dict[str, Any]:
        """Return the exported model's files, the history's steps, and pods whose logs are kept."""
        script = (
            "import json, pathlib as p; from raggrpo_api.trainer.history import read_history as r;"
            f"c = p.Path('{MOUNT}/checkpoints');"
            "print(json.dumps({'export': sorted(f.name for f in (c / 'export').iterdir()),"
            "'steps': [s['step'] for s in r(c / 'logs')],"
            "'logs_of': [f.parent.name for f in c.glob('logs/attempts/1/ray/*/raylet.out')]}))"
        )
        pod = mounting(make_pod("reader", image, ["python", "-c", script]), CLAIM, MOUNT)
        self.cluster.apply(pod, namespace=self.namespace)
        self.kubectl("wait", "pod/reader", "--for=jsonpath={.status.phase}=Succeeded")
        found: dict[str, Any] = json.loads(self.kubectl("logs", "reader"))
        return found


def write_model_and_data(folder: Path) -> Path:
    """Write a tiny model, prompts and passages, few enough bytes for a ConfigMap."""
    words = [str(number) for number in range(PROMPTS + 1)]
    write_word_model(folder, ["+", "=", *words])
    numbers = range(PROMPTS)
    prompts = [{"prompt": f"{n} + 1 =", "answer": str(n + 1)} for n in numbers]
    write_rows(folder / "train.jsonl", prompts)
    passages = [{"id": str(n), "contents": f"{n} + 1 = {n + 1}"} for n in numbers]
    write_rows(folder / "corpus.jsonl", passages)
    return folder


def seed(cluster: Kubernetes, namespace: str, model: Path) -> None:
    """Make the claim and copy the model and its prompts to it."""
    cluster.apply(make_claim(CLAIM), namespace=namespace)
    copy_to_volume(cluster, namespace, model, "model", f"mv {MOUNT}/model/*.jsonl {MOUNT}")


def copy_to_volume(
    cluster: Kubernetes, namespace: str, folder: Path, name: str, then: str = ""
) -> None:
    """Copy a folder's files, no more than a ConfigMap holds, to the claim's folder `name`."""
    cluster.kubectl("create", "configmap", name, f"--from-file={folder}", "-n", namespace)
    script = f"mkdir {MOUNT}/{name}\ncp -L /copied/* {MOUNT}/{name}\n{then}"
    pod = mounting(make_pod(f"copy-{name}", BASE_IMAGE, ["bash", "-ec", script]), CLAIM, MOUNT)
    pod["spec"]["volumes"].append({"name": "copied", "configMap": {"name": name}})
    copied = {"name": "copied", "mountPath": "/copied"}
    pod["spec"]["containers"][0]["volumeMounts"].append(copied)
    cluster.apply(pod, namespace=namespace)
    succeeded = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", f"pod/copy-{name}", succeeded, "--timeout=90s", "-n", namespace)


def attempts(status: Status) -> list[tuple[int, str | None, str]]:
    """Return number, cause of the end and tier of every attempt, oldest first."""
    found = reversed(status["attempts"])
    return [(each["number"], each.get("cause"), each["tier"]) for each in found]


@contextmanager
def lifetimes(cluster: Kubernetes, namespace: str) -> Iterator[Callable[[], list[str]]]:
    """Yield a function that tells every birth and death of a RayCluster there, none left out."""
    file = cluster.folder / f"{namespace}.watch"
    command = [
        str(tool_folder("kube") / "kubectl"), "get", "rayclusters", "-n", namespace, "--watch",
        "--output-watch-events", "-o=json", f"--kubeconfig={cluster.kubeconfig}",
    ]  # fmt: skip
    watch = Program("kubectl get --watch", command, file)
    watch.start()
    try:
        yield lambda: list(_births_and_deaths(file.read_text()))
    finally:
        watch.stop()
        file.unlink()


def _births_and_deaths(text: str) -> Iterator[str]:
    decoder, place = json.JSONDecoder(), 0
    while place < len(text):
        event, place = decoder.raw_decode(text, place)
        place += 1  # the line's end
        if event["type"] != "MODIFIED":
            yield f"{event['object']['metadata']['name']} {event['type']}"
