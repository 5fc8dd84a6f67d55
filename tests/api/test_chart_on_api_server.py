"""The chart installed, upgraded and removed by Helm on a real API server."""

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from support.builders.jobs import a_raw_job
from tools.kind.api_server import ApiServer
from tools.kind.go_programs import tool_folder

CHART = Path("helm/raggrpo-operator").resolve()
RELEASE = "raggrpo-operator"
KEY = f"{RELEASE}-key"


@dataclass(frozen=True)
class Helm:
    """Helm, speaking to one API server about one namespace."""

    server: ApiServer
    namespace: str

    def __call__(self, *arguments: str, check: bool = True) -> str:
        ended = subprocess.run(
            [str(tool_folder("helm") / "helm"), *arguments, "--namespace", self.namespace],
            env={"KUBECONFIG": str(self.server.kubeconfig), "HOME": str(self.server.folder)},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert ended.returncode == 0 or not check, ended.stderr
        return ended.stdout

    def install(self, *options: str) -> None:
        # The tier has the CustomResourceDefinition already, applied by kubectl from the plain file.
        takes = ("--take-ownership", "--force-conflicts")
        self("upgrade", "--install", RELEASE, str(CHART), *takes, *options)

    def key(self) -> dict[str, str]:
        data: dict[str, str] = self.server.read("secret", KEY, "-n", self.namespace)["data"]
        return data


@pytest.fixture
def helm(api_server: ApiServer, namespace: str) -> Iterator[Helm]:
    helm = Helm(api_server, namespace)
    yield helm
    helm("uninstall", RELEASE, "--ignore-not-found")


def rendered_key(helm: Helm) -> str:
    text = helm("template", RELEASE, str(CHART), "--dry-run=server")
    [secret] = [m for m in yaml.safe_load_all(text) if m and m["kind"] == "Secret"]
    return str(secret["data"]["current"])


def test_the_key_outlives_upgrades_renderings_and_the_release(helm: Helm) -> None:
    helm.install()
    key = helm.key()

    helm.install("--set", "replicas=2", "--set", "settings.logLevel=DEBUG")
    assert helm.key() == key
    assert rendered_key(helm) == rendered_key(helm) == key["current"]
    helm("uninstall", RELEASE)
    assert helm.key() == key
    helm.install()
    assert helm.key() == key


def test_the_number_of_replicas_may_grow_and_shrink(helm: Helm) -> None:
    for replicas, strategy in ((1, "Recreate"), (2, "RollingUpdate"), (1, "Recreate")):
        helm.install("--set", f"replicas={replicas}")
        spec = helm.server.read("deployment", RELEASE, "-n", helm.namespace)["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (replicas, strategy)


def test_a_rotated_key_is_kept_with_the_one_before(helm: Helm) -> None:
    helm.install()
    old = helm.key()["current"]
    rotated = {"data": {"current": "bmV3LW5ldy1uZXctbmV3LW5ldw==", "previous": old}}
    patch = yaml.safe_dump(rotated)
    helm.server.kubectl("patch", "secret", KEY, "-n", helm.namespace, "-p", patch)
    helm.install("--set", "replicas=2")

    assert helm.key() == rotated["data"]


def test_jobs_and_their_kind_stay_when_the_release_is_removed(helm: Helm) -> None:
    helm.install()
    job = a_raw_job() | {"metadata": {"name": "kept"}}
    helm.server.apply(job, namespace=helm.namespace)

    helm("uninstall", RELEASE)

    assert helm.server.read("rgj", "kept", "-n", helm.namespace)["metadata"]["uid"]
    gone = helm.server.kubectl("get", "deployment", RELEASE, "-n", helm.namespace, check=False)
    assert "NotFound" in gone.stderr


MAY = [
    ("list", "raggrpojobs.raggrpo.io"),
    ("patch", "raggrpojobs.raggrpo.io/status"),
    ("create", "rayclusters.ray.io"),
    ("create", "pods"),
    ("create", "secrets"),
    ("create", "events.events.k8s.io"),
]
MUST_NOT = [
    ("get", "secrets"),
    ("list", "secrets"),
    ("patch", "secrets"),
    ("patch", "rayclusters.ray.io"),
    ("patch", "raggrpojobs.raggrpo.io"),
    ("patch", "pods"),
    ("create", "pods/exec"),
    ("create", "serviceaccounts/token"),
    ("create", "roles.rbac.authorization.k8s.io"),
    ("get", "nodes"),
]


@pytest.mark.parametrize("scoped", [False, True], ids=["cluster", "namespaces"])
def test_the_service_account_may_do_what_is_needed_and_no_more(helm: Helm, scoped: bool) -> None:
    helm.install(*(["--set", f"watchNamespaces={{{helm.namespace}}}"] if scoped else []))
    who = f"system:serviceaccount:{helm.namespace}:{RELEASE}"

    def may(verb: str, resource: str, namespace: str) -> bool:
        kind, _, subresource = resource.partition("/")
        answer = helm.server.kubectl(
            "auth", "can-i", verb, kind, f"--subresource={subresource}",
            "-n", namespace, "--as", who, check=False,
        )  # fmt: skip
        return answer.stdout.strip() == "yes"

    assert [each for each in MAY if not may(*each, helm.namespace)] == []
    assert [each for each in MUST_NOT if may(*each, helm.namespace)] == []
    assert may("list", "raggrpojobs.raggrpo.io", "kube-system") is not scoped
