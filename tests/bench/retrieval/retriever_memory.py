"""Peak memory of a dense retriever compared with its sizing terms.

PYTHONPATH=operator:trainer_image:tests .venv/bin/python tests/bench/retrieval/retriever_memory.py
"""

import argparse
import json
import multiprocessing
import tempfile
from pathlib import Path

import numpy as np

from raggrpo_api.memory.arithmetic import MIB
from raggrpo_api.spec.retrieval import EmbeddingModel, IndexKind, ManagedRetriever
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.sizing.retriever_memory import retriever_terms
from raggrpo_retriever.loading import load_index
from support.builders.trainer.embedding_model import write_embedding_model

WORDS = [f"word{number}" for number in range(30_000)]


def peak() -> int:
    """Return the peak resident memory of this process in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def main() -> None:
    """Write model and corpus, load the index, search, and print estimate and peak."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--passages", type=int, default=2000)
    parser.add_argument(
        "--vectors", action="store_true", help="supply vectors instead of computing them"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # In a separate process, whose memory is not counted.
        model = multiprocessing.get_context("spawn").Process(
            target=_write_model, args=(folder / "model",)
        )
        model.start()
        model.join()
        random = np.random.default_rng(0)
        with (folder / "corpus.jsonl").open("w") as file:
            for number in range(options.passages):
                text = " ".join(random.choice(WORDS, 100))
                file.write(json.dumps({"id": str(number), "contents": text}) + "\n")
        if options.vectors:
            vectors = random.standard_normal((options.passages, 768)).astype(np.float32)
            np.save(folder / "vectors.npy", vectors)
        _measure(folder, options.passages, with_vectors=options.vectors)


def _write_model(folder: Path) -> None:
    write_embedding_model(folder, WORDS, context=512, hidden=768, layers=12)  # size of BERT base


def _measure(folder: Path, passages: int, *, with_vectors: bool) -> None:
    managed = ManagedRetriever(
        corpus=str(folder / "corpus.jsonl"),
        index=IndexKind.HYBRID,
        embedding=EmbeddingModel(path=str(folder / "model")),
        vectors=str(folder / "vectors.npy") if with_vectors else "",
        index_path=str(folder / "indexes"),
    )
    index = load_index(managed, print)
    index.search([" ".join(WORDS[:510])] * 8, 10)  # a full batch
    weights = (folder / "model" / "model.safetensors").stat().st_size
    facts = Facts(
        corpus_bytes=(folder / "corpus.jsonl").stat().st_size,
        corpus_passages=passages,
        embedding_parameters=weights // 4,
        embedding_dimension=768,
    )
    terms = retriever_terms("kb", managed, facts)
    for term in terms:
        print(f"{term.name:<12} {term.bytes / MIB:9.1f} MiB  {term.reason}")
    print(
        f"estimate {sum(term.bytes for term in terms) / MIB:.0f} MiB, peak {peak() / MIB:.0f} MiB"
    )


if __name__ == "__main__":
    main()
