"""Dense retrieval by embeddings, and hybrid retrieval with BM25."""

from collections.abc import Sequence

import numpy as np

from .corpus import Passage
from .embedding import Embedder
from .index import Bm25Index, Hit
from .vectors import VectorIndex

RANK_CONSTANT = 60
"""k of reciprocal rank fusion; the value in the paper cited in HybridIndex."""
MIN_CANDIDATES = 100
"""Minimum number of hits to request from each search for the fusion."""


class DenseIndex:
    """Search by inner product of embeddings.

    Hits of equal score are in corpus order; faiss chooses among hits that tie for the last place.
    """

    def __init__(
        self, passages: Sequence[Passage], vectors: VectorIndex, embedder: Embedder
    ) -> None:
        """`vectors` indexes the embeddings of `passages` by `embedder`, in the same order."""
        self._passages, self._vectors, self._embedder = passages, vectors, embedder

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Return the `top_k` best hits of each query; a blank query has no hits."""
        indices = [i for i, query in enumerate(queries) if query.strip()]
        hits: list[list[Hit]] = [[] for _ in queries]
        if not indices:
            return hits
        embedded = self._embedder.queries([queries[i] for i in indices])
        scores, positions = self._vectors.search(embedded, top_k)  # [Q, K]
        for i, row_scores, row_positions in zip(indices, scores, positions, strict=True):
            hits[i] = self._hits(row_scores, row_positions)
        return hits

    def _hits(self, scores: np.ndarray, positions: np.ndarray) -> list[Hit]:
        pairs = [(float(s), int(p)) for s, p in zip(scores, positions, strict=True) if p >= 0]
        pairs.sort(key=lambda pair: (-pair[0], pair[1]))
        return [Hit(position, self._passages[position], score) for score, position in pairs]


class HybridIndex:
    """Reciprocal rank fusion of BM25 and dense retrieval.

    The score of a passage is the sum of 1 / (60 + rank) over the rankings that contain it: Cormack,
    Clarke and Büttcher, "Reciprocal rank fusion outperforms Condorcet and individual rank learning
    methods", 2009. The fusion does not require BM25 scores and inner products on a common scale.
    """

    def __init__(self, bm25: Bm25Index, dense: DenseIndex) -> None:
        self._bm25 = bm25
        self._dense = dense

    def search(self, queries: Sequence[str], top_k: int) -> list[list[Hit]]:
        """Return the `top_k` best hits of each query; ties are in corpus order."""
        depth = max(top_k, MIN_CANDIDATES)
        bm25_hits = self._bm25.search(queries, depth)
        dense_hits = self._dense.search(queries, depth)
        return [
            fuse_rankings(rankings)[:top_k] for rankings in zip(bm25_hits, dense_hits, strict=True)
        ]


def fuse_rankings(rankings: Sequence[Sequence[Hit]]) -> list[Hit]:
    """Return the passages of all rankings, sorted by the sum of their reciprocal ranks."""
    scores: dict[int, float] = {}
    passages: dict[int, Passage] = {}
    for hits in rankings:
        for rank, hit in enumerate(hits, start=1):
            scores[hit.position] = scores.get(hit.position, 0.0) + 1 / (RANK_CONSTANT + rank)
            passages[hit.position] = hit.passage
    order = sorted(scores, key=lambda position: (-scores[position], position))
    return [Hit(position, passages[position], scores[position]) for position in order]
