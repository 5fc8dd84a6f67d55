"""Enforce the NetworkPolicies of a namespace on a node whose network plugin does not.

The bridge plugin of the node image that is built here ignores policies; that of kind's image does
not. Rules for the addresses of the pods are added to iptables of the node.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tools.kind.kind_cluster import FIRST_NODE, builds_own_images, run
from tools.kind.kubernetes import Kubernetes

CHAIN = "NETWORK-POLICIES"
HOOKS = ("FORWARD", "INPUT")
"""Chains of packets between pods, and from pods to the node, which runs the API server."""
DIRECTIONS = {"Ingress": ("from", "-d", "-s"), "Egress": ("to", "-s", "-d")}
"""Field of the peers, and options of iptables for a pod and its peers."""
Object = Mapping[str, Any]


@contextmanager
def enforced(cluster: Kubernetes, namespace: str) -> Iterator[None]:
    """Enforce the policies of a namespace for the pods that run now, on a cluster of one node.

    A pod that starts later is not restricted, and restricted pods do not reach it.
    """
    if not builds_own_images():
        yield
        return
    policies = cluster.read("networkpolicies", "-n", namespace)["items"]
    pods = cluster.read("pods", "-A")["items"]
    labels = {
        each["metadata"]["name"]: each["metadata"]["labels"]
        for each in cluster.read("namespaces")["items"]
    }
    rules = "\n".join(["*filter", *_rules(policies, pods, labels), "COMMIT\n"])
    _on_node(f"iptables-restore --noflush <<'END'\n{rules}END\n")
    try:
        _on_node("\n".join(f"iptables -I {hook} -j {CHAIN}" for hook in HOOKS))
        yield
    finally:
        _on_node("\n".join(f"iptables -D {hook} -j {CHAIN}" for hook in HOOKS))


def _rules(
    policies: Iterable[Object], pods: Iterable[Object], namespaces: Mapping[str, Object]
) -> Iterator[str]:
    """Yield lines for iptables-restore, which reject all that no policy of an isolated pod admits.

    A chain returns for an admitted packet, so that the policies of the other pod also apply.
    """
    # The address of a completed pod may belong to another one.
    running = [each for each in pods if each["status"]["phase"] == "Running"]
    yield f":{CHAIN} - [0:0]"
    yield f"-A {CHAIN} -m conntrack --ctstate ESTABLISHED,RELATED -j RETURN"
    for pod in running:
        own = [each for each in policies if _applies(each, pod)]
        for direction, (_, option, _) in DIRECTIONS.items():
            isolating = [each for each in own if direction in each["spec"]["policyTypes"]]
            if not isolating:
                continue
            address = pod["status"]["podIP"]
            chain = f"{direction}-{address}"
            yield f":{chain} - [0:0]"
            yield f"-A {CHAIN} {option} {address} -j {chain}"
            for policy in isolating:
                for match in _matches(policy, direction, running, namespaces):
                    yield f"-A {chain} {match} -j RETURN"
            yield f"-A {chain} -j REJECT"


def _matches(
    policy: Object, direction: str, pods: Iterable[Object], namespaces: Mapping[str, Object]
) -> Iterator[str]:
    """Yield the options of iptables that match what a policy admits."""
    field, _, option = DIRECTIONS[direction]
    home = policy["metadata"]["namespace"]
    for rule in policy["spec"].get(direction.lower(), []):
        ports = [
            f"-p {each['protocol'].lower()} --dport {each['port']}"
            for each in rule.get("ports", [])
        ]
        peers = [
            f"{option} {pod['status']['podIP']}"
            for pod in pods
            if any(_is_peer(each, pod, home, namespaces) for each in rule.get(field, []))
        ]
        yield from (
            f"{peer} {port}"
            for peer in (peers if field in rule else [""])
            for port in (ports or [""])
        )


def _applies(policy: Object, pod: Object) -> bool:
    is_local = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return is_local and _selects(policy["spec"]["podSelector"], _labels(pod))


def _is_peer(peer: Object, pod: Object, home: str, namespaces: Mapping[str, Object]) -> bool:
    assert peer.keys() <= {"namespaceSelector", "podSelector"}, f"not supported: {peer}"
    namespace = pod["metadata"]["namespace"]
    if "namespaceSelector" in peer:
        is_in_scope = _selects(peer["namespaceSelector"], namespaces[namespace])
    else:
        is_in_scope = namespace == home
    return is_in_scope and _selects(peer.get("podSelector", {}), _labels(pod))


def _labels(pod: Object) -> Object:
    labels: Object = pod["metadata"].get("labels", {})
    return labels


def _selects(selector: Object, labels: Object) -> bool:
    expressions = selector.get("matchExpressions", [])
    assert all(each["operator"] == "NotIn" for each in expressions), f"not supported: {selector}"
    is_excluded = any(labels.get(each["key"]) in each["values"] for each in expressions)
    return not is_excluded and selector.get("matchLabels", {}).items() <= labels.items()


def _on_node(script: str) -> None:
    run(["docker", "exec", FIRST_NODE, "bash", "-ec", script])
