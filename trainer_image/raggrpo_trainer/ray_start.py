"""`python -m raggrpo_trainer.ray_start ray start ...`: `ray start` as a head of ours runs it.

Without Ray Client's server: no part of a job uses Ray Client. Its server waits 30 s for the head's
node and fails if a busy machine takes longer; `ray start --block` then ends the whole head. Ray has
no option against it, and starts it wherever it finds what Ray Client needs.

With a store: what the head knows of nodes, actors and submissions is kept in the folder that
RAGGRPO_HEAD_STORE names (Ray's embedded RocksDB). A head that takes its place finds it there, and
the nodes, which wait for their head for a while, go on with everything that runs on them.
"""

import fcntl
import logging
import os
import shutil
import sys
from pathlib import Path

from ray.scripts import scripts

from raggrpo_api import names

log = logging.getLogger(__name__)


def main() -> None:
    """Run Ray's command line as if Ray Client were not installed."""
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    scripts.get_ray_client_dependency_error = lambda: ImportError("no part of a job uses it")
    if store := os.environ.pop(names.ENV_HEAD_STORE, ""):
        keep_state(Path(store))
    del sys.argv[0]
    scripts.main()


def keep_state(store: Path) -> None:
    """Have Ray keep the head's state in this folder; where that cannot be, in memory as ever.

    Folders of the job's earlier clusters, beside this one, are removed.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        for other in store.parent.iterdir():
            if other != store:
                shutil.rmtree(other, ignore_errors=True)
        _try(store)
    except OSError as error:
        log.warning("the head's state is kept in memory, its loss costs a new cluster: %s", error)
        return
    os.environ["RAY_gcs_storage"] = "rocksdb"
    os.environ["RAY_gcs_storage_path"] = str(store)


def _try(folder: Path) -> None:
    """Raise OSError unless files here can be locked, extended and renamed, as RocksDB does."""
    probe, renamed = folder / "probe", folder / "probe.renamed"
    with probe.open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in range(2):
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    probe.replace(renamed)
    renamed.unlink()


if __name__ == "__main__":
    main()
