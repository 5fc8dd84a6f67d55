"""Settings of Ray that all of a job's processes begin with, on one machine and in pods."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

RAY_VARIABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "RAY_DEDUP_LOGS": "0",
        # Ranks and engines have environments of their own and could not use prestarted workers.
        "RAY_prestart_worker_first_driver": "0",
        "RAY_enable_worker_prestart": "0",
        "RAY_worker_niceness": "0",  # at the default of 15, any other process starves the ranks
    }
)
