"""Memory of a managed retriever as named terms: texts, BM25 index, embeddings and their model.

`tests/bench/retrieval/dense_search.py` compares the terms with measurements.
"""

from functools import partial

from raggrpo_api.memory.arithmetic import GIB, MIB
from raggrpo_api.spec.retrieval import IndexKind, ManagedRetriever
from raggrpo_api.status.sizing import SizingTerm
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.spec.quantity import format_size

from .terms import term

SERVER_BYTES = 512 * MIB
EMBEDDING_SERVER_BYTES = 3 * GIB // 2
"""Memory of the server with torch, transformers and a forward pass of 4,096 tokens."""
TEXT_AND_BM25_FACTOR = 4
"""Size of texts, tokens and BM25 index, relative to the size of the corpus file."""
TEXT_FACTOR = 2
OBJECT_BYTES_PER_PASSAGE = 320
"""Bytes of a passage's Python objects."""
LINK_BYTES_PER_PASSAGE = 300
"""Bytes of a passage's HNSW links: 64 × 4 on the lowest layer, plus links of upper layers."""
FLOAT32 = 4


def retriever_terms(name: str, managed: ManagedRetriever, facts: Facts) -> list[SizingTerm]:
    """Return the memory terms of a retriever; `facts` cover the corpora of all retrievers."""
    of = partial(term, "retriever")
    if not managed.embeds:
        reason = f"0.5 GiB + {TEXT_AND_BM25_FACTOR} × corpus of {format_size(facts.corpus_bytes)}"
        if not facts.corpus_bytes:
            reason = "0.5 GiB; the corpus is measured in preflight"
        return [of(name, SERVER_BYTES + TEXT_AND_BM25_FACTOR * facts.corpus_bytes, reason)]
    passages, dimension = facts.corpus_passages, facts.embedding_dimension
    share = TEXT_AND_BM25_FACTOR if managed.index is IndexKind.HYBRID else TEXT_FACTOR
    objects = OBJECT_BYTES_PER_PASSAGE * passages
    terms = [
        of(
            f"{name} server",
            EMBEDDING_SERVER_BYTES,
            "server, torch and a forward pass of 4,096 tokens",
        ),
        of(
            f"{name} texts",
            share * facts.corpus_bytes + objects,
            f"{share} × corpus of {format_size(facts.corpus_bytes)} + "
            f"{OBJECT_BYTES_PER_PASSAGE} B × {passages:,} passages",
        ),
        of(
            f"{name} model",
            FLOAT32 * facts.embedding_parameters,
            f"4 B × {facts.embedding_parameters:,} parameters of the embedding model",
        ),
        of(
            f"{name} vectors",
            FLOAT32 * dimension * passages,
            f"4 B × {dimension} × {passages:,} passages",
        ),
    ]
    if managed.vectors:  # the whole file is loaded while the index is built
        copy = FLOAT32 * dimension * passages
        terms.append(of(f"{name} given", copy, "the vectors file, while the index is built"))
    if passages > managed.hnsw_above:
        reason = f"{LINK_BYTES_PER_PASSAGE} B × {passages:,} passages in the HNSW graph"
        terms.append(of(f"{name} links", LINK_BYTES_PER_PASSAGE * passages, reason))
    return terms
