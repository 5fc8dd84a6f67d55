"""Load the tokenizer of an embedding model after a trial; `python -m` of this module is the trial.

Must not import torch, which takes seconds.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from raggrpo_api.tokenizer_trial import (
    RoundTrip,
    require_bounded_tokenizer,
    require_loadable,
    run_trial,
)


def load_tokenizer(folder: Path) -> Any:
    """Return the tokenizer of a folder, after a child process has loaded it.

    Raises UnsafeModel if the child process fails, and exceptions of any type.
    """
    require_loadable(folder, __name__)
    return _import_load()(folder)


def _import_load() -> Callable[[Path], Any]:
    from transformers import AutoTokenizer

    # Never run code from the folder, never download.
    return lambda folder: AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False
    )


def _import_loader() -> Callable[[Path], RoundTrip]:
    load = _import_load()

    def load_round_trip(folder: Path) -> RoundTrip:
        tokenizer = load(folder)
        require_bounded_tokenizer(getattr(tokenizer, "backend_tokenizer", None))
        return lambda text: (tokenizer(text)["input_ids"], "")  # a retriever decodes no tokens

    return load_round_trip


if __name__ == "__main__":
    run_trial(Tokenizer.from_file, _import_loader)
