"""Embed texts with a Hugging Face model on CPU in FP32. Must not depend on indexes."""

import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.modules.module import register_module_parameter_registration_hook as register_hook
from transformers import AutoConfig, AutoModel
from transformers.utils import logging as transformers_logging

from raggrpo_api.forked_trial import TrialFailed, TrialKilled, forked_problem
from raggrpo_api.model_folder import UnsafeModel, is_weight_file, loaded_files, require_own_weights
from raggrpo_api.spec.retrieval import EmbeddingModel, Pooling
from raggrpo_api.tensor_limit import limited_tensors
from raggrpo_api.tokenizer_trial import is_failure

from .corpus import CorpusError
from .tokenizer_process import load_tokenizer

transformers_logging.disable_progress_bar()  # progress bars are unreadable in logs
transformers_logging.set_verbosity_error()  # reports have escapes; their problems are checked here

MAX_BATCH_TOKENS = 4096
"""Maximum size of a forward pass: number of texts × tokens of the longest text."""
MAX_TOKEN_CHARACTERS = 64
"""Characters of a text that are tokenized, per token that is embedded; 4 is usual."""
MAX_CPU_SECONDS = 10
"""CPU time for building a model without weights and for importing its code; 0.3 s is usual."""
MAX_MEMORY = 512 << 20
"""Bytes of memory for the same; 8 MiB are usual."""
MAX_SECONDS = 120
"""Time for the same."""
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Arguments with which transformers runs no code from a folder and downloads nothing."""
TRIAL_WORD = "a "
"""Word that is repeated maxTokens times to make a text of maximum length for a trial."""


class Embedder:
    """An embedding model.

    Runs one forward pass at a time, so that memory usage is independent of the number of calls.
    Vectors are float32 [N, dimension]; vectors of equal texts may differ slightly between batches.
    """

    def __init__(self, spec: EmbeddingModel) -> None:
        """Load the model. Raises CorpusError if it cannot embed a text of maxTokens."""
        self._spec = spec
        self._lock = threading.Lock()
        self._model, self._tokenizer = _load(Path(spec.path))
        self._max_tokens = _max_tokens(spec, self._tokenizer)
        pad = self._tokenizer.pad_token_id
        self._pad: int = 0 if pad is None else pad
        try:
            self._require_known_tokens()
            trial = self._embed([TRIAL_WORD * self._max_tokens])
        except CorpusError:
            raise
        except Exception as error:  # models that do not fit their settings raise any type
            raise CorpusError(
                f"{spec.path}: cannot embed {self._max_tokens} tokens ({_line(error)}); "
                "lower embedding.maxTokens to the model's context length"
            ) from error
        self.dimension: int = trial.shape[1]

    def passages(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of passages, each embedded with the passage prefix."""
        return self._embed_foreign([self._spec.passage_prefix + text for text in texts])

    def queries(self, texts: Sequence[str]) -> np.ndarray:
        """Return the vectors of queries, each embedded with the query prefix."""
        return self._embed_foreign([self._spec.query_prefix + text for text in texts])

    def normalized(self, vectors: np.ndarray) -> np.ndarray:
        """Return precomputed vectors [N, D], normalized if this embedder normalizes."""
        if not self._spec.normalize:
            return vectors
        exact = vectors.astype(np.float32).astype(np.float64)  # squares need twice the range
        lengths = np.linalg.norm(exact, axis=1, keepdims=True)
        scaled: np.ndarray = exact / np.maximum(lengths, np.finfo(np.float64).tiny)
        return scaled.astype(np.float32)

    def _require_known_tokens(self) -> None:
        """Raise CorpusError if the tokenizer has tokens without a row in the embedding."""
        rows = len(self._model.get_input_embeddings().weight)
        last = max([*self._tokenizer.get_vocab().values(), *self._tokens(TRIAL_WORD), self._pad])
        if last >= rows:
            raise CorpusError(
                f"{self._spec.path}/tokenizer.json: token {last:,} is beyond the embedding of "
                f"{rows:,} rows; use the tokenizer of the model"
            )

    def _embed_foreign(self, texts: Sequence[str]) -> np.ndarray:
        """Embed any texts. Raises CorpusError if the tokenizer or the model fails on one."""
        try:
            return self._embed(texts)
        except BaseException as error:  # tokenizers raise plain exceptions, or panic
            if not is_failure(error):
                raise
            raise CorpusError(
                f"{self._spec.path}: cannot embed a text ({_line(error)}); use another model"
            ) from error

    def _embed(self, texts: Sequence[str]) -> np.ndarray:
        if not texts:
            return np.empty((0, self.dimension), np.float32)
        rows = [self._tokens(text) or [self._pad] for text in texts]
        # Sorted by length to minimize padding.
        order = sorted(range(len(rows)), key=lambda i: (len(rows[i]), i))
        vectors: np.ndarray | None = None
        start = 0
        while start < len(order):
            end = start + 1
            while (
                end < len(order) and (end + 1 - start) * len(rows[order[end]]) <= MAX_BATCH_TOKENS
            ):
                end += 1
            batch = order[start:end]
            pooled = self._forward([rows[i] for i in batch])
            if vectors is None:
                vectors = np.empty((len(rows), pooled.shape[1]), np.float32)
            vectors[batch] = pooled
            start = end
        assert vectors is not None
        return vectors

    def _tokens(self, text: str) -> list[int]:
        """Return the first `max_tokens` tokens; the tokenizer needs memory for the whole text."""
        start = text[: self._max_tokens * MAX_TOKEN_CHARACTERS]
        ids: list[int] = self._tokenizer(
            start, truncation=True, max_length=self._max_tokens, verbose=False
        )["input_ids"]
        return ids

    def _forward(self, rows: Sequence[list[int]]) -> np.ndarray:
        longest = max(map(len, rows))
        ids = torch.full((len(rows), longest), self._pad)  # [B, L]
        mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for number, row in enumerate(rows):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
        with self._lock, torch.inference_mode():
            states = self._model(input_ids=ids, attention_mask=mask).last_hidden_state  # [B, L, D]
            pooled = pool(states.float(), mask, self._spec.pooling)
            if self._spec.normalize:
                pooled = torch.nn.functional.normalize(pooled, dim=-1)
        vectors: np.ndarray = pooled.numpy()
        return vectors


def _max_tokens(spec: EmbeddingModel, tokenizer: Any) -> int:
    """Return the length of a text. Raises CorpusError if only special tokens would remain."""
    limit, special = tokenizer.model_max_length, tokenizer.num_special_tokens_to_add()
    if type(limit) not in (int, float) or not limit > special:  # not NaN either
        raise CorpusError(
            f"{spec.path}/tokenizer_config.json: model_max_length is {limit!r:.40} instead of a "
            f"number above {special}; correct it"
        )
    return min(spec.max_tokens, int(min(limit, 2**31)))


def pool(states: torch.Tensor, mask: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return vectors [B, D] for `states` [B, L, D] and `mask` [B, L], padded on the right."""
    match pooling:
        case Pooling.MEAN:
            weights = mask.unsqueeze(-1).to(states.dtype)
            return (states * weights).sum(1) / weights.sum(1)
        case Pooling.CLS:
            return states[:, 0]
        case Pooling.LAST:
            return states[torch.arange(len(states)), mask.sum(1) - 1]


def _load(path: Path) -> tuple[Any, Any]:
    try:
        require_own_weights(path)
        _require_model(path)
        model, loaded = AutoModel.from_pretrained(
            path, dtype=torch.float32, output_loading_info=True, **_LOCAL
        )
        tokenizer = load_tokenizer(path)
    except CorpusError:
        raise
    except UnsafeModel as error:
        raise CorpusError(str(error)) from error
    except MemoryError as error:
        raise CorpusError(
            f"{path}: the embedding model does not fit into memory; give the retriever more "
            "memory, or use another model"
        ) from error
    except BaseException as error:  # transformers raises any type; a panic is no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        raise CorpusError(_load_problem(path, error)) from error
    missing = sorted(map(str, {*loaded["missing_keys"], *loaded["mismatched_keys"]}))
    # The pooler is not used, and many embedding models are saved without it.
    if missing := [name for name in missing if not name.startswith("pooler.")]:
        raise CorpusError(
            f"{path}: {len(missing)} tensors of the model are missing, such as {missing[0]}; use a "
            "folder written by save_pretrained()"
        )
    return model.eval(), tokenizer


def _require_model(path: Path) -> None:
    """Raise CorpusError unless a child process can build the model of config.json within limits.

    Many fields of config.json repeat something without limit.
    """
    try:
        problem = forked_problem(
            partial(_model_problem, path),
            cpu_seconds=MAX_CPU_SECONDS,
            memory=MAX_MEMORY,
            seconds=MAX_SECONDS,
        )
    except TrialFailed as error:
        is_killed = isinstance(error, TrialKilled)
        remedy = "give the retriever more memory" if is_killed else "copy the file again"
        raise CorpusError(
            f"{path}/config.json: transformers {error} while it builds the model; {remedy}, or use "
            "another model"
        ) from error
    if problem:
        raise CorpusError(problem)


def _model_problem(path: Path) -> str:
    """Return why the model of config.json cannot be used with the folder's weights, or ""."""
    torch.set_num_threads(1)  # a forked process does not have the threads of its parent
    try:
        config = AutoConfig.from_pretrained(path, **_LOCAL)
        if config.is_encoder_decoder:
            return (
                f"{path}: encoder-decoder models are not supported; use an encoder-only or "
                "decoder-only model"
            )
        return _weights_problem(path, config)
    except UnsafeModel as error:
        return str(error)
    except MemoryError:
        raise
    except Exception as error:  # transformers raises any type
        return _load_problem(path, error)


def _weights_problem(path: Path, config: Any) -> str:
    """Return the problem if config.json specifies more parameters than the files can contain.

    transformers would initialize them. A parameter has at least one byte. Raises UnsafeModel if
    they are too many tensors.
    """
    with limited_tensors(register_hook, path), torch.device("meta"):
        parameters = AutoModel.from_config(config, trust_remote_code=False).num_parameters()
    stored = sum(file.stat().st_size for file in loaded_files(path) if is_weight_file(file))
    if parameters <= stored:
        return ""
    return (
        f"{path}: config.json specifies {parameters:,} parameters, but the weights have "
        f"{stored:,} bytes; copy the folder again"
    )


def _load_problem(path: Path, error: BaseException) -> str:
    return (
        f"{path}: cannot load the embedding model ({_line(error)}); use a folder written by "
        "save_pretrained(), with a tokenizer"
    )


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
