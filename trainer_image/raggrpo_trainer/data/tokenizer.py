"""The model's tokenizer: load it, tokenize prompts, and decode completions as text for rewards."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from raggrpo_api.fields.text import one_line
from raggrpo_api.model_folder import UnsafeModel, read_model_json, require_safe_model
from raggrpo_api.tokenizer_trial import is_failure
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError

from .conversation import ChatTokenizer

GENERIC_TOKENIZERS = ("TokenizersBackend", "PreTrainedTokenizerFast")
MAX_REASON_CHARACTERS = 200
MAX_TOKEN_CHARACTERS = 256
"""Characters of a token; the longest tokens are spaces."""
_importing = threading.Lock()
"""transformers raises ImportError if two threads import it at the same time."""


class Tokenizer(ChatTokenizer, Protocol):
    """The part of a Hugging Face tokenizer's interface that the trainer uses."""

    eos_token_id: int | None
    bos_token_id: int | None
    pad_token_id: int | None
    name_or_path: str

    def __hash__(self) -> int: ...

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """Return {"input_ids": [...]}."""
        ...

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        ...


def load_tokenizer(path: str) -> Tokenizer:
    """Return the tokenizer of a model folder. Raises exceptions of any type.

    AutoTokenizer silently replaces a generic tokenizer by the class of the model's type, which may
    split text differently from `tokenizer.json`.
    """
    folder = Path(path)
    require_safe_model(folder)
    config = folder / "tokenizer_config.json"
    name = read_model_json(config).get("tokenizer_class") if config.is_file() else None
    tokenizer: Tokenizer
    with _importing:
        if name in GENERIC_TOKENIZERS:
            from transformers import PreTrainedTokenizerFast

            tokenizer = PreTrainedTokenizerFast.from_pretrained(path)
        else:
            from transformers import AutoTokenizer  # imports torch, which takes seconds

            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    return tokenizer


def token_ids(text: str, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens of a text, without tokens that the tokenizer adds around texts.

    Raises TrainerError DATA_ERROR if the tokenizer fails on the text.
    """
    table = _plain_table(tokenizer)
    with _reporting_failures(tokenizer):
        if table is not None:
            return tuple(table.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


@contextmanager
def _reporting_failures(tokenizer: Tokenizer) -> Iterator[None]:
    """Raise TrainerError DATA_ERROR for errors and panics of the tokenizer."""
    try:
        yield
    except BaseException as error:
        if not is_failure(error):
            raise
        reason = one_line(f"{type(error).__name__}: {error}", MAX_REASON_CHARACTERS)
        message = f"the tokenizer in {tokenizer.name_or_path} fails on a text ({reason})"
        remedy = "use the tokenizer of the original model"
        raise TrainerError(ExitCode.DATA_ERROR, f"{message}: {remedy}") from error


@lru_cache(maxsize=4)
def _plain_table(tokenizer: Tokenizer) -> Any:
    """Return the tokenizer's table if it alone determines the tokens of a text, otherwise None.

    The table is faster: it tokenizes without the offsets that transformers requests.
    """
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    methods = ("__call__", "_encode_plus")
    if any(getattr(kind, m, None) is not getattr(PreTrainedTokenizerFast, m) for m in methods):
        return None
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    tokenizer("", add_special_tokens=False)  # resets truncation and padding of the table
    return tokenizer.backend_tokenizer


@lru_cache(maxsize=4)
def leading_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the tokens that the tokenizer puts before plain text by default, such as <bos>."""
    plain = token_ids("a", tokenizer)
    whole = tuple(tokenizer("a", add_special_tokens=True)["input_ids"])
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start]
    return ()


def start_tokens(tokenizer: Tokenizer, chat_template: str) -> tuple[int, ...]:
    """Return the tokens that each prompt starts with, besides those that its template writes.

    The text of the tokenizer's own template is complete, as in transformers and vLLM. Other text,
    plain or from the job's template, starts with `leading_tokens`.
    """
    is_complete = tokenizer.chat_template and not chat_template
    return () if is_complete else leading_tokens(tokenizer)


def prompt_ids(text: str, tokenizer: Tokenizer, chat_template: str) -> tuple[int, ...]:
    """Return the tokens of a rendered prompt, with `start_tokens` unless it has them already."""
    ids = token_ids(text, tokenizer)
    start = start_tokens(tokenizer, chat_template)
    return ids if ids[: len(start)] == start else (*start, *ids)


def end_token_ids(tokenizer: Tokenizer, model: Path) -> frozenset[int]:
    """Return the tokens that end a completion: the tokenizer's, and those of the model folder.

    vLLM reads them from generation_config.json or, if there is none, from config.json. Files that
    cannot be read count as empty.
    """
    own = tokenizer.eos_token_id
    return frozenset([*([] if own is None else [own]), *_end_tokens_of_folder(model)])


def completion_text(ids: Sequence[int], tokenizer: Tokenizer, end_ids: frozenset[int]) -> str:
    """Return the text of sampled tokens, without tokens that start, end or pad sequences.

    Other special tokens remain: models may have tags such as <answer> as special tokens. Raises
    TrainerError DATA_ERROR if the tokenizer fails on the tokens.
    """
    omitted = {*end_ids, tokenizer.bos_token_id, tokenizer.pad_token_id}
    kept = [token for token in ids if token not in omitted]
    with _reporting_failures(tokenizer):
        return tokenizer.decode(kept, skip_special_tokens=False)


def _end_tokens_of_folder(model: Path) -> Iterator[int]:
    for name in ("generation_config.json", "config.json"):
        if (model / name).is_file():
            value = _end_tokens(model / name)
            tokens = value if isinstance(value, list) else [value]
            yield from (each for each in tokens if each is not None and each >= 0)  # -1: no token
            return


def _end_tokens(path: Path) -> Any:
    try:
        return read_model_json(path).get("eos_token_id")
    except UnsafeModel:
        return None
