"""The vectors of a corpus: opened where they are kept, else computed and kept.

Must not search.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from raggrpo_api.spec.retrieval import ManagedRetriever

from .build_cache import kept, write_whole
from .corpus import CorpusError, Passage, load_vectors
from .embedding import Embedder
from .vectors import VectorIndex

BLOCK_PASSAGES = 2048
"""Embedded passages that are kept together, so that an interrupted build goes on from there."""
FORM = 2
"""Of what is kept. A change of it, or of how texts are embedded, makes every index anew."""
_DIGEST_BLOCK = 2**20


def load_or_build_vectors(
    passages: Sequence[Passage],
    wanted: ManagedRetriever,
    embedder: Embedder,
    report: Callable[[str], None],
) -> VectorIndex:
    """Return the index of all passages' vectors. Raises CorpusError."""
    exact = len(passages) <= wanted.hnsw_above

    def build(folder: Path, parts: Path) -> None:
        blocks: Iterable[np.ndarray]
        if wanted.vectors:
            given = _given(Path(wanted.vectors), len(passages), embedder)
            some = (given[at : at + BLOCK_PASSAGES] for at in _starts(passages))
            blocks = (embedder.normalized(block) for block in some)
        else:
            blocks = _embedded(passages, embedder, parts, report)
        VectorIndex.of(blocks, embedder.dimension, exact=exact).write(folder)

    try:
        key = index_key(wanted, exact=exact)
        vectors = VectorIndex.read(kept(Path(wanted.index_path), key, build))
    except OSError as error:
        raise CorpusError(
            f"{wanted.index_path}: the index cannot be kept there ({error.strerror or error}); "
            "give a folder on a volume that can be written"
        ) from error
    except RuntimeError as error:  # faiss: a full disk, a damaged file
        raise CorpusError(
            f"{wanted.index_path}: the index cannot be written or read "
            f"({' '.join(str(error).split())[:300]}); make room there, or delete the folder"
        ) from error
    return vectors


def index_key(wanted: ManagedRetriever, *, exact: bool) -> str:
    """Return a name for the index: a hash of corpus, model and settings, by content, not by place.

    What concerns queries alone is left out. Raises OSError.
    """
    assert wanted.embedding is not None
    model = Path(wanted.embedding.path)
    files = sorted(file for file in model.rglob("*") if file.is_file())
    parts = {
        "form": FORM,
        "exact": exact,
        "embedding": wanted.embedding.model_dump(mode="json", exclude={"path", "query_prefix"}),
        "corpus": [Path(wanted.corpus).suffix, _digest(Path(wanted.corpus))],
        "vectors": _digest(Path(wanted.vectors)) if wanted.vectors else "",
        "model": [[str(file.relative_to(model)), _digest(file)] for file in files],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _given(path: Path, count: int, embedder: Embedder) -> np.ndarray:
    vectors = load_vectors(path, count)
    if vectors.shape[1] != embedder.dimension:
        raise CorpusError(
            f"{path}: {vectors.shape[1]} numbers in a vector, the embedding model makes "
            f"{embedder.dimension}; embed the corpus with that model"
        )
    return vectors


def _embedded(
    passages: Sequence[Passage], embedder: Embedder, parts: Path, report: Callable[[str], None]
) -> Iterator[np.ndarray]:
    """Yield the vectors of all passages, [n, dimension] at a time, each computed only once."""
    for start in _starts(passages):
        some = passages[start : start + BLOCK_PASSAGES]
        file = parts / f"{start}.npy"
        vectors = _left_over(file, (len(some), embedder.dimension))
        if vectors is None:
            report(f"embedding passages: {start:,} of {len(passages):,}")
            vectors = embedder.passages([passage.contents for passage in some])
            if broken := np.flatnonzero(~np.isfinite(vectors).all(axis=1)).tolist():
                raise CorpusError(
                    f"the vector of passage {some[broken[0]].id!r} is not finite; check the "
                    "embedding model"
                )
            write_whole(file, _saving(vectors))
        yield vectors


def _left_over(file: Path, shape: tuple[int, int]) -> np.ndarray | None:
    """Return what an interrupted build left, if it did and it is whole."""
    try:
        vectors: np.ndarray = np.load(file, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return vectors if vectors.shape == shape and vectors.dtype == np.float32 else None


def _saving(vectors: np.ndarray) -> Callable[[Path], None]:
    def save(path: Path) -> None:
        with path.open("wb") as file:  # given a name, numpy would add a suffix
            np.save(file, vectors)

    return save


def _starts(passages: Sequence[Passage]) -> range:
    return range(0, len(passages), BLOCK_PASSAGES)


def _digest(path: Path) -> str:
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_DIGEST_BLOCK):
            found.update(block)
    return found.hexdigest()
