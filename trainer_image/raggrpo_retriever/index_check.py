"""Check the content of a faiss index that others may have written. Must not search.

faiss checks that links are to existing vectors, but not that these have the layer of the link,
without which it reads other memory.
"""

from collections.abc import Iterator
from typing import Any

import faiss
import numpy as np

BLOCK_VALUES = 1 << 22
"""Numbers that are checked at a time, to limit memory."""


def has_finite_vectors(flat: faiss.IndexFlat) -> bool:
    """Return whether no vector contains NaN or infinity."""
    values = _view(flat.get_xb(), flat.ntotal * flat.d)
    return all(bool(np.isfinite(block).all()) for block in _blocks(values))


def is_connected(index: Any, max_links: int) -> bool:
    """Return whether a search of an HNSW index only follows links within their layers.

    `max_links` is M, which determines the number of links per layer.
    """
    graph, own = index.hnsw, faiss.IndexHNSWFlat(1, max_links)
    ends = faiss.vector_to_array(graph.cum_nneighbor_per_level)
    expected = faiss.vector_to_array(own.hnsw.cum_nneighbor_per_level)
    levels = faiss.vector_to_array(graph.levels)  # number of layers of each vector
    if not np.array_equal(ends, expected) or len(levels) != index.ntotal:
        return False
    top = graph.max_level
    if not 0 <= graph.entry_point < len(levels) or levels[graph.entry_point] != top + 1:
        return False
    links = _view(graph.neighbors.data(), graph.neighbors.size())
    offsets = faiss.vector_to_array(graph.offsets).astype(np.int64)
    return int(levels.max()) == top + 1 and all(
        bool((levels[linked[linked >= 0]] > layer).all())
        for layer in range(1, top + 1)
        for linked in _links(links, offsets[:-1][levels > layer], *ends[layer : layer + 2])
    )


def _links(links: np.ndarray, offsets: np.ndarray, start: int, end: int) -> Iterator[np.ndarray]:
    """Yield the links from `start` to `end` of the vectors whose links have these offsets."""
    for block in _blocks(offsets, end - start):
        yield links[block[:, None] + np.arange(start, end)]


def _blocks(values: np.ndarray, width: int = 1) -> Iterator[np.ndarray]:
    """Yield parts of an array, each of whose items stands for `width` numbers."""
    size = max(1, BLOCK_VALUES // width)
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _view(pointer: Any, size: int) -> np.ndarray:
    """Return numbers of faiss without copying them; the index must outlive them."""
    view: np.ndarray = faiss.rev_swig_ptr(pointer, size)
    return view
