"""Load a foreign tokenizer in a child process first: its library may abort, panic or never end."""

import resource
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from tokenizers import Tokenizer as Backend

from raggrpo_api.model_folder import UnsafeModel, require_safe_model

from .tokenizer import Tokenizer, load_tokenizer, token_ids

MAX_SECONDS = 120
"""Time for importing the library and loading the tokenizer."""
MAX_MEMORY = 4 << 30
"""Memory of the child process in bytes."""
TOKENIZER_FILE = "tokenizer.json"
_SAMPLE = "a b"


def load_own_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder, after a child process has loaded it.

    Raises UnsafeModel if the child process fails, and exceptions of any type.
    """
    require_safe_model(folder)
    command = [sys.executable, "-m", __name__, str(folder)]
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
    return load_tokenizer(str(folder))


def main(folder: Path) -> None:
    """Load a tokenizer and use it; the parent process reports any exception."""
    resource.setrlimit(resource.RLIMIT_DATA, (MAX_MEMORY, MAX_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(Exception):  # a panic of the library is no Exception
        if (folder / TOKENIZER_FILE).exists():
            # The library alone takes 0.1 seconds to import; transformers takes several.
            Backend.from_file(str(folder / TOKENIZER_FILE)).encode(_SAMPLE)
        else:
            token_ids(_SAMPLE, load_tokenizer(str(folder)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
