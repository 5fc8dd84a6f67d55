"""Persistent storage of the Ray head's state (GCS): nodes, actors, submitted jobs.

Ray's embedded RocksDB writes the state to a folder of the job's volume. A Ray head that replaces a
lost one reads the state from that folder. Until then, the other nodes wait for a limited time, and
their processes continue.
"""

import fcntl
import logging
import os
import shutil
from pathlib import Path

log = logging.getLogger(__name__)


def ray_store_env(store: Path) -> dict[str, str]:
    """Return the environment variables that make Ray store its head's state in this folder.

    Returns {} if the folder does not support RocksDB; Ray then stores the state in memory. Removes
    sibling folders, which belong to earlier clusters of the job.
    """
    try:
        store.mkdir(parents=True, exist_ok=True)
        for sibling in store.parent.iterdir():
            if sibling != store:
                shutil.rmtree(sibling, ignore_errors=True)
        _check_file_operations(store)
    except OSError as error:
        log.warning(
            "cannot store the Ray head's state on the volume (%s); Ray stores it in memory, so the "
            "loss of the head ends the cluster",
            error,
        )
        return {}
    return {"RAY_gcs_storage": "rocksdb", "RAY_gcs_storage_path": str(store)}


def _check_file_operations(folder: Path) -> None:
    """Raise OSError unless files in the folder can be locked, appended and renamed (RocksDB)."""
    probe = folder / "probe"
    renamed = folder / "probe.renamed"
    with probe.open("ab") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for _ in range(2):
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    probe.replace(renamed)
    renamed.unlink()
