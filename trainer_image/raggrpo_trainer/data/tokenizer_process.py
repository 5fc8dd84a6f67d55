"""Load a foreign tokenizer after a trial; `python -m` of this module is the trial."""

from pathlib import Path

from tokenizers import Tokenizer as Backend

from raggrpo_api.tokenizer_trial import require_loadable, run_trial

from .tokenizer import Tokenizer, load_tokenizer, token_ids

TOKENIZER_FILE = "tokenizer.json"
_SAMPLE = "a b"


def load_own_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder, after a child process has loaded it.

    Raises UnsafeModel if the child process fails, and exceptions of any type.
    """
    require_loadable(folder, __name__)
    return load_tokenizer(str(folder))


def _use(folder: Path) -> None:
    if (folder / TOKENIZER_FILE).exists():
        # The library alone takes 0.1 seconds to import; transformers takes several.
        Backend.from_file(str(folder / TOKENIZER_FILE)).encode(_SAMPLE)
    else:
        token_ids(_SAMPLE, load_tokenizer(str(folder)))


if __name__ == "__main__":
    run_trial(_use)
