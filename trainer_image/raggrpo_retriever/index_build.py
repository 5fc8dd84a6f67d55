"""Load the vector index of a corpus from the cache, or build and cache it. Must not search."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from raggrpo_api.foreign_files import open_regular, require_own_file
from raggrpo_api.model_folder import loaded_files
from raggrpo_api.spec.retrieval import ManagedRetriever

from .build_cache import get_or_build, write_atomically
from .corpus import CorpusError, Passage, load_vectors, open_vectors
from .embedding import Embedder
from .vectors import VectorIndex

BLOCK_PASSAGES = 2048
"""Number of passages per block; an interrupted build resumes after the last saved block."""
FORMAT_VERSION = 2
"""Part of the cache key. Increment it when the format or the embedding of texts changes."""


def load_or_build_vectors(
    passages: Sequence[Passage],
    spec: ManagedRetriever,
    embedder: Embedder,
    report: Callable[[str], None],
) -> VectorIndex:
    """Load the vector index of all passages from the cache, or build it. Raises CorpusError."""
    exact = len(passages) <= spec.hnsw_above

    def build(folder: Path, partial: Path) -> None:
        blocks: Iterable[np.ndarray]
        if spec.vectors:
            vectors = load_vectors(Path(spec.vectors), len(passages), embedder.dimension)
            raw_blocks = (vectors[i : i + BLOCK_PASSAGES] for i in _starts(passages))
            blocks = (embedder.normalized(block) for block in raw_blocks)
        else:
            blocks = _embedded_blocks(passages, embedder, partial, report)
        VectorIndex.of(blocks, embedder.dimension, exact=exact).write(folder)

    try:
        key = index_key(spec, exact=exact)
        folder = get_or_build(Path(spec.index_path), key, build)
        return VectorIndex.read(folder, len(passages), embedder.dimension, exact=exact)
    except OSError as error:
        raise CorpusError(
            f"{spec.index_path}: cannot write the index ({error.strerror or error}); "
            "set indexPath to a folder on a writable volume"
        ) from error
    except RuntimeError as error:  # faiss raises it for a full disk or a damaged file
        raise CorpusError(
            f"{spec.index_path}: cannot write or read the index "
            f"({' '.join(str(error).split())[:300]}); free up disk space, or "
            "delete the folder to rebuild the index"
        ) from error


def index_key(spec: ManagedRetriever, *, exact: bool) -> str:
    """Return the cache key of an index: a hash of corpus, model and settings, by content.

    Settings for queries are not included. Raises OSError.
    """
    assert spec.embedding is not None
    model = Path(spec.embedding.path)
    files = sorted(loaded_files(model))
    inputs = {
        "form": FORMAT_VERSION,
        "exact": exact,
        "embedding": spec.embedding.model_dump(mode="json", exclude={"path", "query_prefix"}),
        "corpus": [Path(spec.corpus).suffix, _digest(Path(spec.corpus))],
        "vectors": _digest(Path(spec.vectors)) if spec.vectors else "",
        "model": [[str(file.relative_to(model)), _digest(file)] for file in files],
    }
    return hashlib.sha256(json.dumps(inputs, sort_keys=True).encode()).hexdigest()[:32]


def _embedded_blocks(
    passages: Sequence[Passage], embedder: Embedder, partial: Path, report: Callable[[str], None]
) -> Iterator[np.ndarray]:
    """Yield blocks of vectors, float32 [n, dimension]; blocks saved in `partial` are reused."""
    for start in _starts(passages):
        block = passages[start : start + BLOCK_PASSAGES]
        file = partial / f"{start}.npy"
        vectors = _saved_block(file, (len(block), embedder.dimension))
        if vectors is None:
            report(f"embedding passages: {start:,} of {len(passages):,}")
            vectors = embedder.passages([passage.contents for passage in block])
            if broken := np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
                raise CorpusError(
                    f"the vector of passage {block[broken[0]].id!r} contains NaN or "
                    "infinity; check the embedding model"
                )
            write_atomically(file, _npy_writer(vectors))
        yield vectors


def _saved_block(file: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Return a block saved by an interrupted build, or None if it is missing or invalid."""
    try:
        require_own_file(file)
        vectors = open_vectors(file)
    except Exception:  # numpy parses the header as Python, with errors of any type
        return None
    return vectors if vectors.shape == shape and vectors.dtype == np.float32 else None


def _npy_writer(vectors: np.ndarray) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        with path.open("wb") as file:  # numpy would add a suffix to a file name
            np.save(file, vectors)

    return save


def _starts(passages: Sequence[Passage]) -> range:
    return range(0, len(passages), BLOCK_PASSAGES)


def _digest(path: Path) -> str:
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
