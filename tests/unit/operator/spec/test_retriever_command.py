from typing import Any

import pytest

from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.retriever_command import retriever_arguments
from support.builders.operator.jobs import make_job

MODEL = {"path": "/mnt/runs/e5"}
DENSE: dict[str, Any] = {"corpus": "/mnt/runs/c.jsonl", "index": "Dense", "embedding": MODEL}
WORDS = ["--corpus", "/mnt/runs/c.jsonl", "--index"]


def arguments(managed: dict[str, Any]) -> list[str]:
    endpoint = {"name": "kb", "managed": managed}
    job = make_job({"retrieval": {"mode": "Prompt", "endpoints": [endpoint]}})
    managed: ManagedRetriever = resolve(job).spec.retrieval.managed["kb"]
    return retriever_arguments(managed)


@pytest.mark.parametrize(
    "managed", [DENSE | {"index": "BM25"}, {"corpus": "/mnt/runs/c.jsonl", "index": "Dense"}]
)
def test_bm25_retriever_does_not_get_embedding_arguments(managed: dict[str, Any]) -> None:
    assert arguments(managed) == [*WORDS, managed["index"]]


@pytest.mark.parametrize(
    ("changes", "normalize", "end"),
    [
        ({}, [], []),
        ({"embedding": MODEL | {"normalize": False}}, ["--no-normalize"], []),
        ({"vectors": "/mnt/runs/v.npy"}, [], ["--vectors", "/mnt/runs/v.npy"]),
    ],
    ids=["as usual", "not normalized", "with vectors"],
)
def test_embedding_retriever_gets_embedding_arguments(
    changes: dict[str, Any], normalize: list[str], end: list[str]
) -> None:
    managed: dict[str, Any] = DENSE | {"indexPath": "/mnt/runs/i", "hnswAbove": 7} | changes
    model = MODEL | {"pooling": "Cls", "queryPrefix": "-q", "passagePrefix": "p ", "maxTokens": 9}
    managed["embedding"] = model | managed["embedding"]

    assert arguments(managed) == [
        *WORDS,
        "Dense",
        "--embedding",
        "/mnt/runs/e5",
        "--pooling",
        "Cls",
        "--query-prefix=-q",
        "--passage-prefix=p ",
        *normalize,
        "--max-tokens",
        "9",
        "--index-path",
        "/mnt/runs/i",
        "--hnsw-above",
        "7",
        *end,
    ]
