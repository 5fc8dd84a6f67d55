"""Load the tokenizer of an embedding model after a trial; `python -m` of this module is the trial.

Must not import torch, which takes seconds.
"""

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from raggrpo_api.tokenizer_trial import require_loadable, run_trial

TOKENIZER_FILE = "tokenizer.json"
_SAMPLE = "a b"


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, after a child process has loaded it.

    Raises UnsafeModel if the child process fails, and exceptions of any type.
    """
    require_loadable(folder, __name__)
    return _load(folder)


def _load(folder: Path) -> Any:
    from transformers import AutoTokenizer

    # Never run code from the folder, never download.
    return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _use(folder: Path) -> None:
    if (folder / TOKENIZER_FILE).exists():
        Tokenizer.from_file(str(folder / TOKENIZER_FILE)).encode(_SAMPLE)
    else:
        _load(folder)(_SAMPLE)


if __name__ == "__main__":
    run_trial(_use)
