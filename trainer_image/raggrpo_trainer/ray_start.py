"""`python -m raggrpo_trainer.ray_start ray start ...`: `ray start` as used for every Ray node.

It differs from `ray start` as follows:

- Without Ray's other commands, which import pandas and FastAPI: three quarters of its imports.
- Without the Ray Client server, which no job uses. It waits 30 s for the node of the Ray head and
  fails if a busy machine takes longer; `ray start --block` then terminates the whole Ray head. Ray
  has no option to disable it and starts it wherever Ray Client's requirements are installed.
- Without the dashboard process, with `--include-dashboard=false`. Ray would start it anyway, to
  report usage statistics, which are disabled.
- Without waiting for the dashboard, if there is one. Ray would start the head's own node only after
  the dashboard responds, which that node does not need. A dashboard that fails to start terminates
  the Ray head.
- With persistent storage of the Ray head's state in RAGGRPO_HEAD_STORE, see `host.ray_head_store`.
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
"""Ray's modules of other commands; its command line works without them."""


def skip_dashboard_wait() -> None:
    """Make Ray read an empty dashboard address, for which it would otherwise wait."""
    get = internal_kv._internal_kv_get

    def get_or_empty(key: str | bytes, **options: Any) -> bytes | None:
        return b"" if key == ray_constants.DASHBOARD_ADDRESS else get(key, **options)

    internal_kv._internal_kv_get = get_or_empty


def main() -> None:
    """Run Ray's command line without Ray Client and its other commands."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    for name in OTHER_COMMANDS:
        sys.modules[f"ray.{name}"] = None  # type: ignore[assignment]  # importing it fails
    with large_import():
        from ray.scripts import scripts
    scripts.get_ray_client_dependency_error = lambda: ImportError("unused")
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
