"""Manifests for tests of the real cluster; their pods satisfy Pod Security `restricted`."""

from typing import Any

STORAGE_CLASS = "shared"


def shared_volumes(number: int, folder: str) -> list[dict[str, Any]]:
    """Return the default StorageClass and `number` volumes that pods on all nodes can mount.

    The provisioner of kind's node image supports no volumes with access from several nodes.
    """
    storage_class = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": STORAGE_CLASS,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }
    volumes = [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": f"volume-{i}"},
            "spec": {
                "storageClassName": STORAGE_CLASS,
                "capacity": {"storage": "100Gi"},
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
                "persistentVolumeReclaimPolicy": "Retain",
                "hostPath": {"path": f"{folder}/volume-{i}", "type": "Directory"},
            },
        }
        for i in range(number)
    ]
    return [storage_class, *volumes]


def make_claim(name: str) -> dict[str, Any]:
    """Return a ReadWriteMany claim of 1 GiB."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "storageClassName": STORAGE_CLASS,
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def make_pod(name: str, image: str, command: list[str], **container: Any) -> dict[str, Any]:
    """Return a pod that runs once and satisfies Pod Security `restricted`."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": name,
                    "image": image,
                    "imagePullPolicy": "IfNotPresent",
                    "command": command,
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                    },
                    **container,
                }
            ],
        },
    }


def with_claim(pod: dict[str, Any], claim: str, path: str) -> dict[str, Any]:
    pod["spec"]["volumes"] = [{"name": "claim", "persistentVolumeClaim": {"claimName": claim}}]
    pod["spec"]["containers"][0]["volumeMounts"] = [{"name": "claim", "mountPath": path}]
    return pod
