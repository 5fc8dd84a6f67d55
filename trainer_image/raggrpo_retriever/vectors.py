"""Nearest neighbor search by inner product with faiss, exact or by HNSW.

HNSW: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", 2016.
"""

from collections.abc import Iterable
from pathlib import Path

import faiss
import numpy as np

from raggrpo_api.foreign_files import require_own_file

HNSW_M = 32
"""M of HNSW: maximum number of links of a passage per layer; twice M on the lowest layer."""
EF_CONSTRUCTION = 200
EF_SEARCH = 256
"""efConstruction and efSearch of HNSW; `tests/bench/retrieval/dense_search.py` measures recall."""
FILE = "vectors.faiss"

Neighbors = tuple[np.ndarray, np.ndarray]
"""Scores and positions, [Q, K] each, best first; position -1 means no neighbor."""


class VectorIndex:
    """A faiss index of float32 vectors in corpus order."""

    def __init__(self, index: faiss.Index) -> None:
        self._index = index

    @classmethod
    def of(cls, blocks: Iterable[np.ndarray], dimension: int, *, exact: bool) -> "VectorIndex":
        """Return an index of the vectors in `blocks`, each float32 [n, dimension]."""
        if exact:
            index: faiss.Index = faiss.IndexFlatIP(dimension)
        else:
            index = faiss.IndexHNSWFlat(dimension, HNSW_M, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = EF_CONSTRUCTION
            index.hnsw.efSearch = EF_SEARCH
        for block in blocks:
            index.add(np.ascontiguousarray(block, np.float32))
        return cls(index)

    @classmethod
    def read(cls, folder: Path) -> "VectorIndex":
        """Read an index written by `write`. Raises RuntimeError or OSError."""
        require_own_file(folder / FILE)
        return cls(faiss.read_index(str(folder / FILE)))

    def write(self, folder: Path) -> None:
        """Write the index to a folder. Raises RuntimeError, for example on a full disk."""
        faiss.write_index(self._index, str(folder / FILE))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Dimension of the vectors."""
        return int(self._index.d)

    def search(self, queries: np.ndarray, top_k: int) -> Neighbors:
        """Return the `top_k` nearest passages for each row of `queries`, float32 [Q, dimension]."""
        scores, positions = self._index.search(queries, min(top_k, len(self)))
        return scores, positions
