"""`python -m raggrpo_trainer.ray_start ray start ...`: `ray start` as a head of ours runs it.

Without Ray Client's server: no part of a job uses Ray Client. Its server waits 30 s for the head's
node and fails if a busy machine takes longer; `ray start --block` then ends the whole head. Ray has
no option against it, and starts it wherever it finds what Ray Client needs.

Without the dashboard's process, where no dashboard is wanted: Ray would start it all the same, to
report statistics of use, which are switched off.

With a store, where RAGGRPO_HEAD_STORE names a folder for it: see `host.head_store`.
"""

import logging
import os
import sys
from pathlib import Path

from ray._private import services
from ray.scripts import scripts

from raggrpo_api import names
from raggrpo_trainer.host.head_store import kept_in


def main() -> None:
    """Run Ray's command line as if Ray Client were not installed."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    scripts.get_ray_client_dependency_error = lambda: ImportError("no part of a job uses it")
    if "--include-dashboard=false" in sys.argv:
        services.start_api_server = lambda *_, **__: (None, None)
    if store := os.environ.pop(names.ENV_HEAD_STORE, ""):
        os.environ.update(kept_in(Path(store)))
    del sys.argv[0]
    scripts.main()


if __name__ == "__main__":
    main()
