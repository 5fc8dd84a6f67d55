"""What the operator asked of the API server in all tests before is what its chart lets it do.

The last file of the tier. The log begins with the cluster, so one that is used again counts too.
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
TAKEN = "asks whose a retriever is that is there already, and mends it, after a crash"
UNUSED: Mapping[Right, str] = {
    ("apps", "deployments", "get"): TAKEN,
    ("apps", "deployments", "patch"): TAKEN,
    ("networking.k8s.io", "networkpolicies", "patch"): "closes what was opened by hand",
    ("", "configmaps", "delete"): "a job of more than ten attempts drops its oldest records",
    ("", "configmaps", "get"): "asks whose a record is that is there already, after a crash",
    ("raggrpo.io", "raggrpojobs", "get"): "reads a job whose status somebody else wrote meanwhile",
}
"""What the chart allows though the tests need not make the operator do it, with the reason."""

ENDING = {("coordination.k8s.io", "leases", verb) for verb in ("get", "patch")}
"""Refused for a moment when replicas shrink to one: the election's Role goes before its pods."""


@pytest.fixture(scope="module")
def granted() -> set[Right]:
    """Rights of the operator's service account, with the election of several replicas."""
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
    """What the operator asked for, and how that was decided: allow or forbid."""
    found: dict[Right, set[str]] = {}
    for right, decision in asked():
        found.setdefault(right, set()).add(decision)
    return found


def asked() -> Iterator[tuple[Right, str]]:
    for event in kind_cluster.audit_events():
        about = event.get("objectRef")
        if event["user"]["username"] != OPERATOR or about is None:  # which kinds there are
            continue
        name = "/".join(filter(None, [about["resource"], about.get("subresource", "")]))
        right = (about.get("apiGroup", ""), name, event["verb"])
        # A namespace that is ending answers 403 as well, though the right is there.
        yield right, event["annotations"]["authorization.k8s.io/decision"]


def test_operator_requests_were_all_authorized(used: dict[Right, set[str]]) -> None:
    refused = {right for right, decisions in used.items() if decisions != {"allow"}}
    assert refused - ENDING == set()


def test_admission_policies_rejected_no_operator_request() -> None:
    said = [
        event.get("responseStatus", {}).get("message", "")
        for event in kind_cluster.audit_events()
        if event["user"]["username"] == OPERATOR
    ]
    assert [each for each in said if "ValidatingAdmissionPolicy" in each] == []


@pytest.mark.row("B27")
def test_operator_uses_only_permissions_of_chart(
    used: dict[Right, set[str]], granted: set[Right]
) -> None:
    assert set(used) - granted == set()


@pytest.mark.row("B27")
def test_chart_grants_only_used_permissions(
    used: dict[Right, set[str]], granted: set[Right]
) -> None:
    assert granted - set(used) - set(UNUSED) == set()
    assert set(UNUSED) <= granted
