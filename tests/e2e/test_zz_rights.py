"""What the operator asked of the API server in all tests before is what its chart lets it do.

The last file of the tier. The log begins with the cluster, so one that is used again counts too.
"""

from collections.abc import Iterator, Mapping

import pytest

from cluster import kind_cluster
from cluster.tools import tool_folder
from helm_chart import NAMESPACE, RELEASE, Chart, of_kind

Right = tuple[str, str, str]
"""(group, resource, verb)"""

OPERATOR = f"system:serviceaccount:{NAMESPACE}:{RELEASE}"
APPLIED = "applying an object that is not there yet is asked as patch and needs create as well"
UNUSED: Mapping[Right, str] = {
    ("", "services", "create"): APPLIED,
    ("apps", "deployments", "create"): APPLIED,
    ("networking.k8s.io", "networkpolicies", "create"): APPLIED,
}
"""What the chart allows though no test makes the operator do it, each with its reason."""


@pytest.fixture(scope="module")
def granted() -> set[Right]:
    """Rights of the operator's service account, with the election of several replicas."""
    helm = tool_folder("helm") / "helm"
    rendered = Chart(helm, kind_cluster.HERE.parents[1] / "helm" / RELEASE).render({"replicas": 2})
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
def used() -> dict[Right, set[int]]:
    """Answers of the API server by what the operator asked for."""
    found: dict[Right, set[int]] = {}
    for right, code in asked():
        found.setdefault(right, set()).add(code)
    return found


def asked() -> Iterator[tuple[Right, int]]:
    for event in kind_cluster.audit_events():
        about = event.get("objectRef")
        if event["user"]["username"] != OPERATOR or about is None:  # what kinds there are
            continue
        name = "/".join(filter(None, [about["resource"], about.get("subresource", "")]))
        right = (about.get("apiGroup", ""), name, event["verb"])
        yield right, event.get("responseStatus", {}).get("code", 0)


def test_the_operator_was_refused_nothing(used: dict[Right, set[int]]) -> None:
    assert {right for right, codes in used.items() if 403 in codes} == set()


def test_the_operator_asked_for_nothing_beyond_its_chart(
    used: dict[Right, set[int]], granted: set[Right]
) -> None:
    assert set(used) - granted == set()


def test_the_chart_grants_what_was_used_and_little_more(
    used: dict[Right, set[int]], granted: set[Right]
) -> None:
    assert granted - set(used) - set(UNUSED) == set()
    assert set(UNUSED) <= granted
