"""GPU memory and compute capability of the nodes a job may run on, read from node labels. Pure.

NVIDIA GPU feature discovery labels nodes with `nvidia.com/gpu.memory` (MiB per GPU, or per MIG
slice if all slices are equal), `nvidia.com/gpu.product`, `nvidia.com/gpu.replicas` (clients that
share a GPU) and `nvidia.com/gpu.compute.major`. If slices have different sizes, the label
`<resource>.memory` is the memory of one slice.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any

from raggrpo_api.spec.resources import ResourcesSpec, SchedulingSpec
from raggrpo_operator.core.lifecycle.observed import DeviceObserved

from .cluster_objects import labels_of, section

Node = Mapping[str, Any]
MEMORY = "nvidia.com/gpu.memory"
PRODUCT = "nvidia.com/gpu.product"
COMPUTE_MAJOR = "nvidia.com/gpu.compute.major"
REPLICAS = "nvidia.com/gpu.replicas"
PRODUCTS: tuple[tuple[str, int, int], ...] = (
    ("B300", 288, 10),
    ("GB200", 186, 10),
    ("B200", 180, 10),
    ("GH200", 96, 9),
    ("H200", 141, 9),
    ("H100", 80, 9),
    ("A100", 40, 8),
    ("L40S", 48, 8),
    ("L40", 48, 8),
    ("L4", 24, 8),
    ("A10G", 24, 8),
    ("A10", 24, 8),
    ("V100", 16, 7),
    ("T4", 16, 7),
    ("P100", 16, 6),
)
"""(word in the product name, GB of the smallest common variant, major compute capability).

These are fallback values: labels and a size in the product name take precedence."""
_SLICE = re.compile(r"MIG-\d+g\.(\d+)gb", re.IGNORECASE)
GB_IN_MIB = 10**9 / 2**20
MAX_MIB, MAX_MAJOR = 1_048_576, 99


def smallest_gpu(
    nodes: Collection[Node], resources: ResourcesSpec, scheduling: SchedulingSpec
) -> DeviceObserved | None:
    """Return the smallest GPU of the nodes that the job may run on, or None if none is known."""
    devices = [
        device
        for node in nodes
        if _is_candidate(node, resources, scheduling)
        and (device := _device(labels_of(node), resources.gpu_resource_name))
    ]
    return min(devices, key=lambda each: (each.memory_mib, each.compute_major), default=None)


def _is_candidate(node: Node, resources: ResourcesSpec, scheduling: SchedulingSpec) -> bool:
    labels = labels_of(node)
    allocatable = section(section(node, "status"), "allocatable")
    if any(labels.get(key) != value for key, value in scheduling.node_selector.items()):
        return False
    amount = str(allocatable.get(resources.gpu_resource_name, "0"))
    return _number(amount, 10**6) >= max(1, resources.gpus_per_node)


def _device(labels: Mapping[str, str], resource: str) -> DeviceObserved | None:
    product = labels.get(PRODUCT, "")
    words = set(re.split(r"[-_ ]", product.upper()))
    size, major = next(((size, major) for name, size, major in PRODUCTS if name in words), (0, 0))
    is_slice = _SLICE.search(resource)
    match = is_slice or _SLICE.search(product) or re.search(r"(\d+)GB", product)
    if match is not None:
        size = int(match[1])
    # If slices have different sizes, the label MEMORY is the memory of the whole GPU.
    per_gpu = "" if is_slice else labels.get(MEMORY, "")
    reported = _number(labels.get(f"{resource}.memory", ""), MAX_MIB) or _number(per_gpu, MAX_MIB)
    sharing = 1 if is_slice else max(1, _number(labels.get(REPLICAS, ""), MAX_MIB))
    memory = (reported or int(size * GB_IN_MIB)) // sharing
    major = _number(labels.get(COMPUTE_MAJOR, ""), MAX_MAJOR) or major
    if not 0 < memory <= MAX_MIB:
        return None
    return DeviceObserved(memory, major, product[:64])


def _number(text: str, maximum: int) -> int:
    """Return `text` as a number, capped at `maximum`, or 0 if it is not one to nine digits."""
    return min(int(text), maximum) if re.fullmatch(r"\d{1,9}", text) else 0
