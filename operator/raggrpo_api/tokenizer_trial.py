"""Load a foreign tokenizer in a child process first.

Its library may abort, panic or never end, and its rules may expand a short text without limit.
"""

import json
import os
import signal
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from .model_folder import (
    CONFIG,
    TOKENIZER_CONFIG,
    UnsafeModel,
    read_model_json,
    require_safe_model,
)
from .python_tokenizers import CLASSES, MODEL_TYPES
from .resource_limits import limit_resources
from .tokenizer_rules import require_bounded

RoundTrip = Callable[[str], tuple[Sequence[int], str]]
"""Returns the tokens of a text, and their text."""

TOKENIZER_FILE = "tokenizer.json"
MAX_SECONDS = 120
"""Time of the child process."""
MAX_CPU_SECONDS = 60
"""CPU time for loading the tokenizer, encoding SAMPLE and decoding its tokens."""
MAX_MEMORY = 1 << 30
"""Bytes of memory for the same; a Unigram vocabulary of 256,000 tokens needs 410 MiB."""
MAX_PADDING = 1 << 20
"""Tokens to which tokenizer.json may pad each text."""
MAX_EXPANSION = 8
"""Tokens of SAMPLE, and characters of their text, per character of SAMPLE."""
MAX_WORD = 256
"""Characters of a word in a Unigram vocabulary, and of one that WordPiece splits.

Time grows with the square of these lengths, or faster. WordPiece has 100 by default.
"""
MAX_AFFIX = 64
"""Characters that BPE or WordPiece adds to a piece of a word, which it does for each letter."""
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
SAMPLE = f"{string.printable}{'a' * 1000} Die Größe von «Œuvre» ist Ω, привет, 東京"
_PANIC = "PanicException"
"""Name of the exception that Rust's panics raise, which is no Exception and cannot be imported."""
_REJECTED = 3
"""Exit code of the child process; the last line of its errors is the problem with its remedy."""
_REMEDY = "use the tokenizer of the original model"


def require_loadable(folder: Path, module: str) -> None:
    """Raise UnsafeModel unless `python -m module folder`, which calls `run_trial`, succeeds."""
    require_safe_model(folder)
    command = [sys.executable, "-m", module, str(folder)]
    env = os.environ | {"RUST_BACKTRACE": "0"}  # the last line of the errors is the cause
    try:
        child = subprocess.run(
            command, capture_output=True, text=True, timeout=MAX_SECONDS, check=False, env=env
        )
    except subprocess.TimeoutExpired as error:
        raise UnsafeModel(_slow(folder, f"{MAX_SECONDS} seconds")) from error
    errors = [line for line in child.stderr.splitlines() if line and not line.startswith("note:")]
    last = errors[-1][:200] if errors else f"exit code {child.returncode}"
    if child.returncode == _REJECTED:
        raise UnsafeModel(f"the tokenizer in {folder} {last}")
    if child.returncode == -signal.SIGXCPU:
        raise UnsafeModel(_slow(folder, f"{MAX_CPU_SECONDS} seconds of CPU time"))
    if child.returncode and last.startswith("memory allocation of"):  # Rust aborts
        raise UnsafeModel(f"the tokenizer in {folder} {_memory_problem()}")
    if child.returncode:
        problem = f"the tokenizer in {folder} cannot be loaded: its library crashes ({last})"
        raise UnsafeModel(f"{problem}: copy the files again")


def is_failure(error: BaseException) -> bool:
    """Return whether a tokenizer failed on a text, rather than for lack of memory."""
    is_expected = isinstance(error, Exception) and not isinstance(error, MemoryError)
    return is_expected or type(error).__name__ == _PANIC


def run_trial(
    read: Callable[[str], Any], import_loader: Callable[[], Callable[[Path], RoundTrip]]
) -> None:
    """Load the tokenizer of the folder in the arguments, and encode and decode SAMPLE.

    `read` returns the library's tokenizer from TOKENIZER_FILE, which is faster than transformers.
    Without that file, or if transformers reads others, `import_loader` imports what it needs and
    returns the function that loads the tokenizer. Exits with _REJECTED if a limit is exceeded. The
    parent reports other exceptions.
    """
    folder = Path(sys.argv[1])
    file = folder / TOKENIZER_FILE
    is_enough = file.exists() and not _is_in_python(folder)
    load = (lambda _: _round_trip(read(str(file)))) if is_enough else import_loader()
    limit_resources(MAX_CPU_SECONDS, MAX_MEMORY)
    try:
        ids, text = load(folder)(SAMPLE)
    except MemoryError:
        _reject(_memory_problem())
    except Exception:  # a panic of the library is no Exception
        return
    if not ids:
        _reject(f"makes no tokens of a sample text: {_REMEDY}")
    for size, unit in ((len(ids), "tokens"), (len(text), "characters")):
        if size > MAX_EXPANSION * len(SAMPLE):
            _reject(f"expands {len(SAMPLE):,} characters to {size:,} {unit}: {_REMEDY}")


def _is_in_python(folder: Path) -> bool:
    """Return whether transformers loads a tokenizer that ignores TOKENIZER_FILE."""
    files = (folder / name for name in (CONFIG, TOKENIZER_CONFIG))
    settings = [read_model_json(file) for file in files if file.exists()]
    classes = {str(each.get("tokenizer_class")).removesuffix("Fast") for each in settings}
    model_types = {str(each.get("model_type")) for each in settings}
    return bool(classes & CLASSES or model_types & MODEL_TYPES)


def _round_trip(tokenizer: Any) -> RoundTrip:
    """Return a function that encodes without padding, as transformers does by default."""
    padding = tokenizer.padding or {}
    for name in ("length", "pad_to_multiple_of"):
        if (padding.get(name) or 0) > MAX_PADDING:
            _reject(
                f"pads texts to {padding[name]:,} tokens, more than {MAX_PADDING:,}: "
                f"set padding to null in {TOKENIZER_FILE}"
            )
    tokenizer.no_padding()
    tokenizer.no_truncation()
    require_bounded_tokenizer(tokenizer)

    def use(text: str) -> tuple[Sequence[int], str]:
        ids = tokenizer.encode(text).ids
        return ids, tokenizer.decode(ids, skip_special_tokens=False)

    return use


def require_bounded_tokenizer(tokenizer: Any) -> None:
    """Exit with _REJECTED if the library's tokenizer expands some text too much, or is too slow.

    A tokenizer of transformers without the library is None; its rules are code of transformers.
    """
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        rule = getattr(tokenizer, part, None)
        try:
            require_bounded(part, json.loads(rule.__getstate__()) if rule else None)
        except ValueError as error:
            _reject(f"has a {part} with {error}: {_REMEDY}")
    for name in _AFFIXES:
        size = len(getattr(getattr(tokenizer, "model", None), name, None) or "")
        if size > MAX_AFFIX:
            _reject(f"has {name} of {size:,} characters, more than {MAX_AFFIX}: {_REMEDY}")
    if (longest := _longest_word(tokenizer)) > MAX_WORD:
        _reject(f"has words of {longest:,} characters, more than {MAX_WORD}: {_REMEDY}")


def _longest_word(tokenizer: Any) -> int:
    """Return the characters of the longest word that takes the model more than linear time."""
    model: Any = getattr(tokenizer, "model", None)
    match type(model).__name__:
        case "Unigram":
            return max(map(len, tokenizer.get_vocab(with_added_tokens=False)), default=0)
        case "WordPiece":
            return int(model.max_input_chars_per_word)
    return 0


def _reject(problem: str) -> NoReturn:
    sys.stderr.write(f"\n{problem}\n")
    sys.exit(_REJECTED)


def _slow(folder: Path, time: str) -> str:
    return f"the tokenizer in {folder} is not loaded after {time}: {_REMEDY}"


def _memory_problem() -> str:
    return f"needs more than {MAX_MEMORY >> 20:,} MiB of memory: {_REMEDY}"
