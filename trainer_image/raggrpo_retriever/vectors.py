"""Nearest neighbor search by inner product with faiss, exact or by HNSW.

HNSW: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", 2016.
"""

import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import faiss
import numpy as np

from raggrpo_api.foreign_files import open_regular, require_own_file

from .index_check import has_finite_vectors, is_connected

HNSW_M = 32
"""M of HNSW: maximum number of links of a passage per layer; twice M on the lowest layer."""
EF_CONSTRUCTION = 200
EF_SEARCH = 256
"""efConstruction and efSearch of HNSW; `tests/bench/retrieval/dense_search.py` measures recall."""
FILE = "vectors.faiss"

_HEADER = struct.Struct("<4siq17xiQ")
"""Start of faiss' format: type, dimension, number of vectors, metric, and size of the vectors."""
_FLAT, _GRAPH = b"IxFI", b"IHNf"
"""Types of exact indexes and of HNSW, whose vectors follow the graph."""

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
    def read(cls, folder: Path, count: int, dimension: int, *, exact: bool) -> "VectorIndex":
        """Read an index of `count` vectors written by `write`. Raises RuntimeError or OSError.

        faiss allocates what a file specifies, opens further files that it names, and follows links.
        """
        file = folder / FILE
        require_own_file(file)
        expected = (_FLAT if exact else _GRAPH, dimension, count, faiss.METRIC_INNER_PRODUCT)
        if _header(file) != (*expected, dimension * count if exact else None):
            raise RuntimeError(f"{file} is not an index of this corpus")
        faiss.set_deserialization_vector_byte_limit(file.stat().st_size)
        try:
            index: Any = faiss.read_index(str(file), faiss.IO_FLAG_SKIP_IVF_DATA)
        except MemoryError as error:
            raise RuntimeError(f"{file} is damaged") from error
        flat = index if exact else faiss.downcast_index(index.storage)
        if type(flat) is not faiss.IndexFlatIP or (flat.ntotal, flat.d) != (count, dimension):
            raise RuntimeError(f"{file} is not an index of this corpus")
        if not has_finite_vectors(flat) or not (exact or is_connected(index, HNSW_M)):
            raise RuntimeError(f"{file} is damaged")
        if not exact:
            index.hnsw.efSearch = EF_SEARCH  # a search allocates what the file specifies
        return cls(index)

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


def _header(file: Path) -> tuple[bytes, int, int, int, int | None] | None:
    """Return type, dimension, number of vectors, metric, and the size of a flat index."""
    with open_regular(file) as content:
        start = content.read(_HEADER.size)
    if len(start) < _HEADER.size:
        return None
    kind, dimension, count, metric, size = _HEADER.unpack(start)
    return kind, dimension, count, metric, size if kind == _FLAT else None
