"""Check EmbeddingReadable: embedding models and corpora of managed retrievers.

Must not read any tensors or embed anything; the retriever itself does, before any GPU is taken.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.spec.retrieval import EmbeddingModel, Pooling
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.preflight import CheckId

from .finding import Finding, finding_for, not_evaluated
from .model import load_folder_tokenizer
from .weights import Unreadable, count_parameters, read_json, weight_shapes

POOLING_FILE = "1_Pooling/config.json"
"""Where sentence-transformers writes how a model pools."""
POOLING_FLAGS = {
    "pooling_mode_mean_tokens": Pooling.MEAN,
    "pooling_mode_cls_token": Pooling.CLS,
    "pooling_mode_lasttoken": Pooling.LAST,
}
MODULES_FILE = "modules.json"
KNOWN_MODULES = frozenset({"Transformer", "Pooling", "Normalize"})
_BLOCK = 2**20


@dataclass(frozen=True, slots=True)
class Embeddings:
    """What was found of all managed retrievers."""

    finding: Finding
    passages: int
    parameters: int
    dimension: int


def check_embeddings(config: TrainerConfig) -> Embeddings:
    """Check every model and count every corpus, so that all problems are reported at once."""
    problems: list[str] = []
    told: list[str] = []
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
        of_model = list(_problems(managed.embedding, place))
        shape = 0, 0
        if not of_model:
            shape = _shape(managed.embedding)
            told.append(f"{endpoint.name}: {shape[0]:,} parameters, {count:,} × {shape[1]}")
            of_model += _problems_of_vectors(Path(managed.vectors), place, shape[1])
        problems += of_model
        parameters, dimension = max(parameters, shape[0]), max(dimension, shape[1])
    finding = finding_for(CheckId.EMBEDDING_READABLE, problems, "; ".join(told))
    if not problems and not told:
        finding = not_evaluated(CheckId.EMBEDDING_READABLE, "no managed retriever embeds")
    return Embeddings(finding, passages, parameters, dimension)


def count_passages(corpus: Path) -> int:
    """Return the lines or rows of a corpus; 0 if it is not there, which check Paths tells."""
    if not corpus.is_file():
        return 0
    try:
        if corpus.suffix == ".parquet":
            with pq.ParquetFile(corpus) as file:
                return int(file.metadata.num_rows)
        with corpus.open("rb") as file:
            lines = 0
            last = b"\n"
            while block := file.read(_BLOCK):
                lines += block.count(b"\n")
                last = block
            return lines + (not last.endswith(b"\n"))
    except (OSError, pa.ArrowException) as error:
        said = " ".join(str(error).split())
        raise Unreadable(f"{corpus} cannot be read ({said}): write it again") from error


def _problems(embedding: EmbeddingModel, place: str) -> Iterator[str]:
    path, place = Path(embedding.path), f"{place}.embedding"
    if not path.is_dir():
        yield f"{place}.path: {path} is no folder, give a Hugging Face model's"
        return
    try:
        if read_json(path / "config.json").get("is_encoder_decoder"):
            yield f"{place}.path: {path} has encoder and decoder, give a model with one of them"
        _shape(embedding)
    except Unreadable as error:
        yield f"{place}.path: {error}"
    try:
        load_folder_tokenizer(path)
    except Exception as error:  # tokenizers raise whatever they like
        yield f"{place}.path: the tokenizer in {path} cannot be loaded: {error}"
    try:
        if (path / POOLING_FILE).is_file():
            yield from _problems_of_pooling(embedding, read_json(path / POOLING_FILE), place)
        if more := _other_modules(path / MODULES_FILE):
            yield f"{place}.path: {path}/{MODULES_FILE} has {more}, which the retriever leaves out"
    except Unreadable as error:
        yield f"{place}.path: {error}"


def _problems_of_pooling(
    embedding: EmbeddingModel, declared: dict[str, Any], place: str
) -> Iterator[str]:
    """Yield an objection if the model's own folder says that it pools in another way."""
    flags = [name for name, value in declared.items() if name.startswith("pooling_mode_") and value]
    if not flags:
        return
    ways = [POOLING_FLAGS.get(flag) for flag in flags]
    source = f"{embedding.path}/{POOLING_FILE}"
    if len(ways) > 1 or ways[0] is None:
        yield f"{place}.path: {source} says {', '.join(flags)}, which no pooling does"
    elif ways[0] is not embedding.pooling:
        said = f"{source} says {ways[0]}, the job {embedding.pooling}"
        yield f"{place}.pooling: {said}: pooling: {ways[0]}"


def _other_modules(file: Path) -> str:
    """Return what sentence-transformers would compute besides what we do. Raises Unreadable."""
    if not file.is_file():
        return ""
    try:
        kinds = [str(module["type"]).rpartition(".")[2] for module in json.loads(file.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise Unreadable(f"{file} is not as sentence-transformers writes it: {error}") from error
    return ", ".join(sorted(set(kinds) - KNOWN_MODULES))


def _shape(embedding: EmbeddingModel) -> tuple[int, int]:
    """Return parameters and dimension. Raises Unreadable."""
    path = Path(embedding.path)
    config = read_json(path / "config.json")
    config = config.get("text_config", config)
    size = next((config[key] for key in ("hidden_size", "d_model", "dim") if key in config), None)
    if not isinstance(size, int):
        raise Unreadable(f"{path}/config.json has no hidden_size: it is no text model's")
    return count_parameters(weight_shapes(path)), size


def _problems_of_vectors(file: Path, place: str, dimension: int) -> Iterator[str]:
    if not file.is_file():  # none given, or check Paths tells that it is not there
        return
    try:
        shape = np.load(file, mmap_mode="r", allow_pickle=False).shape
    except (OSError, ValueError, EOFError) as error:
        yield f"{place}.vectors: {file} is no .npy file ({error}): write it with numpy.save"
        return
    if len(shape) != 2 or shape[1] != dimension:
        yield (
            f"{place}.vectors: {file} has shape {list(shape)}, the model's vectors have "
            f"{dimension} numbers: embed the corpus with that model"
        )


def corpus_facts(found: Embeddings) -> dict[str, int]:
    """Return the fields of Facts that these checks know."""
    return {
        "corpus_passages": found.passages,
        "embedding_parameters": found.parameters,
        "embedding_dimension": found.dimension,
    }
