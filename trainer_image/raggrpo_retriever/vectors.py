"""Nearest neighbor search by inner product with faiss, exact or by HNSW.

HNSW: Malkov and Yashunin, "Efficient and robust approximate nearest neighbor search using
Hierarchical Navigable Small World graphs", 2016.
"""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

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
"""Start of an index in faiss' format: type, dimension, number of vectors, metric, and an array's
size. In exact indexes, the array has the vectors; in HNSW, it is the first array of the graph."""
_FLAT, _GRAPH = b"IxFI", b"IHNf"
"""Types of exact indexes and of HNSW, which has an exact index after its graph."""
_SIZE_BYTES = 8
_GRAPH_ITEM_BYTES = (8, 4, 4, 8, 4)
"""Bytes of an item in each array of a graph: probabilities, ends of layers, layers, offsets, links.
Each array follows its size."""
_GRAPH_END_BYTES = 20
"""Entry point, top layer, efConstruction, efSearch, and a number that is no longer used."""
_VALUE_BYTES = 4

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
        Some types take hours to read. So the types and sizes within the file are compared first.
        """
        file = folder / FILE
        require_own_file(file)
        if not _is_index(file, count, dimension, exact=exact):
            raise RuntimeError(f"{file} is not an index of this corpus")
        index: Any = faiss.read_index(str(file))
        flat: Any = index if exact else faiss.downcast_index(index.storage)
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


def _is_index(file: Path, count: int, dimension: int, *, exact: bool) -> bool:
    """Return whether a file has the layout of an index that `VectorIndex.write` writes."""
    expected = (dimension, count, faiss.METRIC_INNER_PRODUCT)
    with open_regular(file) as content:
        size = os.fstat(content.fileno()).st_size
        if not exact:
            if _header(content)[:-1] != (_GRAPH, *expected):
                return False
            content.seek(_HEADER.size - _SIZE_BYTES)
            for item_bytes in _GRAPH_ITEM_BYTES:
                items = int.from_bytes(content.read(_SIZE_BYTES), "little")
                if items * item_bytes > size:
                    return False
                content.seek(items * item_bytes, os.SEEK_CUR)
            content.seek(_GRAPH_END_BYTES, os.SEEK_CUR)
        is_flat = _header(content) == (_FLAT, *expected, dimension * count)
        return is_flat and content.tell() + dimension * count * _VALUE_BYTES == size


def _header(content: BinaryIO) -> tuple[bytes | int, ...]:
    """Return the values of `_HEADER` at the position of a file; empty at its end."""
    start = content.read(_HEADER.size)
    return _HEADER.unpack(start) if len(start) == _HEADER.size else ()
