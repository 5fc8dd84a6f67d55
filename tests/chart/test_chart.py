import json
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from raggrpo_operator.core.manifests.cluster_settings import ClusterSettings
from raggrpo_operator.crd import CRD_FILE, KEEP, crd_manifest
from raggrpo_operator.kube.client import BY_KIND, JOBS, LEASES
from raggrpo_operator.kubernetes_runtime.process.settings import PREFIX, Settings, read_settings
from raggrpo_operator.kubernetes_runtime.watching.trimming import CHILDREN
from support.kubernetes.helm_chart import (
    EVERYTHING,
    MATRIX,
    NAMESPACE,
    RELEASE,
    Chart,
    HelmRejected,
    Manifest,
    of_kind,
    one,
)
from support.kubernetes.kubernetes_schemas import violations_of_schemas
from support.kubernetes.pod_security import violations_of_restricted
from tools.kind.go_programs import OLDEST_API, tool_folder

EACH = pytest.mark.parametrize("values", MATRIX.values(), ids=MATRIX)


@EACH
def test_chart_passes_helm_lint(chart: Chart, values: dict[str, Any]) -> None:
    assert "0 chart(s) failed" in chart.lint(values)


@pytest.mark.row("B27")
@EACH
def test_chart_objects_match_kubernetes_schemas(chart: Chart, values: dict[str, Any]) -> None:
    assert violations_of_schemas(chart.render(values)) == []


@EACH
def test_chart_objects_are_unique_and_in_release_namespace(
    chart: Chart, values: dict[str, Any]
) -> None:
    manifests = chart.render(values)

    ids = [(m["kind"], m["metadata"]["name"], m["metadata"].get("namespace")) for m in manifests]
    assert len(ids) == len(set(ids))
    for manifest in manifests:
        metadata = manifest["metadata"]
        clusterwide = manifest["kind"].startswith(
            ("Cluster", "CustomResource", "ValidatingAdmission")
        )
        allowed = {NAMESPACE, *values.get("watchNamespaces", [])}
        assert clusterwide == ("namespace" not in metadata)
        assert metadata.get("namespace", NAMESPACE) in allowed
        assert metadata["labels"]["app.kubernetes.io/part-of"] == "raggrpo"


@EACH
def test_chart_pods_meet_restricted_pod_security_standard(
    chart: Chart, values: dict[str, Any]
) -> None:
    manifests = chart.render(values)

    deployment = one(manifests, "Deployment")["spec"]["template"]["spec"]
    for pod in (deployment, one(manifests, "Pod")["spec"]):
        assert violations_of_restricted(pod) == []
        assert pod["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True
        assert pod["containers"][0]["resources"]["limits"]["memory"]
    assert deployment["automountServiceAccountToken"] is True
    assert one(manifests, "Pod")["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"replica": 2}, "replica"),
        ({"replicas": "two"}, "replicas"),
        ({"image": {"repository": ""}}, "repository"),
        ({"image": {"digest": "latest"}}, "digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"watchNamespaces": "team-a"}, "watchNamespaces"),
        ({"watchNamespaces": ["Team_A"]}, "watchNamespaces"),
        ({"settings": {"logLevel": "LOUD"}}, "logLevel"),
        ({"settings": {"workers": 0}}, "workers"),
        ({"settings": {"pollseconds": 5}}, "settings"),
        ({"metrics": {"serviceMonitor": {"interval": "often"}}}, "interval"),
        ({"imagePullSecrets": ["registry"]}, "imagePullSecrets"),
        ({"networkPolicy": {"apiServer": ["192.0.2.10"]}}, "apiServer"),
        ({"networkPolicy": {"apiServer": ["0.0.0.0/0"]}}, "apiServer"),
        ({"networkPolicy": {"egress": [{"from": []}]}}, "egress"),
        ({"installationKey": {"value": "secret"}}, "installationKey"),
        ({"admissionPolicies": {"enabled": "sometimes"}}, "enabled"),
        ({"jobPolicy": {"allowedImage": ["a/"]}}, "allowedImage"),
        ({"jobPolicy": {"allowedEndpoints": ["https://rag.example.com"]}}, "allowedEndpoints"),
        ({"jobPolicy": {"validations": [{"expression": "true"}]}}, "message"),
    ],
)
def test_invalid_chart_value_is_rejected_with_its_path(
    chart: Chart, values: dict[str, Any], place: str
) -> None:
    with pytest.raises(HelmRejected, match=place):
        chart.render(values)


def test_unsupported_kubernetes_version_is_rejected(chart: Chart) -> None:
    with pytest.raises(HelmRejected, match=r"1\.32"):
        chart.render({}, "--kube-version", "1.31.0")


def test_chart_crd_equals_generated_crd_and_is_kept_on_uninstall(chart: Chart) -> None:
    crd = one(chart.render(), "CustomResourceDefinition")
    assert crd["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert crd == crd_manifest(KEEP)
    assert len(yaml.safe_dump(crd)) < 512 * 1024  # the Secret of a release is limited to 1 MiB


@pytest.mark.row("B1")
def test_oldest_supported_kubernetes_accepts_crd_and_cel_costs(
    chart: Chart, tmp_path: Path
) -> None:
    version = yaml.safe_load((chart.folder / "Chart.yaml").read_text())["kubeVersion"]
    assert version == f">={OLDEST_API.replace('v0', '1')}-0"
    program = tool_folder("crd-check") / "crd-check"

    def objections(file: Path) -> str:
        ended = subprocess.run([program, file], capture_output=True, text=True)
        assert bool(ended.stderr) is bool(ended.returncode)
        return ended.stderr

    assert objections(CRD_FILE) == ""
    crd = yaml.safe_load(CRD_FILE.read_text())
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    expensive = (
        "self.spec.volumes.all(v, self.spec.volumes.all(w, [v, w].map(x, x.name).join('') != ''))"
    )
    schema["x-kubernetes-validations"] += [{"rule": expensive, "message": "costs too much"}]
    (tmp_path / "expensive.yaml").write_text(json.dumps(crd))
    assert "exceeds budget" in objections(tmp_path / "expensive.yaml")


def rules_of(manifests: list[Manifest], *kinds: str) -> Iterator[tuple[str, str, str]]:
    for kind in kinds:
        for role in of_kind(manifests, kind):
            if "-view" in role["metadata"]["name"] or "-edit" in role["metadata"]["name"]:
                continue
            for rule in role["rules"]:
                for group in rule["apiGroups"]:
                    for resource in rule["resources"]:
                        yield from ((group, resource, verb) for verb in rule["verbs"])


def group_of(api_version: str) -> str:
    return api_version.rpartition("/")[0]


@pytest.mark.row("B27")
@pytest.mark.parametrize("values", [{}, {"watchNamespaces": ["a"]}], ids=["cluster", "namespaces"])
def test_operator_roles_grant_only_needed_permissions(chart: Chart, values: dict[str, Any]) -> None:
    rules = set(rules_of(chart.render(values | {"replicas": 2}), "ClusterRole", "Role"))

    watched = {(group_of(each.api_version), each.plural) for each in (JOBS, *CHILDREN)}
    for group, plural in watched:
        assert {(group, plural, "list"), (group, plural, "watch")} <= rules
    touched = {(group_of(each.api_version), each.plural) for each in BY_KIND.values()}
    touched.add(("raggrpo.io", "raggrpojobs/status"))
    resources = {(group, resource) for group, resource, _ in rules}
    to_find_kuberay = {("apiextensions.k8s.io", "customresourcedefinitions")}
    to_see_gpus = {("", "nodes")}
    assert resources - touched == (set() if values else to_find_kuberay | to_see_gpus)
    assert {verb for _, resource, verb in rules if resource == "nodes"} <= {"list"}
    assert touched <= resources
    assert not [rule for rule in rules if "*" in rule]
    assert {verb for _, resource, verb in rules if resource == "secrets"} == {"create"}
    assert not {verb for _, _, verb in rules} & {"escalate", "bind", "impersonate", "update"}


@pytest.mark.parametrize(
    ("values", "reads"),
    [({}, True), ({"rbac": {"readNodes": False}}, False), ({"watchNamespaces": ["a"]}, False)],
)
def test_node_read_permission_is_optional(
    chart: Chart, values: dict[str, Any], reads: bool
) -> None:
    manifests = chart.render(values)
    rules = set(rules_of(manifests, "ClusterRole", "Role"))
    assert (("", "nodes", "list") in rules) is reads
    assert read_settings(environment_of(manifests)).read_nodes is reads


def test_namespaced_mode_does_not_grant_cluster_permissions(chart: Chart) -> None:
    manifests = chart.render({"watchNamespaces": ["team-a", "team-b"]})

    assert not of_kind(manifests, "ClusterRole")
    assert not of_kind(manifests, "ClusterRoleBinding")
    assert [m["metadata"]["namespace"] for m in of_kind(manifests, "Role")] == ["team-a", "team-b"]
    for binding in of_kind(manifests, "RoleBinding"):
        assert binding["subjects"][0]["namespace"] == NAMESPACE


POLICY = "ValidatingAdmissionPolicy"
ADMISSION = "admissionregistration.k8s.io/v1"


def test_admission_policies_are_disabled_by_default_in_namespaced_mode(
    chart: Chart,
) -> None:
    scoped = {"watchNamespaces": ["team-a"]}
    on, off = ({"admissionPolicies": {"enabled": value}} for value in (True, False))
    assert of_kind(chart.render(), POLICY)
    assert of_kind(chart.render(scoped | on), POLICY)
    assert not of_kind(chart.render(scoped), POLICY)
    assert not of_kind(chart.render(off), POLICY)
    known = ("--api-versions", "v1/Pod")
    assert not of_kind(chart.render({}, *known), POLICY)
    assert of_kind(chart.render({}, *known, "--api-versions", f"{ADMISSION}/{POLICY}"), POLICY)


@pytest.mark.parametrize("release", [RELEASE, "blue"])
def test_admission_policies_deny_and_fail_closed(chart: Chart, release: str) -> None:
    manifests = chart.render(EVERYTHING, release=release)

    account = one(manifests, "ServiceAccount")["metadata"]["name"]
    bindings = [each["spec"] for each in of_kind(manifests, f"{POLICY}Binding")]
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(manifests, POLICY)}
    assert {each["policyName"] for each in bindings} == set(policies)
    assert {name.removeprefix("blue-") for name in policies} == {
        f"{RELEASE}-{part}" for part in ("ownership", "pods", "objects", "jobs")
    }
    assert all(each["validationActions"] == ["Deny"] for each in bindings)
    user = f'request.userInfo.username == "system:serviceaccount:{NAMESPACE}:{account}"'
    for name, spec in policies.items():
        assert spec["failurePolicy"] == "Fail"
        assert [each["expression"] for each in spec["matchConditions"]] == (
            ['request.operation == "CREATE" || object.spec != oldObject.spec']
            if name.endswith("-jobs")
            else [user]
        )
        assert all(each["reason"] == "Forbidden" for each in spec["validations"])


def test_admission_policies_cover_all_kinds_written_by_operator(chart: Chart) -> None:
    manifests = chart.render({"replicas": 2})
    seen = {
        (group, resource)
        for policy in of_kind(manifests, POLICY)
        for rule in policy["spec"]["matchConstraints"]["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }
    written = {
        (group, resource)
        for group, resource, verb in rules_of(manifests, "ClusterRole", "Role")
        if verb in ("create", "patch", "delete") and "/" not in resource
    }
    assert written == seen


def test_job_policy_without_admission_policies_is_rejected(chart: Chart) -> None:
    limits = {"jobPolicy": {"allowedImages": ["a/"]}}
    with pytest.raises(HelmRejected, match="jobPolicy needs admission policies"):
        chart.render(limits | {"watchNamespaces": ["team-a"]})
    with pytest.raises(HelmRejected, match="jobPolicy needs admission policies"):
        chart.render(limits | {"admissionPolicies": {"enabled": False}})


def test_namespace_admin_role_covers_operator_role(chart: Chart) -> None:
    delegated = {"rbac": {"delegateToNamespaceAdmins": True}}
    manifests = chart.render(delegated | {"watchNamespaces": ["a"], "replicas": 2})
    role = one(manifests, "ClusterRole")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-admin"] == "true"
    assert set(rules_of(manifests, "Role")) <= set(rules_of(manifests, "ClusterRole"))


def test_deployment_strategy_depends_on_replicas(chart: Chart) -> None:
    alone, two = chart.render(), chart.render({"replicas": 2})

    assert one(alone, "Deployment")["spec"]["strategy"]["type"] == "Recreate"
    assert not of_kind(alone, "PodDisruptionBudget")
    assert not of_kind(alone, "Role")
    assert one(two, "Deployment")["spec"]["strategy"]["type"] == "RollingUpdate"
    assert one(two, "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
    lease = {(resource, verb) for _, resource, verb in rules_of(two, "Role")}
    assert lease == {(LEASES.plural, verb) for verb in ("create", "get", "patch")}
    named = [r for r in one(two, "Role")["rules"] if "resourceNames" in r]
    assert named[0]["resourceNames"] == [environment_of(two)["RAGGRPO_LEASE_NAME"]]


def environment_of(manifests: list[Manifest]) -> dict[str, str]:
    """Return the environment of the operator's container."""
    [container] = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    by_field = {"metadata.name": "operator-0", "metadata.namespace": NAMESPACE}
    return {
        each["name"]: each["value"]
        if "value" in each
        else by_field[each["valueFrom"]["fieldRef"]["fieldPath"]]
        for each in container["env"]
    }


class Recorded(dict[str, str]):
    """An environment that records which variables were read."""

    def __init__(self, values: Mapping[str, str]) -> None:
        super().__init__(values)
        self.read_names: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.read_names.add(key)
        return super().get(key, default)


@EACH
def test_operator_parses_chart_environment(
    chart: Chart, values: dict[str, Any], tmp_path: Path
) -> None:
    environment = Recorded(environment_of(chart.render(values)))
    assert environment["RAGGRPO_KEY_FOLDER"] == "/etc/raggrpo/key"
    environment["RAGGRPO_KEY_FOLDER"] = str(tmp_path)

    settings = read_settings(environment)

    ours = {name for name in environment if name.startswith(PREFIX)}
    assert ours <= environment.read_names
    fixed = {"RAGGRPO_DASHBOARD_PORT", "RAGGRPO_PROGRESS_PORT"}  # fixed
    assert environment.read_names - ours <= fixed | {"KUBERNETES_SERVICE_HOST"}  # from Kubernetes
    assert settings.own_namespace == NAMESPACE
    assert settings.namespaces == tuple(values.get("watchNamespaces", ()))
    assert settings.leader_election is (values.get("replicas", 1) > 1)
    assert settings.trainer_image == "raggrpo/trainer:0.1.0"
    assert settings.http_port == 8080
    assert len(Settings.model_fields) >= len(ours)


def test_chart_values_are_passed_to_operator(chart: Chart, tmp_path: Path) -> None:
    given = {
        "logLevel": "DEBUG",
        "resyncSeconds": 1234567 % 86400,  # large numbers must not become 1.2e+06
        "pollSeconds": 0.5,
        "statusSeconds": 20,
        "startGraceSeconds": 30,
        "workers": 4,
    }
    rule = {"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}], "ports": [{"port": 9000}]}
    policy = {
        "restrictEgress": False,
        "apiServer": ["192.0.2.10/32", "fd00::/64"],
        "egress": [rule],
    }
    environment = environment_of(chart.render({"settings": given, "networkPolicy": policy}))

    settings = read_settings(environment | {"RAGGRPO_KEY_FOLDER": str(tmp_path)})

    assert settings.log_level == "DEBUG"
    assert settings.resync_seconds == given["resyncSeconds"]
    assert (settings.poll_seconds, settings.status_seconds) == (0.5, 20)
    assert (settings.start_grace_seconds, settings.workers) == (30, 4)
    assert (settings.restrict_egress, settings.egress) == (False, (rule,))
    assert settings.api_server == ("192.0.2.10/32", "fd00::/64")


@pytest.mark.row("E12")
@pytest.mark.parametrize(
    ("policy", "is_reported"),
    [({}, True), ({"apiServer": ["192.0.2.10/32"]}, False), ({"restrictEgress": False}, False)],
)
def test_helm_notes_warn_about_missing_api_server_addresses(
    chart: Chart, policy: dict[str, Any], is_reported: bool
) -> None:
    notes = chart.notes({"networkPolicy": policy})
    assert ("networkPolicy.apiServer is empty" in notes) is is_reported


def test_job_network_policies_select_operator_pods(chart: Chart) -> None:
    pod = one(chart.render(), "Deployment")["spec"]["template"]["metadata"]["labels"]
    settings = ClusterSettings(trainer_image="t", operator_namespace="n")
    assert settings.operator_labels.items() <= pod.items()


def test_chart_selectors_match_operator_pod_but_not_test_pod(chart: Chart) -> None:
    manifests = chart.render(EVERYTHING)
    operator = one(manifests, "Deployment")["spec"]["template"]["metadata"]["labels"]
    test = one(manifests, "Pod")["metadata"]["labels"]

    selectors = [
        one(manifests, "Service")["spec"]["selector"],
        one(manifests, "Deployment")["spec"]["selector"]["matchLabels"],
        one(manifests, "NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one(manifests, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
    ]
    for selector in selectors:
        assert selector.items() <= operator.items()
        assert not selector.items() <= test.items()
    ingress = one(manifests, "NetworkPolicy")["spec"]["ingress"][0]["from"]
    assert ingress[0]["podSelector"]["matchLabels"].items() <= test.items()
    assert ingress[1]["namespaceSelector"]["matchLabels"] == {
        "kubernetes.io/metadata.name": "monitoring"
    }


def test_installation_key_is_generated_unless_existing_secret_is_specified(chart: Chart) -> None:
    made = one(chart.render(), "Secret")
    given = chart.render({"installationKey": {"existingSecret": "own-key"}})

    assert made["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    assert len(made["data"]["current"]) >= 64
    assert not of_kind(given, "Secret")
    volumes = one(given, "Deployment")["spec"]["template"]["spec"]["volumes"]
    assert volumes[0]["secret"]["secretName"] == "own-key"


def test_image_digest_takes_precedence_over_tag(chart: Chart) -> None:
    digest = "sha256:" + "a" * 64
    manifests = chart.render(
        {"image": {"digest": digest, "tag": "1.2.3"}, "trainerImage": {"tag": "cpu"}}
    )

    [container] = one(manifests, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert container["image"] == f"raggrpo/operator@{digest}"
    assert environment_of(manifests)["RAGGRPO_TRAINER_IMAGE"] == "raggrpo/trainer:cpu"


def test_releases_in_same_cluster_do_not_collide(chart: Chart) -> None:
    one_release = chart.render({"crds": {"install": False}})
    other = chart.render({"crds": {"install": False}}, release="blue")

    def clusterwide(manifests: list[Manifest]) -> set[tuple[str, str]]:
        kinds = ("ClusterRole", "ClusterRoleBinding", POLICY, f"{POLICY}Binding")
        return {(m["kind"], m["metadata"]["name"]) for k in kinds for m in of_kind(manifests, k)}

    assert one(one_release, "Deployment")["metadata"]["name"] == RELEASE
    assert one(other, "Deployment")["metadata"]["name"] == "blue-raggrpo-operator"
    assert not clusterwide(one_release) & clusterwide(other)
