"""Load a foreign tokenizer in a child process first: its library may abort, panic or never end."""

import resource
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from .model_folder import UnsafeModel, require_safe_model

MAX_SECONDS = 120
"""Time for importing the library and loading the tokenizer."""
MAX_MEMORY = 4 << 30
"""Memory of the child process in bytes."""


def require_loadable(folder: Path, module: str) -> None:
    """Raise UnsafeModel unless `python -m module folder`, which calls `run_trial`, succeeds."""
    require_safe_model(folder)
    command = [sys.executable, "-m", module, str(folder)]
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        problem = f"the tokenizer in {folder} is not loaded after {MAX_SECONDS} seconds"
        raise UnsafeModel(f"{problem}: save it with save_pretrained()") from error
    if child.returncode:
        last = (child.stderr.strip().splitlines() or [f"exit code {child.returncode}"])[-1]
        problem = f"the tokenizer in {folder} cannot be loaded: its library crashes ({last[:200]})"
        raise UnsafeModel(f"{problem}: copy the files again")


def run_trial(load: Callable[[Path], object]) -> None:
    """Load the tokenizer of the folder in the arguments; the parent reports any exception."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(Exception):  # a panic of the library is no Exception
        load(Path(sys.argv[1]))
