"""Requests that RBAC denies to the operator's account."""

from support.builders.operator.jobs import make_raw_job
from support.kubernetes.stolen_token_cases import Attempt, request

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
    request("read a Secret", "GET", f"{CORE}/secrets/theirs"),
    request("list Secrets", "GET", f"{CORE}/secrets"),
    request("change a Secret", "PATCH", f"{CORE}/secrets/theirs", {"data": {}}),
    request("run a command in a pod", "POST", f"{CORE}/pods/theirs/exec"),
    request("read a pod's log", "GET", f"{CORE}/pods/theirs/log"),
    request("add a debugging container", "PATCH", f"{CORE}/pods/theirs/ephemeralcontainers", {}),
    request("change a pod", "PATCH", f"{CORE}/pods/theirs", LABELS),
    request("delete all pods at once", "DELETE", f"{CORE}/pods"),
    request("change a claim", "PATCH", f"{CORE}/persistentvolumeclaims/theirs", LABELS),
    request("delete a claim", "DELETE", f"{CORE}/persistentvolumeclaims/theirs"),
    request("change a foreign ConfigMap", "PATCH", f"{CORE}/configmaps/theirs", {"data": {}}),
    request(
        "change a RayCluster", "PATCH", "/apis/ray.io/v1/namespaces/{ns}/rayclusters/theirs", {}
    ),
    request("request a token", "POST", f"{CORE}/serviceaccounts/default/token", TOKEN),
    request("bind a role", "POST", RBAC + "/namespaces/{ns}/rolebindings", make_binding("admin")),
    request(
        "bind a cluster role",
        "POST",
        f"{RBAC}/clusterrolebindings",
        make_binding("cluster-admin"),
    ),
    request("change the CRD", "PATCH", CRD, {}),
    request("create a job", "POST", JOBS, make_raw_job({"metadata": {"name": "mine"}})),
    request("change a job's spec", "PATCH", f"{JOBS}/demo", {"spec": {"suspend": True}}),
    request("delete a policy", "DELETE", f"{ADMISSION}ies/{POLICY}"),
    request("delete a policy binding", "DELETE", f"{ADMISSION}ybindings/{POLICY}"),
    request("change a foreign Lease", "PATCH", LEASES + "/{ns}/leases/theirs", {"spec": {}}),
    request("watch nodes", "GET", "/api/v1/nodes?watch=1"),
    request("change nodes", "PATCH", "/api/v1/nodes/any", {"metadata": {"labels": {"a": "b"}}}),
    request("relabel a namespace", "PATCH", CORE, LABELS),
]
