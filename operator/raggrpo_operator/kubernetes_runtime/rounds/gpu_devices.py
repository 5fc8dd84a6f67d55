"""Read the GPU memory of the nodes that fit a job's pods; `kube.gpu_nodes` parses the labels."""

import logging

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.resources import Device
from raggrpo_operator.core.lifecycle.observed import DeviceObserved
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kube.client import NODES, KubeClient
from raggrpo_operator.kube.gpu_nodes import smallest_gpu

log = logging.getLogger(__name__)


async def smallest_device(client: KubeClient, job: RagGrpoJob) -> DeviceObserved | None:
    """Return the smallest GPU of the nodes that fit the job's pods.

    Returns None for CPU jobs, and if nodes cannot be listed. In the latter case, the ranks measure
    GPU memory before an engine starts.
    """
    resources = job.spec.resources
    if resources.device is Device.CPU:
        return None
    try:
        nodes = await client.list_all(NODES, "")
    except OperatorError as error:
        log.warning("GPU memory is unknown because nodes cannot be listed: %s", error)
        return None
    return smallest_gpu(nodes, resources, job.spec.scheduling)
