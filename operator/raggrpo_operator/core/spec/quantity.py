"""Conversion of Kubernetes quantities between text and numbers."""

import math
import re

from raggrpo_api.memory.arithmetic import GIB, MIB

KIB = 1024

_FACTORS = {
    "": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "Ki": float(KIB), "Mi": float(MIB), "Gi": float(GIB), "Ti": float(1024**4),
}  # fmt: skip


def parse_quantity(text: str) -> float:
    """Return the quantity in bytes (memory) or cores (CPU). Raises ValueError for invalid text."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)(m|k|Ki|M|Mi|G|Gi|T|Ti)?", text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity")
    return float(match[1]) * _FACTORS[match[2] or ""]


def format_bytes(amount: float, unit: int = MIB) -> str:
    """Return `amount` bytes, rounded up to a multiple of `unit`, in the largest exact unit."""
    rounded = math.ceil(amount / unit) * unit
    for size, suffix in ((GIB, "Gi"), (MIB, "Mi"), (KIB, "Ki")):
        if rounded % size == 0:
            return f"{rounded // size}{suffix}"
    return str(rounded)


def format_size(amount: float) -> str:
    """Return `amount` bytes in human-readable form, such as `1.5 GiB`."""
    for size, suffix in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if amount >= size:
            return f"{amount / size:.1f} {suffix}"
    return f"{amount:.0f} B"


def format_count(number: int) -> str:
    """Return a number in short form, such as `80.7M`."""
    for size, suffix in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= size:
            return f"{number / size:.1f}{suffix}"
    return str(number)
