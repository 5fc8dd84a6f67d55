"""`python -m raggrpo_trainer.ray_start ray start ...`: `ray start` as nodes of ours run it.

Without Ray's other commands, for which it would import pandas and FastAPI: three quarters of its
imports.

Without Ray Client's server: no part of a job uses Ray Client. Its server waits 30 s for the head's
node and fails if a busy machine takes longer; `ray start --block` then ends the whole head. Ray has
no option against it, and starts it wherever it finds what Ray Client needs.

Without the dashboard's process, where no dashboard is wanted: Ray would start it all the same, to
report statistics of use, which are switched off.

Where one is wanted, without waiting for it: Ray would begin the head's own node only once the
dashboard answers, which that node does not need. A dashboard that fails to start ends the head.

With a store, where RAGGRPO_HEAD_STORE names a folder for it: see `host.head_store`.
"""

import logging
import os
import sys
from pathlib import Path
from typing import Any

from ray._private import ray_constants, services
from ray.experimental import internal_kv

from raggrpo_api import names
from raggrpo_trainer.host.large_import import large_import
from raggrpo_trainer.host.ray_head_store import ray_store_env

OTHER_COMMANDS = ("serve.scripts", "util.state.state_cli", "dashboard.modules.job.cli")
"""Modules of Ray, without which its command line goes on."""


def skip_dashboard_wait() -> None:
    """Answer Ray, which waits for the dashboard's address here, that there is none."""
    get = internal_kv._internal_kv_get

    def found(key: str | bytes, **options: Any) -> bytes | None:
        return b"" if key == ray_constants.DASHBOARD_ADDRESS else get(key, **options)

    internal_kv._internal_kv_get = found


def main() -> None:
    """Run Ray's command line as if Ray Client and its other commands were not installed."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for name in OTHER_COMMANDS:
        sys.modules[f"ray.{name}"] = None  # type: ignore[assignment]  # an import of it fails
    with large_import():
        from ray.scripts import scripts
    scripts.get_ray_client_dependency_error = lambda: ImportError("no part of a job uses it")
    if "--include-dashboard=false" in sys.argv:
        services.start_api_server = lambda *_, **__: (None, None)
    elif "--head" in sys.argv:
        skip_dashboard_wait()
    if store := os.environ.pop(names.ENV_HEAD_STORE, ""):
        os.environ.update(ray_store_env(Path(store)))
    del sys.argv[0]
    scripts.main()


if __name__ == "__main__":
    main()
