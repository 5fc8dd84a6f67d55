"""`python -m raggrpo_trainer.ray_start ray start ...`: a modified `ray start` for all Ray nodes.

This module changes `ray start` as follows:

- It does not import Ray's other commands. They need pandas and FastAPI, which account for three
  quarters of the imports of `ray start`.
- It does not start the Ray Client server, which no job uses. That server waits 30 s for the node of
  the Ray head and fails if a busy machine takes longer; `ray start --block` then terminates the
  whole Ray head. Ray has no option to disable the server and starts it wherever Ray Client's
  requirements are installed.
- With `--include-dashboard=false`, it does not start the dashboard process. Ray would start that
  process anyway to report usage statistics, which are disabled.
- With a dashboard, it does not wait for the dashboard to respond. Ray would start the head's own
  node only after the response, although the node does not need the dashboard. A dashboard that
  fails to start terminates the Ray head.
- A head with a dashboard copies the logs of drivers to its own output, and listens on IPv6 if that
  is the node's address.
- It stores the Ray head's state in the folder RAGGRPO_HEAD_STORE, see `host.ray_head_store`.
"""

import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ray._private import ray_constants, services
from ray.experimental import internal_kv

from raggrpo_api import names
from raggrpo_trainer.host.driver_output import DriverOutput
from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.host.ray_head_store import ray_store_env

OTHER_COMMANDS = ("serve.scripts", "util.state.state_cli", "dashboard.modules.job.cli")
"""Modules of Ray's other commands; Ray's command line works without them."""
RAY_FOLDER = Path("/tmp/ray")


def skip_dashboard_wait() -> None:
    """Make Ray read an empty dashboard address instead of waiting until the address is known."""
    get = internal_kv._internal_kv_get

    def get_or_empty(key: str | bytes, **options: Any) -> bytes | None:
        return b"" if key == ray_constants.DASHBOARD_ADDRESS else get(key, **options)

    internal_kv._internal_kv_get = get_or_empty


def driver_logs() -> Iterator[Path]:
    """Return the log files of the drivers on this head."""
    return RAY_FOLDER.glob(names.ray_driver_log("*"))


def with_dashboard_host(arguments: list[str], node_address: str) -> list[str]:
    """Return the arguments with the dashboard on all addresses of the node's family."""
    host = "::" if ":" in node_address else "0.0.0.0"
    option = "--dashboard-host="
    return [f"{option}{host}" if each.startswith(option) else each for each in arguments]


def main() -> None:
    """Run Ray's command line without Ray Client and without OTHER_COMMANDS."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for name in OTHER_COMMANDS:
        sys.modules[f"ray.{name}"] = None  # type: ignore[assignment]  # makes the import fail
    with large_import():
        from ray.scripts import scripts
    scripts.get_ray_client_dependency_error = lambda: ImportError("unused")
    if "--include-dashboard=false" in sys.argv:
        services.start_api_server = lambda *_, **__: (None, None)
    elif "--head" in sys.argv:
        skip_dashboard_wait()
        sys.argv = with_dashboard_host(sys.argv, services.get_node_ip_address())
        DriverOutput(driver_logs, sys.stdout.buffer).start()
    if store := os.environ.pop(names.ENV_HEAD_STORE, ""):
        os.environ.update(ray_store_env(Path(store)))
    del sys.argv[0]
    scripts.main()


if __name__ == "__main__":
    main()
