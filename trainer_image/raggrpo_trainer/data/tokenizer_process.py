"""Load a foreign tokenizer after a trial; `python -m` of this module is the trial."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import Tokenizer as Backend

from raggrpo_api.tokenizer_trial import (
    RoundTrip,
    require_bounded_tokenizer,
    require_loadable,
    run_trial,
)

from .tokenizer import Tokenizer, load_tokenizer, token_ids


def load_own_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder, after a child process has loaded it.

    Raises UnsafeModel if the child process fails, and exceptions of any type.
    """
    require_loadable(folder, __name__)
    return load_tokenizer(str(folder))


def _import_loader() -> Callable[[Path], RoundTrip]:
    from transformers import AutoTokenizer  # noqa: F401 - imports torch

    def load(folder: Path) -> RoundTrip:
        tokenizer = load_tokenizer(str(folder))
        require_bounded_tokenizer(getattr(tokenizer, "backend_tokenizer", None))

        def use(text: str) -> tuple[Sequence[int], str]:
            ids = token_ids(text, tokenizer)
            return ids, tokenizer.decode(list(ids), skip_special_tokens=False)

        return use

    return load


if __name__ == "__main__":
    run_trial(Backend.from_file, _import_loader)
