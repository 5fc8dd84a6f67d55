"""From what was asked for to an index that can be served."""

from collections.abc import Callable
from pathlib import Path

from raggrpo_api.spec.retrieval import IndexKind, ManagedRetriever

from .corpus import CorpusError, load_corpus
from .index import Bm25Index, Index

Report = Callable[[str], None]
"""Is told what is being done."""


def load_index(wanted: ManagedRetriever, report: Report = lambda _: None) -> Index:
    """Return the index over the corpus. Raises CorpusError."""
    report(f"loading {wanted.corpus}")
    passages = load_corpus(Path(wanted.corpus))
    if not wanted.embeds:
        return Bm25Index(passages)
    if wanted.embedding is None or not wanted.index_path:
        missing = "index path" if wanted.embedding else "embedding model"
        raise CorpusError(f"index {wanted.index} has no {missing}; give one")
    # Imported late: torch takes seconds and memory that search by words does not need.
    from .dense import DenseIndex, HybridIndex
    from .embedding import Embedder
    from .index_build import load_or_build_vectors

    report(f"loading {wanted.embedding.path}")
    embedder = Embedder(wanted.embedding)
    dense = DenseIndex(
        passages, load_or_build_vectors(passages, wanted, embedder, report), embedder
    )
    return dense if wanted.index is IndexKind.DENSE else HybridIndex(Bm25Index(passages), dense)
