"""Nearest passages by inner product with faiss: exact, or HNSW's graph above a size.

HNSW: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", 2016.
"""

from collections.abc import Iterable
from pathlib import Path

import faiss
import numpy as np

LINKS = 32
"""HNSW's M. A passage has twice as many on the lowest layer."""
EF_CONSTRUCTION = 200
EF_SEARCH = 256
"""HNSW's efConstruction and efSearch; `tests/bench/retrieval/dense_search.py` measures recall."""
FILE = "vectors.faiss"

Found = tuple[np.ndarray, np.ndarray]
"""Scores and positions, [Q, K] each, best first; a position of -1 is none."""


class VectorIndex:
    """float32 vectors in the order in which they were added."""

    def __init__(self, index: faiss.Index) -> None:
        self._index = index

    @classmethod
    def of(cls, blocks: Iterable[np.ndarray], dimension: int, *, exact: bool) -> "VectorIndex":
        """Return an index of all rows of `blocks`, each [n, dimension] float32."""
        if exact:
            index: faiss.Index = faiss.IndexFlatIP(dimension)
        else:
            index = faiss.IndexHNSWFlat(dimension, LINKS, faiss.METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = EF_CONSTRUCTION
            index.hnsw.efSearch = EF_SEARCH
        for block in blocks:
            index.add(np.ascontiguousarray(block, np.float32))
        return cls(index)

    @classmethod
    def read(cls, folder: Path) -> "VectorIndex":
        """Read what `write` wrote. Raises RuntimeError if it is no such file."""
        return cls(faiss.read_index(str(folder / FILE)))

    def write(self, folder: Path) -> None:
        """Write the index into a folder. Raises RuntimeError, for example on a full disk."""
        faiss.write_index(self._index, str(folder / FILE))

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dimension(self) -> int:
        """Numbers in a vector."""
        return int(self._index.d)

    def search(self, queries: np.ndarray, top_k: int) -> Found:
        """Return the `top_k` best passages for each row of `queries`, [Q, dimension] float32."""
        scores, positions = self._index.search(queries, min(top_k, len(self)))
        return scores, positions
