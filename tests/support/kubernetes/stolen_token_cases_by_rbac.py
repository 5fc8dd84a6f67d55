"""Requests that RBAC denies to the operator's account."""

from support.builders.operator.jobs import make_raw_job
from support.kubernetes.stolen_token_cases import Attempt, ask

CORE = "/api/v1/namespaces/{ns}"
JOBS = "/apis/raggrpo.io/v1alpha1/namespaces/{ns}/raggrpojobs"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
ADMISSION = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
POLICY = "rights-raggrpo-operator-pods"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/raggrpojobs.raggrpo.io"
TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
LABELS = {"metadata": {"labels": {"a": "b"}}}


def make_binding(role: str) -> dict[str, object]:
    reference = {"kind": "ClusterRole", "name": role, "apiGroup": "rbac.authorization.k8s.io"}
    return {"metadata": {"name": "theirs"}, "roleRef": reference}


BY_RBAC: list[Attempt] = [
    ask("read a Secret", "GET", f"{CORE}/secrets/theirs"),
    ask("list Secrets", "GET", f"{CORE}/secrets"),
    ask("change a Secret", "PATCH", f"{CORE}/secrets/theirs", {"data": {}}),
    ask("run a command in a pod", "POST", f"{CORE}/pods/theirs/exec"),
    ask("read a pod's log", "GET", f"{CORE}/pods/theirs/log"),
    ask("add a debugging container", "PATCH", f"{CORE}/pods/theirs/ephemeralcontainers", {}),
    ask("change a pod", "PATCH", f"{CORE}/pods/theirs", LABELS),
    ask("delete all pods at once", "DELETE", f"{CORE}/pods"),
    ask("change a foreign ConfigMap", "PATCH", f"{CORE}/configmaps/theirs", {"data": {}}),
    ask("change a RayCluster", "PATCH", "/apis/ray.io/v1/namespaces/{ns}/rayclusters/theirs", {}),
    ask("ask for a token", "POST", f"{CORE}/serviceaccounts/default/token", TOKEN),
    ask("bind a role", "POST", RBAC + "/namespaces/{ns}/rolebindings", make_binding("admin")),
    ask(
        "bind a role everywhere",
        "POST",
        f"{RBAC}/clusterrolebindings",
        make_binding("cluster-admin"),
    ),
    ask("change the CRD", "PATCH", CRD, {}),
    ask("create a job", "POST", JOBS, make_raw_job({"metadata": {"name": "mine"}})),
    ask("change a job's spec", "PATCH", f"{JOBS}/demo", {"spec": {"suspend": True}}),
    ask("take away a policy", "DELETE", f"{ADMISSION}ies/{POLICY}"),
    ask("take away a policy's binding", "DELETE", f"{ADMISSION}ybindings/{POLICY}"),
    ask("change another's Lease", "PATCH", LEASES + "/{ns}/leases/theirs", {"spec": {}}),
    ask("make a Lease elsewhere", "POST", f"{LEASES}/kube-system/leases", LABELS),
    ask("watch nodes", "GET", "/api/v1/nodes?watch=1"),
    ask("change nodes", "PATCH", "/api/v1/nodes/any", {"metadata": {"labels": {"a": "b"}}}),
    ask("relabel a namespace", "PATCH", CORE, LABELS),
]
