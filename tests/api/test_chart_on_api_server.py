"""The chart installed, upgraded and removed by Helm on a real API server."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from support.builders.operator.jobs import make_raw_job
from support.kubernetes.chart_release import CHART, Account, Helm, wait_for_policies
from support.kubernetes.helm_chart import RELEASE
from tools.kind.api_server import ApiServer

KEY = f"{RELEASE}-key"


@pytest.fixture
def helm(api_server: ApiServer, namespace: str) -> Iterator[Helm]:
    helm = Helm(api_server, namespace)
    yield helm
    helm("uninstall", RELEASE, "--ignore-not-found")


def rendered_key(helm: Helm) -> str:
    text = helm("template", RELEASE, str(CHART), "--dry-run=server")
    [secret] = [m for m in yaml.safe_load_all(text) if m and m["kind"] == "Secret"]
    return str(secret["data"]["current"])


@pytest.mark.row("B27")
def test_installation_key_survives_upgrade_and_uninstall(helm: Helm) -> None:
    helm.install()
    key = helm.key()

    helm.install("--set", "replicas=2", "--set", "settings.logLevel=DEBUG")
    assert helm.key() == key
    assert rendered_key(helm) == rendered_key(helm) == key["current"]
    helm("uninstall", RELEASE)
    assert helm.key() == key
    helm.install()
    assert helm.key() == key


def test_replicas_can_be_changed_with_helm_upgrade(helm: Helm) -> None:
    for replicas, strategy in ((1, "Recreate"), (2, "RollingUpdate"), (1, "Recreate")):
        helm.install("--set", f"replicas={replicas}")
        spec = helm.server.read("deployment", RELEASE, "-n", helm.namespace)["spec"]
        assert (spec["replicas"], spec["strategy"]["type"]) == (replicas, strategy)


def test_rotated_installation_key_survives_helm_upgrade(helm: Helm) -> None:
    helm.install()
    old = helm.key()["current"]
    rotated = {"data": {"current": "bmV3LW5ldy1uZXctbmV3LW5ldw==", "previous": old}}
    patch = yaml.safe_dump(rotated)
    helm.server.kubectl("patch", "secret", KEY, "-n", helm.namespace, "-p", patch)
    helm.install("--set", "replicas=2")

    assert helm.key() == rotated["data"]


def test_crd_and_jobs_survive_uninstall(helm: Helm) -> None:
    helm.install()
    job = make_raw_job() | {"metadata": {"name": "kept"}}
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
def test_service_account_has_only_needed_permissions(helm: Helm, scoped: bool) -> None:
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


@pytest.mark.row("E9")
def test_namespace_admin_can_install_chart_only_with_delegated_rbac(
    api_server: ApiServer, namespace: str
) -> None:
    with api_server.namespace(f"{namespace}-b") as other:
        helm = Helm(api_server, namespace, admin_of(api_server, namespace, other))
        scoped = f"--set=watchNamespaces={{{namespace},{other}}},crds.install=false"
        command = ("upgrade", "--install", RELEASE, str(CHART), scoped)
        refused = helm.run(*command).stderr
        assert "attempting to grant RBAC permissions not currently held" in refused

        delegate = "--set=rbac.delegateToNamespaceAdmins=true"
        once = helm(
            "template", "delegated", str(CHART), delegate, "-s=templates/namespace-admins.yaml"
        )
        api_server.kubectl("apply", "-f", "-", stdin=once)
        try:
            wait_for_right(api_server, helm, "patch", "raggrpojobs/status")
            said = helm(*command)
            account = Account.of(helm)
            policies = helm(
                "template", RELEASE, str(CHART), scoped, "--set=admissionPolicies.enabled=true",
                "-s=templates/policies/*.yaml",
            )  # fmt: skip
            api_server.kubectl("apply", "-f", "-", stdin=policies)
            wait_for_policies(account)
            for each in (namespace, other):
                jobs = account.call(
                    "GET", f"/apis/raggrpo.io/v1alpha1/namespaces/{each}/raggrpojobs"
                )
                assert jobs.status_code == 200, jobs.text
            assert account.call("GET", "/api/v1/namespaces/default/pods").status_code == 403
            api_server.kubectl("delete", "-f", "-", stdin=policies)
            account.http.close()
            helm("uninstall", RELEASE)
        finally:
            api_server.kubectl("delete", "-f", "-", stdin=once)
    assert "admissionPolicies.enabled=true" in said


def admin_of(server: ApiServer, *namespaces: str) -> Path:
    """Return the kubeconfig of a user who has only the built-in role admin in these namespaces."""
    home = namespaces[0]
    server.kubectl("create", "serviceaccount", "installer", "-n", home)
    for each in namespaces:
        server.kubectl(
            "create", "rolebinding", "installer", "--clusterrole=admin",
            f"--serviceaccount={home}:installer", "-n", each,
        )  # fmt: skip
    return server.service_account_kubeconfig(home, "installer")


def wait_for_right(server: ApiServer, helm: Helm, verb: str, resource: str) -> None:
    """Wait until a permission is aggregated into the role admin."""
    kind, _, subresource = resource.partition("/")
    question = ("auth", "can-i", verb, kind, f"--subresource={subresource}", "-n", helm.namespace)
    deadline = time.monotonic() + 30
    while "yes" not in server.kubectl(*question, kubeconfig=helm.kubeconfig, check=False).stdout:
        assert time.monotonic() < deadline
        time.sleep(0.2)
