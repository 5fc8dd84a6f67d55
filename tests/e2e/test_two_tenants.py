"""A tenant who may only create jobs attacks; another tenant's job trains to its end undisturbed.

The attacker's image is the trainer's image with a `sitecustomize.py`, which every Python process
of the pods runs first.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tools.kind.images import Images
from tools.kind.jobs import condition, make_small_job, wait_for_status
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_pod, with_claim
from tools.kind.operator_release import PODS, RELEASE, SYSTEM
from tools.kind.training_job import CLAIM, MOUNT, TrainingJob, make_job, seed

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]

STEPS = 60
SECONDS = 300
SECRET = "6b1f-do-not-print"
ADVERSARIAL_CODE = r"""
import os, socket, threading, time
words = open("/proc/self/cmdline", "rb").read().decode(errors="replace").split("\0")
command = " ".join(words).strip()
if command.endswith("-m raggrpo_trainer.preflight") and os.environ.get("EVIL") == "preflight":
    with open(os.environ["RAGGRPO_PREFLIGHT_OUTPUT"], "w") as message:
        message.write("\x1b[2J\x1b]0;owned\x07" + "[" * 4000)
    os._exit(0)
if command.endswith("-m raggrpo_trainer") and os.environ.get("EVIL") == "head":
    def answer(caller):
        caller.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n")
        while True:
            caller.sendall(b"[")
            time.sleep(1)
    server = socket.create_server(("", 8090))
    while True:
        threading.Thread(target=answer, args=[server.accept()[0]], daemon=True).start()
"""
"""Preflight writes escape sequences and invalid JSON; the driver responds with endless brackets."""
MAY = [
    {"apiGroups": ["raggrpo.io"], "resources": ["raggrpojobs"], "verbs": ["create", "get", "patch"]}
]
FOREIGN_POLICY = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "default-deny"},
    "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
}


@dataclass(frozen=True)
class Attacker:
    """A user who may only create jobs in one namespace."""

    cluster: Kubernetes
    namespace: str
    kubeconfig: Path
    trainer: str

    def create(self, job: dict[str, Any]) -> str:
        """Create a job; return the API server's error, or "" if it accepts the job."""
        said = self.cluster.kubectl(
            "create", "-n", self.namespace, "-f", "-", stdin=json.dumps(job), check=False,
            kubeconfig=self.kubeconfig,
        )  # fmt: skip
        return said.stderr if said.returncode else ""

    def job(self, name: str, **changes: Any) -> dict[str, Any]:
        return make_small_job(name, self.trainer, {"spec.recovery.maxRestarts": 1, **changes})

    def make_adversarial_job(self, name: str, part: str) -> dict[str, Any]:
        changes = {
            "spec.reward.codeFrom": {"configMap": "hostile"},
            "spec.env": [{"name": "EVIL", "value": part}],
        }
        return self.job(name, **changes)


@pytest.fixture(scope="module")
def victim(
    cluster: Kubernetes, operator: Images, model: Path
) -> Iterator[tuple[TrainingJob, dict[str, Any]]]:
    """A job that trains in its own namespace, and its status before the attacks."""
    with cluster.namespace("e2e-victim", restricted=True) as namespace:
        seed(cluster, namespace, model)
        cluster.apply(make_job("honest", operator.trainer, STEPS), namespace=namespace)
        job = TrainingJob(cluster, namespace, "honest")
        yield job, dict(job.wait_for_steps(2, attempt=1))


@pytest.fixture(scope="module")
def attacker(
    cluster: Kubernetes, operator: Images, model: Path, victim: object
) -> Iterator[Attacker]:
    """The attacker, once the victim's job trains."""
    with cluster.namespace("e2e-attacker", restricted=True) as namespace:
        seed(cluster, namespace, model)
        who = {"name": "attacker"}
        role = "rbac.authorization.k8s.io"
        cluster.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": who},
            {"apiVersion": f"{role}/v1", "kind": "Role", "metadata": who, "rules": MAY},
            {
                "apiVersion": f"{role}/v1",
                "kind": "RoleBinding",
                "metadata": who,
                "roleRef": {"apiGroup": role, "kind": "Role", "name": "attacker"},
                "subjects": [{"kind": "ServiceAccount", "name": "attacker"}],
            },
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "hostile"},
                "data": {"sitecustomize.py": ADVERSARIAL_CODE},
            },
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": "bait"},
                "stringData": {"value": SECRET},
            },
            FOREIGN_POLICY,
            namespace=namespace,
        )
        kubeconfig = cluster.service_account_kubeconfig(namespace, "attacker")
        yield Attacker(cluster, namespace, kubeconfig, operator.trainer)


@pytest.mark.row("E1")
def test_job_named_like_network_policy_leaves_policy_unchanged(
    cluster: Kubernetes, attacker: Attacker
) -> None:
    def policy() -> dict[str, Any]:
        policy = cluster.read("networkpolicy", "default-deny", "-n", attacker.namespace)
        return {"spec": policy["spec"], "metadata": policy["metadata"]}

    before = policy()
    assert attacker.create(attacker.job("default-deny")) == ""
    wait_for_status(
        cluster,
        attacker.namespace,
        "default-deny",
        lambda status: bool(status.get("cluster", {}).get("name")),
        SECONDS,
    )
    cluster.kubectl("delete", "rgj", "default-deny", "-n", attacker.namespace)
    of_job = ("-n", attacker.namespace, "-l", "raggrpo.io/job-name=default-deny")
    cluster.kubectl("wait", "pods", *of_job, "--for=delete", "--timeout=120s")

    assert policy() == before


def test_adversarial_preflight_output_fails_job_and_is_not_stored_or_logged(
    cluster: Kubernetes, attacker: Attacker
) -> None:
    assert attacker.create(attacker.make_adversarial_job("flood", "preflight")) == ""

    status = wait_for_status(
        cluster,
        attacker.namespace,
        "flood",
        lambda status: status.get("phase") == "Failed",
        SECONDS,
    )

    assert condition(status, "PreflightPassed")["reason"] == "NoResult"
    objects = cluster.kubectl("get", "rgj,events", "-n", attacker.namespace, "-o", "json").stdout
    log = cluster.kubectl("logs", f"deployment/{RELEASE}", "-n", SYSTEM).stdout
    for text in (objects, log):
        assert "\x1b" not in text
        assert "\\u001b" not in text
        assert "owned" not in text or "\\u0007" not in text
    assert len(json.dumps(status)) < 64 * 1024


def test_slow_head_does_not_block_suspension(cluster: Kubernetes, attacker: Attacker) -> None:
    assert attacker.create(attacker.make_adversarial_job("drip", "head")) == ""
    job = TrainingJob(cluster, attacker.namespace, "drip")
    job.wait_until(lambda status: bool((status.get("attempts") or [{}])[0].get("started")), "start")

    job.patch(suspend=True)

    job.wait_until_freed(SECONDS)


def test_template_placeholders_in_configuration_are_not_expanded(
    cluster: Kubernetes, attacker: Attacker
) -> None:
    template = "$BAIT ${{BAIT}} $(BAIT) $$BAIT {passages}{prompt}"
    job = attacker.job(
        "expand",
        **{
            "spec.data.maxPromptLength": 64,
            "spec.env": [
                {"name": "BAIT", "secretKeyRef": {"name": "bait", "key": "value"}},
            ],
            "spec.retrieval": {
                "mode": "Prompt",
                "promptTemplate": template,
                "passageTemplate": "{text} ",
                "maxPassageTokens": 24,
                "endpoints": [
                    {"name": "kb", "topK": 1, "managed": {"corpus": f"{MOUNT}/corpus.jsonl"}}
                ],
            },
        },
    )
    assert attacker.create(job) == ""

    TrainingJob(cluster, attacker.namespace, "expand").wait_for_complete()

    of_job = ("-n", attacker.namespace, "-l", "raggrpo.io/job-name=expand")
    [record] = cluster.read("configmaps", *of_job)["items"]
    assert json.loads(record["data"]["config.json"])["retrieval"]["promptTemplate"] == template
    search = ["sh", "-c", f"grep -rlF {SECRET} {MOUNT}/expand && exit 1 || echo nothing"]
    pod = with_claim(make_pod("search", attacker.trainer, search), CLAIM, MOUNT)
    cluster.apply(pod, namespace=attacker.namespace)
    done = "--for=jsonpath={.status.phase}=Succeeded"
    cluster.kubectl("wait", "pod/search", done, "--timeout=90s", "-n", attacker.namespace)


def mounted_at(path: str) -> list[dict[str, str]]:
    return [{"name": "work", "claimName": CLAIM, "mountPath": path}]


@pytest.mark.row("E11", "E12")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec.env": [{"name": "DB_PASS", "value": "hunter2"}]}, "secretKeyRef"),
        ({"spec.env": [{"name": "URL", "value": "https://a:hunter2@b/"}]}, "secretKeyRef"),
        ({"spec.volumes": mounted_at("//etc")}, "mountPath"),
        ({"spec.volumes": mounted_at("/mnt/../proc")}, "mountPath"),
        ({"metadata.annotations": {"raggrpo.io/mounted": "true"},
          "spec.volumes": mounted_at("/opt/raggrpo")}, "mountPath"),
    ],
)  # fmt: skip
def test_literal_secrets_and_reserved_mount_paths_are_rejected(
    attacker: Attacker, changes: dict[str, Any], words: str
) -> None:
    said = attacker.create(attacker.job("refused", **changes))

    assert words in said
    assert "hunter2" not in said


def test_stolen_operator_token_cannot_create_other_pods(
    cluster: Kubernetes, attacker: Attacker
) -> None:
    stolen = cluster.service_account_kubeconfig(SYSTEM, RELEASE)
    plain = make_pod("owned", attacker.trainer, ["sleep", "1"])
    for namespace in ("kube-system", attacker.namespace):
        said = cluster.kubectl(
            "create", "-n", namespace, "-f", "-", stdin=json.dumps(plain), check=False,
            kubeconfig=stolen,
        )  # fmt: skip
        assert "ValidatingAdmissionPolicy" in said.stderr, said


def test_job_of_other_tenant_completes_undisturbed(
    cluster: Kubernetes, victim: tuple[TrainingJob, dict[str, Any]], attacker: Attacker
) -> None:
    job, before = victim
    restarts = "jsonpath={.items[*].status.containerStatuses[*].restartCount}"
    counts = cluster.kubectl("get", "pods", "-n", SYSTEM, "-l", PODS, "-o", restarts).stdout

    status = job.wait_for_complete()

    assert before["progress"]["step"] < STEPS
    assert (status["attempt"], status["progress"]["step"]) == (1, STEPS)
    assert status.get("restarts", {}).get("total", 0) == 0
    assert set(counts.split()) == {"0"}
