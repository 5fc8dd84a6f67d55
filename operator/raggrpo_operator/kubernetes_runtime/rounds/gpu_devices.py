"""Observe the GPUs that a job's pods may get; `kube.gpu_nodes` reads the node labels."""

import logging

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.resources import Device
from raggrpo_operator.core.lifecycle.observed import DeviceObserved
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kube.client import NODES, KubeClient
from raggrpo_operator.kube.gpu_nodes import smallest_gpu

log = logging.getLogger(__name__)


async def smallest_device(client: KubeClient, job: RagGrpoJob) -> DeviceObserved | None:
    """Return the smallest GPU of the nodes that fit the job's pods, or None if unknown.

    It is unknown if nodes cannot be listed; the ranks measure it before an engine starts.
    """
    resources = job.spec.resources
    if resources.device is Device.CPU:
        return None
    try:
        nodes = await client.list_all(NODES, "")
    except OperatorError as error:
        log.warning("nodes cannot be listed, so GPU memory is unknown: %s", error)
        return None
    return smallest_gpu(nodes, resources, job.spec.scheduling)
