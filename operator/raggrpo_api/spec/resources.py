"""`spec.resources`, `spec.volumes`, `spec.env`, `spec.scheduling`: what the job runs on."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.base import AbsolutePath, ApiModel, Cpu, EnvName, Memory, Name, SecretKeyRef
from raggrpo_api.fields.kubernetes_names import (
    LabelValue,
    ObjectName,
    OptionalObjectName,
    OptionalQualifiedName,
    QualifiedName,
    ResourceName,
)

CPU_RANGE: Final = ("1m", "4096")
MEMORY_RANGE: Final = ("64Mi", "64Ti")
SHM_RANGE: Final = ("80Mi", MEMORY_RANGE[1])
"""Least and most that may be given; Ray refuses an object store that fits into less /dev/shm."""


class Device(StrEnum):
    """Kind of processor."""

    GPU = "GPU"
    CPU = "CPU"


class Placement(StrEnum):
    """Whether trainer and engine share processors."""

    COLOCATED = "Colocated"
    DISAGGREGATED = "Disaggregated"


class ResourcesSpec(ApiModel):
    """Processors and memory; what is not given is sized and explained in status."""

    device: Device = Device.GPU
    """CPU serves tests and clusters without GPUs."""
    nodes: Annotated[int, Field(ge=1, le=1024)] = 1
    """Pods with trainer ranks, one per node."""
    gpus_per_node: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of each of them."""
    gpu_memory_gib: Annotated[int, Field(ge=0, le=1024)] = 0
    """Memory of one GPU; 0: from the nodes' labels, else known once the ranks measure it."""
    gpu_resource_name: ResourceName = "nvidia.com/gpu"
    """Extended resource that is asked for."""
    placement: Placement = Placement.COLOCATED
    """Colocated: trainer and engine take turns on the same GPUs."""
    rollout_gpus: Annotated[int, Field(ge=0, le=1024)] = 0
    """GPUs of the engines when Disaggregated."""
    ranks: Annotated[int, Field(ge=1, le=64)] = 1
    """Trainer ranks per node when device is CPU."""
    rollout_engines: Annotated[int, Field(ge=1, le=64)] = 1
    """Number of engines when device is CPU and placement is Disaggregated."""
    cpu: Cpu = ""
    """CPUs of a pod with ranks or engines, and the most that any other pod gets; empty: sized."""
    memory: Memory = ""
    """Memory per pod; empty: sized."""
    shm_size: Memory = ""
    """Size of /dev/shm; empty: sized."""


class Volume(ApiModel):
    """A claim mounted into the pods; locally `--mount CLAIM=DIR` stands in for it."""

    name: Name
    """Name of the volume."""
    claim_name: ObjectName
    """PersistentVolumeClaim in the job's namespace."""
    mount_path: AbsolutePath
    """Where it appears in the pods."""
    read_only: bool = False
    """Mount without the right to write."""


class EnvVar(ApiModel):
    """An environment variable of the trainer; secrets only by reference."""

    name: EnvName
    """Name of the variable."""
    value: Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=2048)] = ""
    """Literal value; refused for names that look like a secret."""
    secret_key_ref: SecretKeyRef | None = None
    """Key of a Secret that holds the value."""


class Toleration(ApiModel):
    """A Kubernetes toleration."""

    key: OptionalQualifiedName = ""
    """Taint key; empty with operator Exists tolerates all."""
    operator: Annotated[str, StringConstraints(pattern=r"^(Exists|Equal)$", max_length=16)] = (
        "Exists"
    )
    """Exists or Equal."""
    value: LabelValue = ""
    """Taint value for Equal."""
    effect: Annotated[
        str, StringConstraints(pattern=r"^(NoSchedule|PreferNoSchedule|NoExecute)?$", max_length=32)
    ] = ""
    """Effect; empty: all."""


class SchedulingSpec(ApiModel):
    """Where the pods may run and in which queue they wait."""

    queue_name: LabelValue = ""
    """Queue for Kueue, Volcano, YuniKorn or KAI; goes on the RayCluster."""
    priority_class_name: OptionalObjectName = ""
    """PriorityClass of the pods."""
    node_selector: Annotated[dict[QualifiedName, LabelValue], Field(max_length=32)] = {}
    """Node labels that are required."""
    tolerations: Annotated[list[Toleration], Field(max_length=16)] = []
    """Taints that are tolerated."""
