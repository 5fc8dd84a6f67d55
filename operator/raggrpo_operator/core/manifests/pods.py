"""Pod settings shared by all roles: security, volumes, environment, scratch space, placement.

Every pod satisfies the Pod Security Standard `restricted`, regardless of the job's spec.
"""

from collections.abc import Mapping, Sequence

from raggrpo_api import names
from raggrpo_api.fields.base import SecretKeyRef
from raggrpo_api.job import Metadata
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import CaBundle, Device, EnvVar, Toleration
from raggrpo_api.status.sizing import PodRole, PodSizing
from raggrpo_operator.core.lifecycle.actions import PodPlan
from raggrpo_operator.core.spec.called_secrets import called_secrets

from .cluster_settings import ClusterSettings
from .metadata import Manifest, child_labels, child_metadata

TERMINATION_LOG = "/dev/termination-log"
"""File whose first 4,096 bytes Kubernetes copies to the pod status."""
USER = 1000
"""UID and GID of the trainer image."""


def pod_labels(job: Metadata, role: PodRole) -> dict[str, str]:
    """Return the labels of a pod with this role."""
    role_labels = {"app.kubernetes.io/component": str(role), names.LABEL_ROLE: str(role)}
    return child_labels(job) | role_labels


def pod_spec(
    plan: PodPlan,
    settings: ClusterSettings,
    container: Manifest,
    *,
    sizing: PodSizing,
    for_driver: bool = False,
) -> Manifest:
    """Return the spec of a pod with one container.

    `for_driver` adds what driver and preflight need: reward code and authorities of services.
    """
    spec = plan.spec
    scheduling = spec.scheduling
    volumes = [
        {"name": "tmp", "emptyDir": {"sizeLimit": settings.scratch_size}},
        {"name": "home", "emptyDir": {"sizeLimit": settings.home_size}},
        *_claims(spec),
    ]
    if sizing.shm:  # KubeRay's default volume would be as large as the memory limit
        shm = {"medium": "Memory", "sizeLimit": sizing.shm}
        volumes.append({"name": "shared-mem", "emptyDir": shm})
    if for_driver and (code := spec.reward.code_from.config_map):
        volumes.append({"name": "reward-code", "configMap": {"name": code}})
    if for_driver and spec.ca_bundle:
        volumes.append(_ca_bundle_volume(spec.ca_bundle))
    pod: Manifest = {
        "serviceAccountName": settings.service_account,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    if spec.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": name} for name in spec.image_pull_secrets]
    if scheduling.priority_class_name:
        pod["priorityClassName"] = scheduling.priority_class_name
    if scheduling.node_selector:
        pod["nodeSelector"] = dict(scheduling.node_selector)
    if tolerations := _tolerations(spec, sizing):
        pod["tolerations"] = tolerations
    return pod


def run_once_pod(
    job: Metadata,
    plan: PodPlan,
    settings: ClusterSettings,
    name: str,
    container: Manifest,
    *,
    sizing: PodSizing,
    input_hash: str,
    grace_seconds: int,
) -> Manifest:
    """Return a pod that runs a command once; its termination message is the result.

    `input_hash` becomes a label, by which the operator recognizes an outdated pod.
    """
    labels = pod_labels(job, sizing.role) | {names.LABEL_SPEC_HASH: input_hash}
    main = container | {"terminationMessagePath": TERMINATION_LOG}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": child_metadata(job, name, labels=labels),
        "spec": pod_spec(plan, settings, main, sizing=sizing, for_driver=True)
        | {"restartPolicy": "Never", "terminationGracePeriodSeconds": grace_seconds},
    }


def container(
    plan: PodPlan,
    settings: ClusterSettings,
    name: str,
    *,
    sizing: PodSizing,
    env: Sequence[Manifest],
    for_driver: bool = False,
    read_only_claims: bool = False,
) -> Manifest:
    """Return a container whose memory and GPU requests equal its limits."""
    spec = plan.spec
    mounts = [
        {"name": "tmp", "mountPath": "/tmp"},
        {"name": "home", "mountPath": names.HOME_DIR},
        *(
            {
                "name": claim_volume(volume.name),
                "mountPath": volume.mount_path,
                "readOnly": volume.read_only or read_only_claims,
            }
            for volume in spec.volumes
        ),
    ]
    if sizing.shm:
        mounts.append({"name": "shared-mem", "mountPath": "/dev/shm"})
    if for_driver and spec.reward.code_from.config_map:
        mounts.append({"name": "reward-code", "mountPath": names.REWARD_CODE_DIR, "readOnly": True})
    if for_driver and spec.ca_bundle:
        mounts.append({"name": "ca-bundle", "mountPath": names.CA_BUNDLE_DIR, "readOnly": True})
    gpus = {spec.resources.gpu_resource_name: str(sizing.gpus)} if sizing.gpus else {}
    return {
        "name": name,
        "image": plan.image,
        "imagePullPolicy": settings.image_pull_policy,
        "env": list(env),
        "resources": {
            # No CPU limit: a throttled rank would delay all others in collectives.
            "requests": {"cpu": sizing.cpu, "memory": sizing.memory} | gpus,
            "limits": {"memory": sizing.memory} | gpus,
        },
        "volumeMounts": mounts,
        # Puts the end of the log of a failed container into the pod status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def trainer_env(
    spec: JobSpec, own: Mapping[str, str], *, for_driver: bool = False
) -> list[Manifest]:
    """Return the environment: the operator's variables `own` and the job's variables.

    `for_driver` adds the Secrets of headers, and the paths of reward code and authorities.
    Variables of the job override `own`; the rules reject reserved names.
    """
    env = {variable["name"]: variable for variable in plain_env(own)}
    if for_driver and spec.reward.code_from.config_map:
        env["PYTHONPATH"] = _plain("PYTHONPATH", names.REWARD_CODE_DIR)
    if for_driver:
        env |= {name: _plain(name, value) for name, value in ca_bundle_env(spec).items()}
    env |= {variable["name"]: variable for variable in job_variables(spec.env)}
    for _, ref in called_secrets(spec) if for_driver else ():
        name = names.secret_env(ref.name, ref.key)
        env[name] = _from_secret(name, ref)
    return list(env.values())


def job_variables(variables: Sequence[EnvVar]) -> list[Manifest]:
    """Return the variables of a job as those of a container."""
    return [
        _plain(each.name, each.value)
        if each.secret_key_ref is None
        else _from_secret(each.name, each.secret_key_ref)
        for each in variables
    ]


def ca_bundle_env(spec: JobSpec) -> dict[str, str]:
    """Return the variable with the path of the job's authorities, if it has some."""
    if spec.ca_bundle is None:
        return {}
    return {names.ENV_CA_BUNDLE: f"{names.CA_BUNDLE_DIR}/{names.CA_BUNDLE_FILE}"}


def plain_env(own: Mapping[str, str]) -> list[Manifest]:
    """Return `own` and the default variables, without the variables of the job."""
    values = {"HOME": names.HOME_DIR, "PYTHONUNBUFFERED": "1", **own}
    return [_plain(name, value) for name, value in values.items()]


def literal(text: str) -> str:
    """Return a container argument or variable, escaped so that the kubelet does not expand it.

    The kubelet replaces `$(NAME)` with the value of the variable and `$$` with `$`.
    """
    return text.replace("$", "$$")


def _plain(name: str, value: str) -> Manifest:
    return {"name": name, "value": literal(value)}


def _from_secret(name: str, reference: SecretKeyRef) -> Manifest:
    source = {"name": reference.name, "key": reference.key}
    return {"name": name, "valueFrom": {"secretKeyRef": source}}


def claim_volume(name: str) -> str:
    """Return the volume name of a claim; the prefix avoids collisions with other volumes."""
    return f"claim-{name}"


def _ca_bundle_volume(bundle: CaBundle) -> Manifest:
    items = [{"key": bundle.key, "path": names.CA_BUNDLE_FILE}]
    if bundle.secret:
        return {"name": "ca-bundle", "secret": {"secretName": bundle.secret, "items": items}}
    return {"name": "ca-bundle", "configMap": {"name": bundle.config_map, "items": items}}


def _claims(spec: JobSpec) -> list[Manifest]:
    return [
        {
            "name": claim_volume(volume.name),
            "persistentVolumeClaim": {
                "claimName": volume.claim_name,
                "readOnly": volume.read_only,
            },
        }
        for volume in spec.volumes
    ]


def _tolerations(spec: JobSpec, sizing: PodSizing) -> list[Manifest]:
    """Return the job's tolerations, plus one for GPU nodes if the pod may run on a GPU node.

    A node selector can pin all pods of a GPU job to GPU nodes, including head and preflight.
    """
    tolerations = [_toleration(each) for each in spec.scheduling.tolerations]
    is_pinned = spec.resources.device is Device.GPU and spec.scheduling.node_selector
    if not sizing.gpus and not is_pinned:
        return tolerations
    gpu_toleration = {
        "key": spec.resources.gpu_resource_name,
        "operator": "Exists",
        "effect": "NoSchedule",
    }
    return tolerations if gpu_toleration in tolerations else [*tolerations, gpu_toleration]


def _toleration(toleration: Toleration) -> Manifest:
    fields = ("key", "operator", "value", "effect")
    return {name: value for name in fields if (value := getattr(toleration, name))}
