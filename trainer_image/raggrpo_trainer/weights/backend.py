"""Select the weight transfer backend. Imports neither torch nor vLLM."""

from enum import StrEnum

from raggrpo_api.spec.resources import Device, Placement, ResourcesSpec


class WeightTransferBackend(StrEnum):
    """A transport of weights from the ranks to the engines."""

    SHARED_MEMORY = "SharedMemory"
    IPC = "IPC"
    """CUDA IPC: engines map memory of the GPU that they share with a rank."""
    NCCL = "NCCL"
    """Rank 0 broadcasts to engines on other GPUs."""


def weight_transfer_backend(resources: ResourcesSpec) -> WeightTransferBackend:
    """Return the backend for the device and the placement of ranks and engines."""
    if resources.device is Device.CPU:
        return WeightTransferBackend.SHARED_MEMORY
    if resources.placement is Placement.COLOCATED:
        return WeightTransferBackend.IPC
    return WeightTransferBackend.NCCL
