"""Load the index of a managed retriever."""

from collections.abc import Callable, Sequence
from pathlib import Path

from raggrpo_api.spec.retrieval import IndexKind, ManagedRetriever

from .corpus import CorpusError, Passage, load_corpus
from .index import MIN_BYTES_PER_WORD, MIN_MAX_WORDS, Bm25Index, Index, TooManyWords

Report = Callable[[str], None]
"""Function that receives a description of the current activity, which /healthz reports."""


def load_index(spec: ManagedRetriever, report: Report = lambda _: None) -> Index:
    """Load or build the index of a corpus; `report` gets each activity. Raises CorpusError."""
    report(f"loading {spec.corpus}")
    passages = load_corpus(Path(spec.corpus))
    try:
        return _index(passages, spec, report)
    except MemoryError as error:  # of Python, or of faiss
        raise CorpusError(
            f"{spec.corpus}: the index of {len(passages):,} passages does not fit into memory; "
            "increase the memory, or use a smaller corpus"
        ) from error


def _index(passages: Sequence[Passage], spec: ManagedRetriever, report: Report) -> Index:
    if not spec.embeds:
        return _bm25_index(passages, spec)
    if spec.embedding is None or not spec.index_path:
        missing = "index path" if spec.embedding else "embedding model"
        raise CorpusError(f"index {spec.index} requires an {missing}, which is not specified")
    # Imported late: BM25 does not need torch, which takes seconds and memory.
    from .dense import DenseIndex, HybridIndex
    from .embedding import Embedder
    from .index_build import load_or_build_vectors

    report(f"loading {spec.embedding.path}")
    embedder = Embedder(spec.embedding)
    dense = DenseIndex(passages, load_or_build_vectors(passages, spec, embedder, report), embedder)
    return (
        dense if spec.index is IndexKind.DENSE else HybridIndex(_bm25_index(passages, spec), dense)
    )


def _bm25_index(passages: Sequence[Passage], spec: ManagedRetriever) -> Bm25Index:
    try:
        return Bm25Index(passages)
    except TooManyWords as error:
        raise CorpusError(
            f"{spec.corpus}: its {len(passages):,} passages have too many different words for a "
            f"BM25 index (limit {MIN_MAX_WORDS:,} + 1 per {MIN_BYTES_PER_WORD} bytes of text); "
            "remove passages that are not text, or use index: Dense"
        ) from error
