"""Requests that RBAC allows and admission policies deny."""

from collections.abc import Callable, Mapping

from raggrpo_api import names
from support.fakes.fake_kuberay import path_of
from support.kubernetes.stolen_token_cases import (
    Attempt,
    Manifest,
    create,
    in_container,
    in_context,
    in_head,
    in_metadata,
    in_owner,
    in_spec,
    in_template,
    in_worker,
    patch,
    request,
    with_claim,
)

LEASES = "/apis/coordination.k8s.io/v1/namespaces"
POD, DEPLOYMENT, SERVICE = "preflight", "retriever-kb", "retriever-kb-service"
CLAIM = "claim-runs"
OPERATOR_OBJECTS = (POD, "configmap", "token", "networkpolicy", "raycluster", DEPLOYMENT, SERVICE)
"""Objects that the operator creates, by their names in `objects_of`."""
JOB = "/apis/raggrpo.io/v1alpha1/namespaces/{ns}/raggrpojobs/demo"
JOB_OWNER = {
    "apiVersion": "raggrpo.io/v1alpha1",
    "kind": "RagGrpoJob",
    "name": "demo",
    "uid": "1",
    "controller": True,
}
EVENT = {
    "metadata": {"name": "made-up"},
    "type": "Warning",
    "reason": "Theirs",
    "action": "Theirs",
    "eventTime": "2026-11-21T12:00:00.000000Z",
    "reportingController": "theirs.io/theirs",
    "reportingInstance": "theirs",
    "regarding": {"kind": "Pod", "namespace": "default"},
}

TOKEN = "demo-token-0123456789abcdef"
HOST = {"hostPath": {"path": "/"}}
BAD_PODS: Mapping[str, Callable[[Manifest], None]] = {
    "all privileges": in_context(privileged=True, allowPrivilegeEscalation=True),
    "escalation": in_context(allowPrivilegeEscalation=True),
    "added capability": in_context(capabilities={"drop": ["ALL"], "add": ["NET_ADMIN"]}),
    "root": in_spec(securityContext={"runAsUser": 0}),
    "root in the container": in_context(runAsNonRoot=False, runAsUser=0),
    "a writable root": in_context(readOnlyRootFilesystem=False),
    "unconfined": in_context(seccompProfile={"type": "Unconfined"}),
    "host path": with_claim(**HOST),
    "a Secret's volume": with_claim(secret={"secretName": "theirs"}),
    "all keys of a Secret as authorities": with_claim(
        name="ca-bundle", secret={"secretName": "theirs"}
    ),
    "a projected token": with_claim(
        projected={"sources": [{"serviceAccountToken": {"path": "token"}}]}
    ),
    "a ConfigMap besides the reward code": with_claim(configMap={"name": "theirs"}),
    "host network": in_spec(hostNetwork=True),
    "host process ids": in_spec(hostPID=True),
    "host IPC": in_spec(hostIPC=True),
    "host port": in_container(ports=[{"containerPort": 80, "hostPort": 80}]),
    "a fixed node": in_spec(nodeName="control-plane"),
    "another service account": in_spec(serviceAccountName="theirs", serviceAccount="theirs"),
    "a mounted token": in_spec(automountServiceAccountToken=True),
    "all keys of a Secret": in_container(envFrom=[{"secretRef": {"name": "theirs"}}]),
    "a probe of another host": in_container(
        livenessProbe={"httpGet": {"host": "169.254.169.254", "port": 80, "path": "/"}}
    ),
    "a startup probe of another host": in_container(
        startupProbe={"tcpSocket": {"host": "169.254.169.254", "port": 80}}
    ),
    "a hook to another host": in_container(
        lifecycle={"preStop": {"httpGet": {"host": "169.254.169.254", "port": 80}}}
    ),
    "another init container": in_spec(
        initContainers=[
            {"name": "init", "image": "theirs", "securityContext": {"privileged": True}}
        ]
    ),
    "the cluster's priority": in_spec(priorityClassName="system-node-critical"),
    "foreign labels": lambda pod: pod["metadata"]["labels"].update({"app": "theirs"}),
    "foreign annotations": in_metadata(annotations={"k8s.v1.cni.cncf.io/networks": "theirs"}),
    "another job's label": lambda pod: pod["metadata"]["labels"].update(
        {"raggrpo.io/job-name": "other"}
    ),
}


def of_head(**changes: object) -> Callable[[Manifest], None]:
    return lambda cluster: cluster["spec"]["headGroupSpec"].update(changes)


def with_token(secret: str) -> Callable[[Manifest], None]:
    return in_spec(authOptions={"mode": "token", "secretName": secret})


def as_account_token(secret: Manifest) -> None:
    secret["type"] = "kubernetes.io/service-account-token"
    secret["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "theirs"}


def second_owner(pod: Manifest) -> None:
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "theirs", "uid": "1"}
    pod["metadata"]["ownerReferences"].append(owner)


PODS = [
    attempt
    for what, change in BAD_PODS.items()
    for attempt in (
        create(f"a pod with {what}", POD, change),
        create(f"a Deployment of pods with {what}", DEPLOYMENT, in_template(change)),
        create(f"a RayCluster with a head with {what}", "raycluster", in_head(change)),
        create(f"a RayCluster with workers with {what}", "raycluster", in_worker(change)),
    )
]
RAY_CLUSTERS = [
    create(f"a RayCluster with {what}", "raycluster", change)
    for what, change in {
        "an ingress": of_head(enableIngress=True),
        "a load balancer": of_head(serviceType="LoadBalancer"),
        "a separate Service": of_head(headService={"spec": {"type": "NodePort"}}),
        "an annotated Service": of_head(headService={"metadata": {"annotations": {"its": "own"}}}),
        "an autoscaler": in_spec(
            enableInTreeAutoscaling=True, autoscalerOptions={"image": "theirs"}
        ),
        "no token": lambda cluster: cluster["spec"].pop("authOptions"),
        "a foreign annotation": in_metadata(annotations={"ray.io/ft-enabled": "true"}),
        "a Secret besides the token": with_token("theirs"),
        "the token of another job": with_token("other-token-0123456789abcdef"),
        "a Secret whose name contains a token's": with_token("demo-token-0123456789abcdef-x"),
        "a Secret whose name starts like a token's": with_token("demo-token-theirs"),
        "no Secret for its token": in_spec(authOptions={"mode": "token"}),
        "other options for its token": in_spec(
            authOptions={"mode": "token", "secretName": TOKEN, "enableK8sTokenAuth": True}
        ),
    }.items()
]
OWNERS = [
    *(
        create(f"{name} without owner", name, lambda made: made["metadata"].pop("ownerReferences"))
        for name in OPERATOR_OBJECTS
    ),
    create("a pod of another owner", POD, in_owner(apiVersion="apps/v1", kind="ReplicaSet")),
    create("a pod of an owner of another group", POD, in_owner(apiVersion="raggrpo.io.theirs/v1")),
    create("a pod without controller", POD, in_owner(controller=False)),
    create("a pod with a second owner", POD, second_owner),
    create("a pod in kube-system", POD, in_metadata(namespace="kube-system")),
    create("a pod with a finalizer", POD, in_metadata(finalizers=["theirs.io/forever"])),
]
EXTERNAL_NAME = {
    "type": "ExternalName",
    "externalName": "theirs.example.com",
    "ipFamilyPolicy": None,  # the API server rejects it for this type before policies are evaluated
}
SERVICES = [
    create(f"a Service that {what}", SERVICE, in_spec(**spec))
    for what, spec in {
        "has a load balancer": {"type": "LoadBalancer"},
        "opens a port on every node": {"type": "NodePort"},
        "is an ExternalName": EXTERNAL_NAME,
        "has an external IP": {"externalIPs": ["203.0.113.7"]},
        "selects foreign pods": {"selector": {"app": "theirs"}},
    }.items()
]
CLAIMS = [
    create(f"a claim {what}", CLAIM, change)
    for what, change in {
        "named after another job": in_metadata(name="other-runs"),
        "without the label of its job": lambda made: made["metadata"].pop("labels"),
        "owned by another object": in_metadata(ownerReferences=[JOB_OWNER | {"name": "other"}]),
        "to an existing volume": in_spec(volumeName="theirs"),
        "with the data of another claim": in_spec(
            dataSource={"kind": "PersistentVolumeClaim", "name": "theirs"}
        ),
        "with a selector": in_spec(selector={"matchLabels": {"app": "theirs"}}),
        "of a block device": in_spec(volumeMode="Block"),
        "with another access mode": in_spec(accessModes=["ReadWriteOncePod"]),
    }.items()
]
EVERYWHERE: Manifest = {"namespaceSelector": {}}
OWN_NAMESPACE: Manifest = {"podSelector": {}}
THEIR_NAMESPACE = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "theirs"}}}
THEIR_PODS = {"podSelector": {"matchLabels": {"app": "theirs"}}}
OPENINGS: Mapping[str, Callable[[Manifest], None]] = {
    "all clients": lambda made: made["spec"]["ingress"].append({}),
    "all pods of its namespace": lambda made: made["spec"]["ingress"][0]["from"].append(
        OWN_NAMESPACE
    ),
    "all pods of the cluster": lambda made: made["spec"]["ingress"][0]["from"].append(EVERYWHERE),
    "addresses": lambda made: made["spec"]["ingress"][0]["from"].append(
        {"ipBlock": {"cidr": "0.0.0.0/0"}}
    ),
    "its pods in all namespaces": lambda made: made["spec"]["ingress"][0]["from"][0].update(
        namespaceSelector={}
    ),
    "other pods of the operator's namespace": lambda made: made["spec"]["ingress"][1]["from"][
        0
    ].pop("podSelector"),
    "operators of other namespaces": lambda made: made["spec"]["ingress"][1]["from"][0].update(
        namespaceSelector={"matchLabels": {"kubernetes.io/metadata.name": "theirs"}}
    ),
    "the operator on the GCS port": lambda made: made["spec"]["ingress"][1]["ports"].append(
        {"port": 6379}
    ),
    "the operator on a range of ports": lambda made: made["spec"]["ingress"][1]["ports"][0].update(
        port=8090, endPort=65535
    ),
    "the operator on all ports": lambda made: made["spec"]["ingress"][1].pop("ports"),
    "scrapers on the port of the Jobs API": lambda made: made["spec"]["ingress"][2]["ports"].append(
        {"port": 8265}
    ),
    **{
        f"{what} to the port of the gateway": lambda made, peer=peer: made["spec"][
            "ingress"
        ].append({"from": [peer], "ports": [{"port": names.GATEWAY_PORT}]})
        for what, peer in (
            ("all pods of the cluster", EVERYWHERE),
            ("all pods of a namespace", THEIR_NAMESPACE),
            ("their pods in all namespaces", {"namespaceSelector": {}} | THEIR_PODS),
        )
    },
    "pods of other namespaces to the GCS port": lambda made: made["spec"]["ingress"].append(
        {"from": [THEIR_NAMESPACE | THEIR_PODS], "ports": [{"port": 6379}]}
    ),
    "scrapers of other namespaces": lambda made: made["spec"]["ingress"][2]["from"].append(
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "theirs"}}}
    ),
}
"""Clients to which a NetworkPolicy opens ports of a job, including Ray's."""
SHAPES = [
    *(
        create(f"a NetworkPolicy that admits {what}", "networkpolicy", change)
        for what, change in OPENINGS.items()
    ),
    create(
        "a NetworkPolicy without ingress rules",
        "networkpolicy",
        lambda made: made["spec"].update(policyTypes=["Egress"], ingress=[]),
    ),
    create("a service account token", "token", as_account_token),
    create("a mutable Secret", "token", lambda made: made.update(immutable=False)),
    create(
        "a Secret with additional keys", "token", lambda made: made["data"].update(more="bW9yZQ==")
    ),
    create("a mutable ConfigMap", "configmap", lambda made: made.update(immutable=False)),
    create("a NetworkPolicy for all pods", "networkpolicy", in_spec(podSelector={})),
    create(
        "a NetworkPolicy for foreign pods",
        "networkpolicy",
        in_spec(podSelector={"matchLabels": {"app": "theirs"}}),
    ),
    *(
        request(
            f"a Lease {name} in {namespace}",
            "POST",
            f"{LEASES}/{namespace}/leases",
            {
                "metadata": {"name": name},
                "spec": {"holderIdentity": "theirs"},
            },
        )
        for name, namespace in (("theirs", "default"), (names.NAMESPACE_LEASE, "kube-system"))
    ),
    request(
        "an Event about a pod", "POST", "/apis/events.k8s.io/v1/namespaces/default/events", EVENT
    ),
]
FOREIGN = [
    patch("open a foreign NetworkPolicy", "networking.k8s.io/v1", "networkpolicies",
          {"spec": {"ingress": [{}]}}),
    patch("redirect a foreign Service", "v1", "services", {"spec": {"selector": {"a": "b"}}}),
    patch("change a foreign Deployment", "apps/v1", "deployments", {"spec": {"replicas": 0}}),
    patch("adopt a foreign Deployment", "apps/v1", "deployments",
          {"metadata": {"ownerReferences": [JOB_OWNER]}}),
    *(
        request(f"delete {plural}", "DELETE", path_of(version, plural, "{ns}", "theirs"))
        for version, plural in (
            ("v1", "pods"), ("v1", "services"), ("v1", "configmaps"), ("apps/v1", "deployments"),
        )
    ),
    request("delete a job without ttlSecondsAfterFinished", "DELETE", JOB),
]  # fmt: skip
BY_POLICY: list[Attempt] = [
    *PODS,
    *RAY_CLUSTERS,
    *OWNERS,
    *SERVICES,
    *CLAIMS,
    *SHAPES,
    *FOREIGN,
]
