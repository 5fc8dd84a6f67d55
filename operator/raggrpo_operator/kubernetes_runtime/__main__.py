"""`python -m raggrpo_operator.kubernetes_runtime`: run the operator with settings from env."""

import asyncio
import logging
import os
import sys
from collections.abc import Coroutine
from typing import Any

from raggrpo_operator.kubernetes_runtime.process.json_logs import configure_logs
from raggrpo_operator.kubernetes_runtime.process.settings import SettingsError, read_settings
from raggrpo_operator.kubernetes_runtime.rounds.resync import KubeRayAppeared
from raggrpo_operator.kubernetes_runtime.watching.caches import ListTimeout

from .operator_process import LeadershipLost, WatchFailed, run_operator

WRONG_SETTINGS, RESTART = 2, 1
"""Exit codes for invalid settings, and for a restart by the kubelet."""
log = logging.getLogger("raggrpo_operator")


def main() -> int:
    """Run the operator and return its exit code."""
    configure_logs("INFO")
    try:
        settings = read_settings()
        configure_logs(settings.log_level)
        asyncio.run(run_until_exit(run_operator(settings)))
    except SettingsError as error:
        for line in str(error).splitlines():
            log.error(line)
        return WRONG_SETTINGS
    except (LeadershipLost, KubeRayAppeared) as reason:
        log.warning("%s", reason)
        return RESTART
    return 0


async def run_until_exit(running: Coroutine[Any, Any, None]) -> None:
    """Run the operator; exit the process immediately if a list or watch has failed."""
    try:
        await running
    except (WatchFailed, ListTimeout) as reason:
        log.error("%s", reason)
        logging.shutdown()
        os._exit(RESTART)  # hanging kopf tasks would block a normal exit forever


if __name__ == "__main__":
    sys.exit(main())
