"""Search by embedding, and its fusion with search by words."""

from collections.abc import Sequence

import numpy as np

from .corpus import Passage
from .embedding import Embedder
from .index import Bm25Index, Hit
from .vectors import VectorIndex

RANK_CONSTANT = 60
"""k of reciprocal rank fusion, as in its paper."""
CANDIDATES = 100
"""Passages that each of two fused searches proposes, or more where more are asked for."""


class DenseIndex:
    """Search by inner product of embeddings.

    Passages of equal score stand in corpus order; which of those that tie for the last place is
    found is up to faiss.
    """

    def __init__(
        self, passages: Sequence[Passage], vectors: VectorIndex, embedder: Embedder
    ) -> None:
        """`vectors` are those of `passages`, in their order, by the model of `embedder`."""
        self._passages, self._vectors, self._embedder = passages, vectors, embedder

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Return each query's `top_k` passages; none for a blank query, which asks nothing."""
        asked = [number for number, query in enumerate(queries) if query.strip()]
        found: list[list[Hit]] = [[] for _ in queries]
        if not asked:
            return found
        embedded = self._embedder.queries([queries[number] for number in asked])
        scores, positions = self._vectors.search(embedded, top_k)  # [Q, K]
        for number, row, at in zip(asked, scores, positions, strict=True):
            found[number] = self._hits(row, at)
        return found

    def _hits(self, scores: np.ndarray, positions: np.ndarray) -> list[Hit]:
        pairs = [(float(s), int(at)) for s, at in zip(scores, positions, strict=True) if at >= 0]
        pairs.sort(key=lambda pair: (-pair[0], pair[1]))
        return [Hit(at, self._passages[at], score) for score, at in pairs]


class HybridIndex:
    """Reciprocal rank fusion of search by words and by embedding.

    A passage's score is the sum of 1 / (60 + its rank) over the searches that found it: Cormack,
    Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
    methods", 2009. It needs no common scale of BM25's scores and of inner products.
    """

    def __init__(self, words: Bm25Index, dense: DenseIndex) -> None:
        self._words, self._dense = words, dense

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Return each query's `top_k` passages; ties are broken by corpus order."""
        depth = max(top_k, CANDIDATES)
        by_words = self._words.search(queries, depth)
        by_meaning = self._dense.search(queries, depth)
        return [fused(lists)[:top_k] for lists in zip(by_words, by_meaning, strict=True)]


def fused(rankings: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Return all passages of some rankings, by the sum of their reciprocal ranks."""
    scores: dict[int, float] = {}
    passages: dict[int, Passage] = {}
    for hits in rankings:
        for rank, hit in enumerate(hits, start=1):
            scores[hit.position] = scores.get(hit.position, 0.0) + 1 / (RANK_CONSTANT + rank)
            passages[hit.position] = hit.passage
    order = sorted(scores, key=lambda position: (-scores[position], position))
    return [Hit(position, passages[position], scores[position]) for position in order]
