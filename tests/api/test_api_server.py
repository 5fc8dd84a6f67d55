"""Properties of the API server that the other tests rely on."""

from tools.kind.api_server import ApiServer


def test_service_account_without_role_is_denied_and_audited(
    api_server: ApiServer, namespace: str
) -> None:
    api_server.kubectl("create", "serviceaccount", "unprivileged", "-n", namespace)
    unprivileged = api_server.service_account_kubeconfig(namespace, "unprivileged")
    ended = api_server.kubectl("get", "pods", "-n", namespace, check=False, kubeconfig=unprivileged)

    assert "Forbidden" in ended.stderr
    user = f"system:serviceaccount:{namespace}:unprivileged"
    assert ("list", "pods", 403) in {
        (event["verb"], event["objectRef"].get("resource"), event["responseStatus"]["code"])
        for event in api_server.audit_events()
        if event["user"]["username"] == user and "objectRef" in event
    }


def test_owned_objects_are_garbage_collected(api_server: ApiServer, namespace: str) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "owner"}}
    api_server.apply(owner, namespace=namespace)
    uid = api_server.read("configmap", "owner", "-n", namespace)["metadata"]["uid"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}
    owned = {**owner, "metadata": {"name": "owned", "ownerReferences": [reference]}}
    api_server.apply(owned, namespace=namespace)
    api_server.kubectl("delete", "configmap", "owner", "-n", namespace)

    api_server.kubectl(
        "wait", "--for=delete", "configmap/owned", "-n", namespace, "--timeout=60s"
    )  # fmt: skip
