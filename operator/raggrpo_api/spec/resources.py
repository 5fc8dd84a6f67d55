"""`spec.resources`, `spec.volumes`, `spec.env` and `spec.scheduling`."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import AbsolutePath, ApiModel, Cpu, EnvName, Memory, Name, SecretKeyRef
from raggrpo_api.fields.kubernetes_names import (
    DataKey,
    LabelValue,
    OptionalObjectName,
    OptionalQualifiedName,
    QualifiedName,
    ResourceName,
)
from raggrpo_api.fields.reach import SecretName

CPU_RANGE: Final = ("1m", "4096")
MEMORY_RANGE: Final = ("64Mi", "64Ti")
SHM_RANGE: Final = ("80Mi", MEMORY_RANGE[1])
"""Minimum and maximum; Ray rejects the small object store that would fit below the minimum."""
STORAGE_RANGE: Final = ("64Mi", "1024Ti")


class Device(StrEnum):
    """Device type of ranks and engines."""

    GPU = "GPU"
    CPU = "CPU"


class Placement(StrEnum):
    """Whether ranks and engines share GPUs."""

    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class ResourcesSpec(ApiModel):
    """GPUs, CPUs and memory; unspecified amounts are computed and explained in status.sizing."""

    device: Device = Device.GPU
    """Device type; CPU is for tests and clusters without GPUs."""
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Number of pods with trainer ranks, one per node."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs per pod with trainer ranks."""
    gpu_memory_gib: Annotated[int, Field(ge=0, le=1024)] = 0
    """Memory of one GPU in GiB; 0: from node labels, else as measured by the ranks."""
    gpu_resource_name: ResourceName = "nvidia.com/gpu"
    """Extended resource to request for GPUs."""
    placement: Placement = Placement.COLOCATED
    """Colocated: ranks and engines take turns on the same GPUs. Disaggregated: separate GPUs."""
    rollout_gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """GPUs of the engines with placement Disaggregated."""
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    """Trainer ranks per node with device CPU."""
    rollout_engines: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of engines with device CPU and placement Disaggregated."""
    cpu: Cpu = ""
    """CPUs per pod with ranks or engines, and the maximum for other pods; empty: computed."""
    memory: Memory = ""
    """Memory per pod with ranks or engines; empty: computed."""
    shm_size: Memory = ""
    """Size of /dev/shm; empty: computed."""


class AccessMode(StrEnum):
    """How many nodes may mount a PersistentVolumeClaim."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"


class ClaimTemplate(ApiModel):
    """A PersistentVolumeClaim that the operator creates for the job."""

    size: Annotated[Memory, StringConstraints(min_length=1)]
    """Storage to request, such as `50Gi`."""
    storage_class_name: OptionalObjectName = ""
    """StorageClass; empty: the cluster's default."""
    access_mode: AccessMode = AccessMode.READ_WRITE_ONCE
    """ReadWriteMany if pods run on several nodes."""
    keep: bool = True
    """Keep the claim when the job is deleted; a new job with the same name then uses it again."""


class Volume(ApiModel):
    """A PersistentVolumeClaim mounted into the pods; in local runs `--mount CLAIM=DIR`."""

    name: Name
    """Name of the volume."""
    claim_name: OptionalObjectName = ""
    """PersistentVolumeClaim in the job's namespace; alternative to claimTemplate."""
    claim_template: ClaimTemplate | None = None
    """Creates the claim `JOB-VOLUME` unless it exists; alternative to claimName."""
    mount_path: AbsolutePath
    """Mount path in the pods."""
    read_only: bool = False
    """Mount read-only."""


class EnvVar(ApiModel):
    """An environment variable of the trainer; secret values only by reference."""

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=2048)] = ""
    """Literal value; rejected if it or its name looks like a secret."""
    not_secret: bool = False
    """Accept a literal value that looks like a secret but is not one."""
    secret_key_ref: SecretKeyRef | None = None
    """Secret key that contains the value."""


class Toleration(ApiModel):
    """A Kubernetes toleration."""

    key: OptionalQualifiedName = ""
    """Taint key; empty with operator Exists: all taints."""
    operator: Annotated[str, StringConstraints(pattern=r"^(Exists|Equal)$", max_length=16)] = (
        "Exists"
    )
    """Exists or Equal."""
    value: LabelValue = ""
    """Taint value for operator Equal."""
    effect: Annotated[
        str, StringConstraints(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)?$", max_length=32)
    ] = ""
    """Taint effect; empty: all."""


class CaBundle(ApiModel):
    """Certificates (PEM) of private authorities, in addition to those of the image.

    For a local run, export RAGGRPO_CA_BUNDLE with the path of the file.
    """

    secret: Annotated[OptionalObjectName, SecretName()] = ""
    """Secret that contains the certificates; alternative to configMap."""
    config_map: OptionalObjectName = ""
    """ConfigMap that contains the certificates; alternative to secret."""
    key: DataKey = "ca.crt"
    """Key within the Secret or ConfigMap."""


class SchedulingSpec(ApiModel):
    """Queue, priority, node selector and tolerations of the pods."""

    queue_name: LabelValue = ""
    """Queue of Kueue, Volcano, YuniKorn or KAI, set on the RayCluster."""
    priority_class_name: OptionalObjectName = ""
    """PriorityClass of the pods."""
    node_selector: Annotated[dict[QualifiedName, LabelValue], Field(max_length=32)] = {}
    """Required node labels."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    """Tolerated taints."""
