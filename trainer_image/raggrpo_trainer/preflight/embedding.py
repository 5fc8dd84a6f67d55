"""Check EmbeddingReadable: embedding models and corpora of managed retrievers.

Must not read tensors or embed text; the retriever does both, before a GPU is allocated.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.data_files import DataFormat, data_format
from raggrpo_api.foreign_files import UnsuitableFile, open_regular, require_own_file
from raggrpo_api.foreign_files import read_json as read_any_json
from raggrpo_api.limits import MAX_MODEL_JSON_BYTES, MAX_ROW_BYTES
from raggrpo_api.model_folder import UnsafeModel, require_own_weights
from raggrpo_api.parquet_footer import parquet_metadata
from raggrpo_api.spec.retrieval import EmbeddingModel, Pooling
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_trainer.data.file_format import LFS_POINTER, LFS_REMEDY, is_lfs_pointer
from raggrpo_trainer.data.tokenizer_process import load_own_tokenizer

from .finding import Finding, finding_for, not_evaluated
from .model import tokenizer_problem
from .weights import Unreadable, count_parameters, read_json, weight_shapes

POOLING_FILE = "1_Pooling/config.json"
"""Pooling configuration in the format of sentence-transformers."""
POOLING_FLAGS = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
}
MODULES_FILE = "modules.json"
KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})
MAX_DIMENSION = 200_000
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class EmbeddingCheck:
    """The finding, the total number of passages, and the largest model size and dimension."""

    finding: Finding
    passages: int
    parameters: int
    dimension: int


def check_embeddings(config: TrainerConfig) -> EmbeddingCheck:
    """Check all models and count all corpora, so that all problems are reported at once."""
    problems: list[str] = []
    evidence: list[str] = []
    passages = parameters = dimension = 0
    for number, endpoint in enumerate(config.retrieval.endpoints):
        managed = endpoint.managed
        if managed is None:
            continue
        place = f"retrieval.endpoints[{number}].managed"
        try:
            count = count_passages(Path(managed.corpus))
        except Unreadable as error:
            problems.append(f"{place}.corpus: {error}")
            count = 0
        passages += count
        if not managed.embeds or managed.embedding is None:
            continue
        model_problems = list(_model_problems(managed.embedding, place))
        model_parameters = model_dimension = 0
        if not model_problems:
            model_parameters, model_dimension = _model_size(managed.embedding)
            evidence.append(
                f"{endpoint.name}: {model_parameters:,} parameters, {count:,} passages, "
                f"dimension {model_dimension}"
            )
            model_problems += _vector_problems(Path(managed.vectors), place, model_dimension)
        problems += model_problems
        parameters = max(parameters, model_parameters)
        dimension = max(dimension, model_dimension)
    finding = finding_for(CheckId.EMBEDDING_READABLE, problems, "; ".join(evidence))
    if not problems and not evidence:
        finding = not_evaluated(CheckId.EMBEDDING_READABLE, "no managed retriever uses embeddings")
    return EmbeddingCheck(finding, passages, parameters, dimension)


def count_passages(corpus: Path) -> int:
    """Return the number of lines or rows of a corpus; 0 if missing, as check Paths reports."""
    if not os.path.exists(corpus):
        return 0
    try:
        require_own_file(corpus)
        if is_lfs_pointer(corpus):
            raise Unreadable(f"{corpus} {LFS_POINTER}; {LFS_REMEDY}")
        if data_format(corpus) is DataFormat.PARQUET:
            return int(parquet_metadata(corpus, pq.read_metadata).num_rows)
        with open_regular(corpus) as file:
            return _count_lines(file)
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise Unreadable(f"{corpus} cannot be read ({reason}): write the file again") from error


def _count_lines(file: BinaryIO) -> int:
    """Return the number of lines. Raises UnsuitableFile at a line that no row can have."""
    lines = length = 0
    while block := file.read(_BLOCK):
        lines += block.count(b"\n")
        end = block.rfind(b"\n")
        length = len(block) - end - 1 if end >= 0 else length + len(block)
        if length > MAX_ROW_BYTES:
            raise UnsuitableFile(f"line {lines + 1} has more than {MAX_ROW_BYTES:,} bytes")
    return lines + (length > 0)


def _model_problems(embedding: EmbeddingModel, place: str) -> Iterator[str]:
    path = Path(embedding.path)
    place = f"{place}.embedding"
    if not path.is_dir():
        yield f"{place}.path: {path} is not a folder: use the folder of a Hugging Face model"
        return
    try:
        require_own_weights(path)
    except UnsafeModel as error:
        yield f"{place}.path: {error}"
        return
    try:
        if read_json(path / "config.json").get("is_encoder_decoder"):
            problem = f"{path} is an encoder-decoder model"
            yield f"{place}.path: {problem}: use an encoder-only or decoder-only model"
        _model_size(embedding)
    except Unreadable as error:
        yield f"{place}.path: {error}"
    try:
        load_own_tokenizer(path)
    except UnsafeModel as error:
        yield f"{place}.path: {error}"
    except Exception as error:  # tokenizers raise exceptions of any type
        yield f"{place}.path: {tokenizer_problem(path, error)}"
    try:
        if (path / POOLING_FILE).is_file():
            yield from _pooling_problems(embedding, read_json(path / POOLING_FILE), place)
        if modules := _other_modules(path / MODULES_FILE):
            problem = f"{path}/{MODULES_FILE} lists {modules}"
            yield f"{place}.path: {problem}, which the retriever does not support"
    except Unreadable as error:
        yield f"{place}.path: {error}"


def _pooling_problems(
    embedding: EmbeddingModel, declared: dict[str, Any], place: str
) -> Iterator[str]:
    """Yield a problem if the model folder specifies a different pooling than the job."""
    flags = [name for name, value in declared.items() if name.startswith("pooling_mode_") and value]
    if not flags:
        return
    poolings = [POOLING_FLAGS.get(flag) for flag in flags]
    source = f"{embedding.path}/{POOLING_FILE}"
    if len(poolings) > 1 or poolings[0] is None:
        yield f"{place}.path: {source} enables {', '.join(flags)}, which is not supported"
    elif poolings[0] is not embedding.pooling:
        problem = f"{embedding.pooling} differs from {poolings[0]} in {source}"
        yield f"{place}.pooling: {problem}: set pooling: {poolings[0]}"


def _other_modules(file: Path) -> str:
    """Return the modules of sentence-transformers that are not supported. Raises Unreadable."""
    if not file.is_file():
        return ""
    try:
        modules = read_any_json(file, MAX_MODEL_JSON_BYTES)
        kinds = [str(module["type"]).rpartition(".")[2] for module in modules]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"{file} is not in sentence-transformers format: {error}") from error
    return ", ".join(sorted(set(kinds) - KNOWN_MODULES))


def _model_size(embedding: EmbeddingModel) -> tuple[int, int]:
    """Return the model's number of parameters and its dimension. Raises Unreadable."""
    path = Path(embedding.path)
    config = read_json(path / "config.json")
    text_config = config.get("text_config")
    config = text_config if isinstance(text_config, dict) else config
    size = next((config[key] for key in ("hidden_size", "d_model", "dim") if key in config), None)
    if type(size) is not int or not 0 < size <= MAX_DIMENSION:
        limit = f"up to {MAX_DIMENSION:,}"
        raise Unreadable(f"{path}/config.json has no hidden_size {limit}: use a text model")
    return count_parameters(weight_shapes(path)), size


def _vector_problems(file: Path, place: str, dimension: int) -> Iterator[str]:
    if not file.name or not file.exists():  # not specified, or missing, which check Paths reports
        return
    try:
        require_own_file(file)
        if is_lfs_pointer(file):
            yield f"{place}.vectors: {file} {LFS_POINTER}; {LFS_REMEDY}"
            return
        shape = np.lib.format.open_memmap(file, mode="r").shape  # type: ignore[no-untyped-call]
    except Exception as error:  # numpy parses the header as Python, with errors of any type
        yield f"{place}.vectors: {file} is not a .npy file ({error}): write it with numpy.save"
        return
    if len(shape) != 2 or shape[1] != dimension:
        yield (
            f"{place}.vectors: {file} has shape {list(shape)}, but the dimension of the model "
            f"is {dimension}: embed the corpus with this model"
        )


def corpus_facts(check: EmbeddingCheck) -> dict[str, int]:
    """Return the fields of Facts that this check provides."""
    return {
        "corpus_passages": check.passages,
        "embedding_parameters": check.parameters,
        "embedding_dimension": check.dimension,
    }
