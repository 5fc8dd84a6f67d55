"""Peak throughput of GPUs by device name. Must not import torch."""

import re

PEAK_TFLOPS = (
    ("MIG", 0.0),  # a slice of a GPU: the whole GPU's figure would be wrong
    ("H100 PCIE", 756.0),
    ("H100 NVL", 835.0),
    ("H100", 989.0),
    ("H200 NVL", 835.0),
    ("H200", 989.0),
    ("GH200", 989.0),
    ("B200", 2250.0),
    ("GB200", 2500.0),
    ("A100", 312.0),
    ("L40S", 362.0),
    ("L4", 121.0),
)
"""(words of the device name, dense BF16 TFLOP/s from NVIDIA's data sheets); first match wins."""


def peak_tflops(device_name: str) -> float:
    """Return the dense BF16 TFLOP/s of a GPU, or 0 if it is unknown."""
    words = set(re.split(r"[ -]", device_name.upper()))
    return next((peak for name, peak in PEAK_TFLOPS if words.issuperset(name.split())), 0.0)
