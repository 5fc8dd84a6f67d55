"""Where a head keeps what it knows of its Ray cluster: nodes, actors, submissions.

In a folder of the job's volume, by Ray's embedded RocksDB. One that takes the place of a lost head
finds it there; the nodes wait for their head for a while, and what runs on them goes on.
"""

import fcntl
import logging
import os
import shutil
from pathlib import Path

log = logging.getLogger(__name__)


def ray_store_env(store: Path) -> dict[str, str]:
    """Return the environment with which Ray keeps the head's state in this folder.

    Nothing, for in memory, where that cannot be. Folders of the job's earlier clusters, beside
    this one, are removed.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        for other in store.parent.iterdir():
            if other != store:
                shutil.rmtree(other, ignore_errors=True)
        _try(store)
    except OSError as error:
        log.warning("the head's state is kept in memory, its loss costs a new cluster: %s", error)
        return {}
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(store)}


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
