"""Utilization of a GPU, as NVML reports it."""

import logging

import torch

log = logging.getLogger(__name__)


def device_utilization(device: torch.device) -> float | None:
    """Return the share of NVML's last sample period (at most 1 s) in which a kernel ran.

    Returns None on a CPU, and where NVML reports no utilization, as on a MIG device.
    """
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100.0
    except Exception as error:  # NVML's error classes exist only in images for GPUs
        log.debug("NVML reports no utilization: %s", error)
        return None
