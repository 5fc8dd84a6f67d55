"""The operator process, with Ray heads at $HEADS/<name of the RayCluster>."""

import asyncio
import os
import sys

from raggrpo_operator.kubernetes_runtime.__main__ import run_until_exit
from raggrpo_operator.kubernetes_runtime.operator_process import run_operator
from raggrpo_operator.kubernetes_runtime.process.json_logs import configure_logs
from raggrpo_operator.kubernetes_runtime.process.settings import read_settings
from raggrpo_operator.kubernetes_runtime.rounds.heads import HeadAddress


def address(namespace: str, cluster: str) -> HeadAddress:
    """Return the address of the fake head."""
    base = f"{os.environ['HEADS']}/{cluster}"
    return HeadAddress(base, base)


def main() -> None:
    settings = read_settings()
    configure_logs(settings.log_level)
    asyncio.run(run_until_exit(run_operator(settings, address)))


if __name__ == "__main__":
    sys.exit(main())
