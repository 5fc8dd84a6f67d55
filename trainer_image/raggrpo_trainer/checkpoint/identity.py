"""Content of the files that a checkpoint depends on. Paths, mounts and hosts are not part of it.

with FileDigests(path / DIGESTS) as digests:
    identity = content_identity(config, digests)     # {"model weights": "5f1d…", …}
"""

import hashlib
import json
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any, Self

from pydantic import TypeAdapter

from raggrpo_api import names
from raggrpo_api.foreign_files import open_regular, read_limited
from raggrpo_api.model_folder import (
    UnsafeModel,
    is_weight_file,
    loaded_files,
    read_model_json,
)
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.trainer.config import TrainerConfig, content_hash

from .folder import write_atomically

log = logging.getLogger(__name__)

WEIGHTS = "model weights"
"""Name of the digest of the initial weights, without which adapters have no meaning."""
DIGESTS = "digests.json"
"""Name of the cache in the checkpoint folder."""
MAX_THREADS = 8
MAX_CACHE_BYTES = 64 * 2**20
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.model",
    "*.tiktoken",
)
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates/*.jinja")
TEMPLATE_KEY = "chat_template"
"""Key of the chat template in tokenizer_config.json."""


Cached = dict[str, tuple[int, int, int, str]]
"""Size in bytes, times of the last write and change in nanoseconds, and SHA-256 by path."""
_CACHE = TypeAdapter(Cached)


class FileDigests:
    """SHA-256 of files, cached by path with size and times."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._known: Cached = {}
        self._used: Cached = {}

    def __enter__(self) -> Self:
        try:
            self._known = _CACHE.validate_json(read_limited(self._cache, MAX_CACHE_BYTES))
        except (OSError, ValueError):  # absent or damaged: hash again
            self._known = {}
        return self

    def __exit__(self, *_: object) -> None:
        if self._used == self._known:
            return
        try:
            write_atomically(self._cache, json.dumps(self._used))
        except OSError as error:  # hashing again costs only time
            log.warning("cannot write %s: %s", self._cache, error)

    def of(self, files: Sequence[Path]) -> list[str]:
        """Return the digests of files, hashed in parallel. Raises OSError if one is unreadable."""
        with ThreadPoolExecutor(MAX_THREADS) as pool:
            return list(pool.map(self._digest, files))

    def _digest(self, file: Path) -> str:
        status = file.stat()
        # A copy can have the time of the last write of its source, but not the time of its change.
        state = status.st_size, status.st_mtime_ns, status.st_ctime_ns
        *known, digest = self._known.get(str(file), (-1, -1, -1, ""))
        if tuple(known) != state:
            with open_regular(file) as content:
                digest = hashlib.file_digest(content, "sha256").hexdigest()
        self._used[str(file)] = *state, digest
        return digest


def content_identity(config: TrainerConfig, digests: FileDigests) -> dict[str, object]:
    """Return digests of the inputs by the names that messages use.

    An input that this process cannot read is left out; the component that uses it reports that.
    """
    identity: dict[str, object] = {}
    for name, digest_of in _inputs(config, digests):
        try:
            identity[name] = digest_of()
        except OSError as error:
            log.info("the content of %s is not compared: %s", name, error)
    return identity


def _inputs(config: TrainerConfig, digests: FileDigests) -> Iterator[tuple[str, Callable[[], str]]]:
    """Yield (name of an input, function that returns the digest of its content)."""
    model = Path(config.model.path)
    tokenizer = [file for pattern in TOKENIZER_FILES for file in sorted(model.glob(pattern))]
    rows = [Path(file) for file in config.data.train_files]
    yield "model config.json", partial(_named, [model / "config.json"], digests)
    generation = sorted(model.glob("generation_config.json"))  # has the tokens that end a text
    yield "model generation_config.json", partial(_named, generation, digests)
    yield WEIGHTS, partial(weights_digest, model, digests)
    yield (
        "model tokenizer",
        lambda: content_hash([_named(tokenizer, digests), _tokenizer_config(model)[0]]),
    )
    if not config.data.chat_template:
        yield "chat template", partial(_chat_template, model, digests)
    yield "rows of data.trainFiles", partial(_ordered, rows, digests)
    for endpoint in config.retrieval.endpoints:
        if endpoint.managed is not None:
            corpus = [Path(endpoint.managed.corpus)]
            yield f"corpus of endpoint {endpoint.name}", partial(_ordered, corpus, digests)
    for target in reward_targets(config.reward):
        yield f"code of reward {target}", partial(_code, target, config.reward, digests)


def weights_digest(model: Path, digests: FileDigests) -> str:
    """Return the digest of the weights that are loaded from a model folder. Raises OSError."""
    try:
        return _named([each for each in loaded_files(model) if is_weight_file(each)], digests)
    except UnsafeModel as error:
        raise OSError(str(error)) from error


def _code(target: str, reward: RewardSpec, digests: FileDigests) -> str:
    return _ordered(reward_files(target, reward), digests)


def _ordered(files: Sequence[Path], digests: FileDigests) -> str:
    return content_hash(digests.of(files))


def _named(files: Sequence[Path], digests: FileDigests) -> str:
    """Return a digest of the files' names and contents."""
    return content_hash([[file.name for file in files], digests.of(files)])


def _chat_template(model: Path, digests: FileDigests) -> str:
    files = [file for pattern in TEMPLATE_FILES for file in sorted(model.glob(pattern))]
    return content_hash([_named(files, digests), _tokenizer_config(model)[1]])


def _tokenizer_config(model: Path) -> tuple[dict[str, Any], Any]:
    """Return tokenizer_config.json without the chat template, and the template."""
    file = model / "tokenizer_config.json"
    if not file.is_file():
        return {}, None
    try:
        values = read_model_json(file)
    except UnsafeModel as error:
        raise OSError(str(error)) from error
    template = values.pop(TEMPLATE_KEY, None)
    return values, template


def reward_targets(reward: RewardSpec) -> list[str]:
    """Return the distinct `package.module:function` of Python rewards."""
    return list(dict.fromkeys(each.python for each in reward.functions if each.python))


def reward_files(target: str, reward: RewardSpec) -> list[Path]:
    """Return the file of a reward's module, and of the modules next to it that it imports.

    Must not execute the code. Raises OSError if the module is not found.
    """
    module = target.partition(":")[0]
    path = Path(*module.split("."))
    own = [each for each in (reward.code_from.path, names.REWARD_CODE_DIR) if each]
    for root in map(Path, dict.fromkeys([*own, *sys.path])):
        for file in (root / path.with_suffix(".py"), root / path / "__init__.py"):
            if file.is_file():
                return sorted({file, *(_imported(module, root) if str(root) in own else ())})
    raise OSError(f"module {module} is not found")


def _imported(module: str, root: Path) -> set[Path]:
    """Return the files below `root` that a module imports, also indirectly."""
    finder = ModuleFinder([str(root)])
    try:
        finder.import_hook(module)
    except Exception as error:  # a user's module may have any error; its import reports it
        log.info("the imports of reward module %s are not compared: %r", module, error)
    files = (getattr(each, "__file__", None) for each in finder.modules.values())
    return {Path(each) for each in files if each}
