"""HNSW compared with exact search: recall, latency, build time and memory.

    PYTHONPATH=operator:trainer_image .venv/bin/python tests/bench/retrieval/dense_search.py

Vectors are clustered, as embeddings are: independent ones have no close neighbors. Both searches
run in one process, under the same conditions.
"""

import argparse
import os
import time
from collections.abc import Callable

import numpy as np

from raggrpo_retriever.vectors import VectorIndex

MIB = 2**20


def resident() -> int:
    """Return the resident memory of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make_vectors(count: int, dimension: int, seed: int) -> np.ndarray:
    """Return unit vectors around 2,000 centers, [count, dimension] float32."""
    centers = np.random.default_rng(0).standard_normal((2000, dimension)).astype(np.float32)
    random = np.random.default_rng(seed)
    vectors = centers[random.integers(0, len(centers), count)]
    vectors += random.standard_normal((count, dimension)).astype(np.float32)
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), np.float32)


def milliseconds(action: Callable[[], object], times: int) -> float:
    """Return the median duration of an action in milliseconds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return 1000 * float(np.median(taken))


def main() -> None:
    """Print a row for each size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, nargs="+", default=[50_000, 200_000])
    parser.add_argument("--dimension", type=int, default=384)
    options = parser.parse_args()
    queries = make_vectors(512, options.dimension, seed=2)
    print("passages kind build_s recall@10 ms_1_query ms_64_queries bytes_per_passage")
    for count in options.passages:
        vectors = make_vectors(count, options.dimension, seed=1)
        truth = None
        for exact in (True, False):
            before, start = resident(), time.perf_counter()
            index = VectorIndex.of([vectors], options.dimension, exact=exact)
            seconds, grown = time.perf_counter() - start, resident() - before
            _, hits = index.search(queries, 10)
            truth = hits if truth is None else truth
            shared = [len(set(a) & set(b)) for a, b in zip(truth, hits, strict=True)]
            one = milliseconds(lambda at=index: at.search(queries[:1], 10), 30)
            many = milliseconds(lambda at=index: at.search(queries[:64], 10), 10)
            kind = "exact" if exact else "HNSW"
            print(
                f"{count} {kind} {seconds:.1f} {sum(shared) / truth.size:.4f} {one:.2f} {many:.1f} "
                f"{grown / count:.0f}",
                flush=True,
            )
            del index


if __name__ == "__main__":
    main()
