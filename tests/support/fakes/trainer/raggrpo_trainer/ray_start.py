"""Start a real Ray head, and the progress server that outlives drivers."""

import os
import runpy
import subprocess
import sys
from pathlib import Path

import raggrpo_trainer
from raggrpo_api import names
from raggrpo_trainer import progress_server

served = Path(os.environ["TMPDIR"], "progress.json")
port = os.environ[names.ENV_PROGRESS_PORT]
subprocess.Popen(
    [sys.executable, progress_server.__file__, port, str(served)], stderr=subprocess.DEVNULL
)
runpy.run_path(str(Path(raggrpo_trainer.__path__[-1], "ray_start.py")), run_name="__main__")
