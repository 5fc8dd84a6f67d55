"""The operator's requests in all previous tests match the permissions of its chart.

Runs last. The audit log covers the cluster's whole lifetime, including earlier test runs.
"""

from collections.abc import Iterator, Mapping

import pytest

from support.kubernetes.helm_chart import NAMESPACE, RELEASE, Chart, of_kind
from tools.kind import kind_cluster
from tools.kind.go_programs import tool_folder

pytestmark = pytest.mark.long

Right = tuple[str, str, str]
"""(group, resource, verb)"""

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
EXISTING = "checks the owner of an existing retriever and repairs it, after a crash"
UNUSED: Mapping[Right, str] = {
    ("apps", "deployments", "get"): EXISTING,
    ("apps", "deployments", "patch"): EXISTING,
    ("networking.k8s.io", "networkpolicies", "patch"): "reverts manual changes",
    ("", "configmaps", "delete"): "deletes the oldest records of a job with more than ten attempts",
    ("", "configmaps", "get"): "checks the owner of an existing record, after a crash",
    ("raggrpo.io", "raggrpojobs", "get"): "rereads a job after a write conflict",
}
"""Permissions that the tests may not exercise, with their reasons."""

LEADER_ELECTION = {("coordination.k8s.io", "leases", verb) for verb in ("get", "patch")}
"""May be rejected when replicas shrink to one: the Role is deleted before the pods."""


@pytest.fixture(scope="module")
def granted() -> set[Right]:
    """Permissions of the operator's service account, including leader election."""
    helm = tool_folder("helm") / "helm"
    rendered = Chart(helm, kind_cluster.HERE.parents[2] / "helm" / RELEASE).render({"replicas": 2})
    roles = [*of_kind(rendered, "ClusterRole"), *of_kind(rendered, "Role")]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.fixture(scope="module")
def used() -> dict[Right, set[str]]:
    """Permissions that the operator used, with the decisions: allow or forbid."""
    decisions: dict[Right, set[str]] = {}
    for right, decision in operator_requests():
        decisions.setdefault(right, set()).add(decision)
    return decisions


def operator_requests() -> Iterator[tuple[Right, str]]:
    for event in kind_cluster.audit_events():
        about = event.get("objectRef")
        if event["user"]["username"] != OPERATOR or about is None:  # API discovery
            continue
        name = "/".join(filter(None, [about["resource"], about.get("subresource", "")]))
        right = (about.get("apiGroup", ""), name, event["verb"])
        # A terminating namespace returns 403 even if the request is authorized.
        yield right, event["annotations"]["authorization.k8s.io/decision"]


def test_operator_requests_were_all_authorized(used: dict[Right, set[str]]) -> None:
    forbidden = {right for right, decisions in used.items() if decisions != {"allow"}}
    assert forbidden - LEADER_ELECTION == set()


def test_admission_policies_did_not_reject_operator_requests() -> None:
    messages = [
        event.get("responseStatus", {}).get("message", "")
        for event in kind_cluster.audit_events()
        if event["user"]["username"] == OPERATOR
    ]
    assert [each for each in messages if "ValidatingAdmissionPolicy" in each] == []


@pytest.mark.row("B27")
def test_operator_uses_only_permissions_granted_by_chart(
    used: dict[Right, set[str]], granted: set[Right]
) -> None:
    assert set(used) - granted == set()


@pytest.mark.row("B27")
def test_chart_grants_only_permissions_used_by_operator(
    used: dict[Right, set[str]], granted: set[Right]
) -> None:
    assert granted - set(used) - set(UNUSED) == set()
    assert set(UNUSED) <= granted
