"""Environment variables for Ray, in pods and in local runs."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RAY_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RAY_DEDUP_LOGS": "0",
        "RAY_COLOR_PREFIX": "0",  # the driver's log is read in files and log collectors
        # Ranks and engines have their own environments and cannot use prestarted workers.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_worker_niceness": "0",  # with the default of 15, other processes starve the ranks
    }
)
