"""Dense and hybrid search of the managed retriever, compared with brute force on a tiny model."""

import json
import os
import signal
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoTokenizer

from raggrpo_api.spec.retrieval import EmbeddingModel, IndexKind, ManagedRetriever, Pooling
from raggrpo_retriever import embedding, index_build
from raggrpo_retriever.corpus import CorpusError, Passage
from raggrpo_retriever.dense import RANK_CONSTANT, fuse_rankings
from raggrpo_retriever.embedding import Embedder
from raggrpo_retriever.index import Hit
from raggrpo_retriever.loading import load_index
from raggrpo_retriever.vectors import FILE, VectorIndex
from support.builders.data.rows import write_rows
from support.builders.trainer.embedding_model import write_embedding_model
from support.hostile.special_files import SPECIAL_FILES

WORDS = [f"w{number}" for number in range(40)]
CONTEXT = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_embedding_model(tmp_path_factory.mktemp("model"), WORDS, context=CONTEXT)


def make_texts(count: int, seed: int = 0) -> list[str]:
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(1, 30))) for _ in range(count)]


def make_retriever(
    folder: Path, model: Path, texts: Sequence[str], **changes: Any
) -> ManagedRetriever:
    folder.mkdir(exist_ok=True)
    corpus = folder / "corpus.jsonl"
    write_rows(corpus, [{"id": str(n), "contents": text} for n, text in enumerate(texts)])
    spec = {"path": str(model), **changes.pop("embedding", {})}
    return ManagedRetriever(
        **{
            "corpus": str(corpus),
            "index": IndexKind.DENSE,
            "embedding": EmbeddingModel(**spec),
            "index_path": str(folder / "indexes"),
            **changes,
        }
    )


def embed_individually(
    path: Path, texts: Sequence[str], *, pooling: Pooling, normalize: bool, prefix: str
) -> np.ndarray:
    """Embed without batches and padding, as a reference."""
    model = AutoModel.from_pretrained(path).eval()
    tokenizer = AutoTokenizer.from_pretrained(path)
    result = []
    for text in texts:
        inputs = tokenizer(prefix + text, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            [states] = model(**inputs).last_hidden_state
        vector = {
            Pooling.MEAN: states.mean(0),
            Pooling.CLS: states[0],
            Pooling.LAST: states[-1],
        }[pooling].numpy()
        result.append(vector / np.linalg.norm(vector) if normalize else vector)
    return np.stack(result)


def ids(hits: list[Hit]) -> list[str]:
    return [hit.passage.id for hit in hits]


@pytest.mark.row("D8")
@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("normalize", [True, False])
def test_dense_search_equals_brute_force(
    tmp_path: Path, model: Path, pooling: Pooling, normalize: bool
) -> None:
    texts, queries = make_texts(300), make_texts(70, seed=1)
    fields = {"pooling": pooling, "normalize": normalize}
    prefixes = {"query_prefix": "w1 ", "passage_prefix": "w2 w3 "}
    index = load_index(make_retriever(tmp_path, model, texts, embedding={**fields, **prefixes}))

    passages = embed_individually(model, texts, prefix="w2 w3 ", **fields)
    query_vectors = embed_individually(model, queries, prefix="w1 ", **fields)
    scores = query_vectors @ passages.T  # [Q, N]
    for row, hits in zip(scores, index.search(queries, top_k=5), strict=True):
        best = np.sort(row)[::-1][:5]
        assert [hit.score for hit in hits] == pytest.approx(best.tolist(), abs=1e-4)
        assert [hit.score for hit in hits] == pytest.approx(
            [float(row[hit.position]) for hit in hits], abs=1e-4
        )


def test_long_texts_are_truncated_and_blank_queries_return_no_hits(
    tmp_path: Path, model: Path
) -> None:
    long = " ".join(["w5"] * 3 * CONTEXT)
    retriever = make_retriever(tmp_path, model, [long, "w1"], embedding={"max_tokens": 512})
    result = load_index(retriever).search([" ", long, ""], top_k=9)
    assert [ids(hits) for hits in result] == [[], ["0", "1"], []]


def test_embedding_vectors_do_not_depend_on_batch_size(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedder = Embedder(EmbeddingModel(path=str(model)))
    texts = make_texts(50)
    together = embedder.passages(texts)
    monkeypatch.setattr(embedding, "MAX_BATCH_TOKENS", 1)
    np.testing.assert_allclose(embedder.passages(texts), together, atol=1e-5)


def test_exact_search_scores_match_full_sort() -> None:
    random = np.random.default_rng(0)
    vectors = random.integers(-3, 4, (200, 4)).astype(np.float32)  # many equal products
    queries = random.integers(-3, 4, (70, 4)).astype(np.float32)
    scores, positions = VectorIndex.of([vectors[:90], vectors[90:]], 4, exact=True).search(
        queries, 7
    )
    products = queries @ vectors.T
    assert scores.tolist() == np.sort(products)[:, ::-1][:, :7].tolist()
    assert np.take_along_axis(products, positions, 1).tolist() == scores.tolist()


def test_equal_passages_are_returned_in_corpus_order(tmp_path: Path, model: Path) -> None:
    index = load_index(make_retriever(tmp_path, model, ["w1", "w2", "w1", "w1"]))
    assert [hit.position for hit in index.search(["w1"], 4)[0]] == [0, 2, 3, 1]


@pytest.mark.row("D8")
def test_approximate_search_recall_is_high(tmp_path: Path, model: Path) -> None:
    texts, queries = make_texts(2000), make_texts(50, seed=1)
    exact = load_index(make_retriever(tmp_path, model, texts))
    approximate = load_index(make_retriever(tmp_path, model, texts, hnsw_above=1999))
    pairs = list(zip(exact.search(queries, 10), approximate.search(queries, 10), strict=True))
    shared = [len(set(ids(a)) & set(ids(b))) for a, b in pairs]
    assert sum(shared) / (10 * len(queries)) > 0.95
    assert len(list((tmp_path / "indexes").iterdir())) == 2  # one folder per index


def test_precomputed_vectors_are_searched(tmp_path: Path, model: Path) -> None:
    texts = make_texts(30)
    vectors = embed_individually(model, texts, pooling=Pooling.MEAN, normalize=True, prefix="")
    # Reversed to distinguish them from computed vectors; their lengths must be ignored.
    lengths = np.linspace(9, 1, 30, dtype=np.float32)[:, None]
    np.save(tmp_path / "v.npy", lengths * vectors[::-1])
    retriever = make_retriever(tmp_path, model, texts, vectors=str(tmp_path / "v.npy"))
    assert load_index(retriever).search([texts[4]], top_k=1)[0][0].position == 30 - 1 - 4


@pytest.mark.parametrize(
    ("dtype", "scale"),
    [(np.float16, 6e-8), (np.float32, 1e-40), (np.float32, 1e37), (np.float64, 1e37)],
)
def test_vectors_of_any_scale_are_normalized(model: Path, dtype: type, scale: float) -> None:
    embedder = Embedder(EmbeddingModel(path=str(model)))
    vectors = np.array([[3, 4], [0, 0], [1, 0]]) * scale
    normalized = embedder.normalized(vectors.astype(dtype))
    assert normalized.dtype == np.float32
    np.testing.assert_allclose(normalized[1:], [[0, 0], [1, 0]], atol=1e-6)
    assert np.linalg.norm(normalized[0]) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("normalize", [True, False])
def test_vectors_beyond_float32_are_rejected(
    tmp_path: Path, model: Path, *, normalize: bool
) -> None:
    np.save(tmp_path / "v.npy", np.full((1, 16), 1e300))
    retriever = make_retriever(
        tmp_path,
        model,
        ["w1"],
        vectors=str(tmp_path / "v.npy"),
        embedding={"normalize": normalize},
    )
    with pytest.raises(CorpusError, match=r"v\.npy: row 1 contains NaN or infinity"):
        load_index(retriever)


def test_vectors_of_other_embedding_model_are_rejected(tmp_path: Path, model: Path) -> None:
    np.save(tmp_path / "v.npy", np.ones((1, 3), np.float32))
    retriever = make_retriever(tmp_path, model, ["w1"], vectors=str(tmp_path / "v.npy"))
    with pytest.raises(CorpusError, match=r"v\.npy: vectors have dimension 3, .* 16; embed"):
        load_index(retriever)


@pytest.mark.row("D8")
def test_hybrid_search_fuses_both_rankings(tmp_path: Path, model: Path) -> None:
    texts, queries = make_texts(200), make_texts(10, seed=1)
    result = {
        kind: load_index(make_retriever(tmp_path, model, texts, index=kind)).search(queries, 100)
        for kind in IndexKind
    }
    for number, hits in enumerate(result[IndexKind.HYBRID]):
        expected: dict[str, float] = {}
        for kind in (IndexKind.BM25, IndexKind.DENSE):
            for rank, name in enumerate(ids(result[kind][number]), start=1):
                expected[name] = expected.get(name, 0) + 1 / (60 + rank)
        order = sorted(expected, key=lambda name: (-expected[name], int(name)))[:100]
        assert ids(hits) == order
        assert [hit.score for hit in hits] == pytest.approx([expected[name] for name in order])


def test_reciprocal_rank_fusion_equals_hand_computed_values() -> None:
    a, b, c = (Hit(n, Passage(name, name), 9.0 - n) for n, name in enumerate("abc"))
    fusion = fuse_rankings([[a, b], [c, b, a]])
    assert RANK_CONSTANT == 60
    assert [(hit.passage.id, hit.score) for hit in fusion] == [
        ("a", pytest.approx(1 / 61 + 1 / 63)),
        ("b", pytest.approx(2 / 62)),
        ("c", pytest.approx(1 / 61)),
    ]


@pytest.mark.row("D8")
def test_index_is_rebuilt_only_when_inputs_change(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[int] = []
    compute = Embedder.passages

    def count(self: Embedder, texts: Sequence[str]) -> np.ndarray:
        embedded.append(len(texts))
        return compute(self, texts)

    monkeypatch.setattr(Embedder, "passages", count)
    texts = make_texts(20)
    first = load_index(make_retriever(tmp_path, model, texts)).search(["w1 w2"], 3)
    again = load_index(make_retriever(tmp_path, model, texts)).search(["w1 w2"], 3)
    assert (embedded, again) == ([20], first)

    query_prefix = {"query_prefix": "w3 "}
    load_index(make_retriever(tmp_path, model, texts, embedding=query_prefix))
    load_index(make_retriever(tmp_path, model, texts, index=IndexKind.HYBRID))
    assert embedded == [20]
    for changed in ({"passage_prefix": "w3 "}, {"pooling": "Cls"}, {"normalize": False}):
        load_index(make_retriever(tmp_path, model, texts, embedding=changed))
    load_index(make_retriever(tmp_path, model, [*texts[:-1], "w9"]))
    assert embedded == [20] * 5


@pytest.mark.row("D8")
def test_interrupted_index_build_resumes(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_build, "BLOCK_PASSAGES", 8)
    embedded: list[int] = []
    compute = Embedder.passages

    def interrupt(self: Embedder, texts: Sequence[str]) -> np.ndarray:
        if len(embedded) == 2:
            raise KeyboardInterrupt
        embedded.append(len(texts))
        return compute(self, texts)

    texts = make_texts(30)
    retriever = make_retriever(tmp_path, model, texts)
    with monkeypatch.context() as broken:
        broken.setattr(Embedder, "passages", interrupt)
        with pytest.raises(KeyboardInterrupt):
            load_index(retriever)
    assert not list((tmp_path / "indexes").glob("*/COMPLETE"))

    reported: list[str] = []
    index = load_index(retriever, reported.append)
    assert [line for line in reported if line.startswith("embedding")] == [
        "embedding passages: 16 of 30",
        "embedding passages: 24 of 30",
    ]
    uninterrupted = load_index(make_retriever(tmp_path / "other", model, texts))
    assert index.search(texts, 5) == uninterrupted.search(texts, 5)
    assert len(list((tmp_path / "indexes").iterdir())) == 1


def test_unwritable_index_folder_is_rejected_with_remedy(tmp_path: Path, model: Path) -> None:
    (tmp_path / "file").write_text("")
    retriever = make_retriever(
        tmp_path, model, ["w1"], index_path=str(tmp_path / "file" / "indexes")
    )
    with pytest.raises(CorpusError, match=r"cannot write the index \(Not a directory\); set index"):
        load_index(retriever)


def _rename_tensors(name: Callable[[str], str]) -> Any:
    def write(path: Path) -> None:
        file = path / "model.safetensors"
        tensors = {name(old): tensor for old, tensor in load_file(file).items()}
        save_file({n: tensor for n, tensor in tensors.items() if n}, file, {"format": "pt"})

    return write


def test_embedding_model_without_pooler_is_accepted(tmp_path: Path) -> None:
    path = write_embedding_model(tmp_path / "model", WORDS)
    _rename_tensors(lambda name: "" if name.startswith("pooler.") else name)(path)
    assert load_index(make_retriever(tmp_path, path, ["w1", "w2"])).search(["w2"], 1)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda path: (path / "config.json").unlink(), "cannot load the embedding model"),
        (lambda path: (path / "tokenizer.json").write_text("{"), "cannot load the embedding"),
        (lambda path: (path / "model.safetensors").write_bytes(b""), "the weights have 0 bytes"),
        (
            _rename_tensors(lambda name: f"encoder_q.{name}"),
            "[0-9]+ tensors of the model are missing",
        ),
    ],
)
def test_broken_embedding_model_is_rejected_in_one_line(
    tmp_path: Path, change: Any, expected: str
) -> None:
    path = write_embedding_model(tmp_path / "model", WORDS)
    change(path)
    with pytest.raises(CorpusError, match=expected) as raised:
        load_index(make_retriever(tmp_path, path, ["w1"]))
    assert "\n" not in str(raised.value)


def test_panic_of_tokenizer_is_reported(tmp_path: Path) -> None:
    path = write_embedding_model(tmp_path / "model", ["a"])
    pattern = {"Regex": "zebra(?:(?:(?:[a-z ]|[a-z0-9 ]|[a-z])+)+)+\\d{9}"}
    rule = {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}
    tokenizer = json.loads((path / "tokenizer.json").read_text()) | {"pre_tokenizer": rule}
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CorpusError, match=r"model: cannot embed a text \(.*retry-limit"):
        load_index(make_retriever(tmp_path, path, ["zebra " * 20]))


def test_text_that_tokenizer_cannot_encode_is_reported(tmp_path: Path) -> None:
    path = write_embedding_model(tmp_path / "model", ["a"])
    tokenizer = json.loads((path / "tokenizer.json").read_text())
    tokenizer["model"]["unk_token"] = "missing"
    (path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(CorpusError, match=r"model: cannot embed a text \(.*Missing"):
        load_index(make_retriever(tmp_path / "corpus", path, ["a", "other"]))


@pytest.mark.parametrize("name", SPECIAL_FILES)
def test_special_file_is_not_read_as_index(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "index"
    folder.mkdir()
    SPECIAL_FILES[name](folder / FILE)
    with pytest.raises(OSError, match=r"regular file|link|levels|No such file"):
        VectorIndex.read(folder, 3, 4, exact=True)


VECTORS = np.eye(3, 4, dtype=np.float32)


def flat(dimension: int, count: int, metric: int = faiss.METRIC_INNER_PRODUCT) -> faiss.Index:
    index = faiss.IndexFlat(dimension, metric)
    index.add(np.ones((count, dimension), np.float32))
    return index


def hnsw(dimension: int, count: int, metric: int = faiss.METRIC_INNER_PRODUCT) -> faiss.Index:
    index = faiss.IndexHNSWFlat(dimension, 32, metric)
    index.add(np.ones((count, dimension), np.float32))
    return index


def hnsw_of_others(folder: Path) -> faiss.Index:
    """Return a graph whose vectors are those of an inverted file elsewhere."""
    index, storage = hnsw(4, 3), inverted(folder)
    storage.this.disown()  # the graph frees it
    index.storage = storage
    return index


def inverted(folder: Path) -> faiss.Index:
    quantizer = faiss.IndexFlatIP(4)
    index = faiss.IndexIVFFlat(quantizer, 4, 1, faiss.METRIC_INNER_PRODUCT)
    index.train(VECTORS)
    lists = faiss.OnDiskInvertedLists(1, index.code_size, str(folder / "elsewhere"))
    index.replace_invlists(lists, own=True)
    for each in (quantizer, lists):
        each.this.disown()  # the index frees them
    index.own_fields = True
    index.add(VECTORS)
    return index


def with_ids(_: Path) -> faiss.Index:
    index = faiss.IndexIDMap(faiss.IndexFlatIP(4))
    index.add_with_ids(VECTORS, np.array([7, 8, 9]))
    return index


@pytest.fixture
def without_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss, "read_index", lambda *_: pytest.fail("faiss read the file"))


def of_lattice(graph: bytes) -> bytes:
    """Return a graph whose vectors are those of a lattice, which faiss enumerates for hours."""
    lattice = struct.pack("<4i", 64, 1, 4, 512) + struct.pack("<i3q?i", 64, 3, 0, 0, True, 0)
    return graph[: graph.index(b"IxFI")] + b"IxLa" + lattice


OTHER_LAYOUTS: dict[str, tuple[Callable[[bytes], bytes], bool]] = {
    "bytes after the vectors": (lambda content: content + b"\0", True),
    "fewer bytes": (lambda content: content[:-1], True),
    "empty": (lambda _: b"", True),
    "graph: bytes after the vectors": (lambda content: content + b"\0", False),
    "graph: fewer bytes": (lambda content: content[:-1], False),
    "graph: only a header": (lambda content: content[:45], False),
    "graph: no vectors": (lambda content: content[: content.index(b"IxFI")], False),
    "graph: array larger than the file": (
        lambda content: content[:37] + b"\xff" * 8 + content[45:],
        False,
    ),
    "graph: vectors of a lattice": (of_lattice, False),
}


@pytest.mark.parametrize("name", OTHER_LAYOUTS)
@pytest.mark.usefixtures("without_reading")
def test_other_layout_is_not_read(tmp_path: Path, name: str) -> None:
    change, exact = OTHER_LAYOUTS[name]
    VectorIndex.of([VECTORS], 4, exact=exact).write(tmp_path)
    file = tmp_path / FILE
    file.write_bytes(change(file.read_bytes()))
    with pytest.raises(RuntimeError, match="is not an index of this corpus"):
        VectorIndex.read(tmp_path, len(VECTORS), 4, exact=exact)


OTHER_INDEXES: dict[str, tuple[Callable[[Path], faiss.Index], bool]] = {
    "more vectors": (lambda _: flat(4, 5), True),
    "no vectors": (lambda _: flat(4, 0), True),
    "other dimension": (lambda _: flat(9, 3), True),
    "other metric": (lambda _: flat(4, 3, faiss.METRIC_L2), True),
    "graph instead of vectors": (lambda _: hnsw(4, 3), True),
    "ids": (with_ids, True),
    "inverted file": (inverted, True),
    "graph: more vectors": (lambda _: hnsw(4, 5), False),
    "graph: other dimension": (lambda _: hnsw(9, 3), False),
    "graph: other metric": (lambda _: hnsw(4, 3, faiss.METRIC_L2), False),
    "graph: other vectors": (hnsw_of_others, False),
    "vectors instead of a graph": (lambda _: flat(4, 3), False),
}


@pytest.mark.parametrize("name", OTHER_INDEXES)
@pytest.mark.usefixtures("without_reading")
def test_other_index_is_not_read(tmp_path: Path, name: str) -> None:
    make, exact = OTHER_INDEXES[name]
    faiss.write_index(make(tmp_path), str(tmp_path / FILE))
    (tmp_path / "elsewhere").unlink(missing_ok=True)
    with pytest.raises(RuntimeError, match="is not an index of this corpus"):
        VectorIndex.read(tmp_path, 3, 4, exact=exact)


@pytest.mark.parametrize("exact", [True, False])
def test_index_of_many_vectors_is_not_allocated(tmp_path: Path, *, exact: bool) -> None:
    faiss.write_index(flat(4, 3) if exact else hnsw(4, 3), str(tmp_path / FILE))
    content = bytearray((tmp_path / FILE).read_bytes())
    content[8:16] = (2**40).to_bytes(8, "little")
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(RuntimeError, match="is not an index of this corpus"):
        VectorIndex.read(tmp_path, 3, 4, exact=exact)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("count", [1, 3, 1000])
def test_own_index_is_read(tmp_path: Path, count: int, *, exact: bool) -> None:
    vectors = np.random.default_rng(0).standard_normal((count, 4)).astype(np.float32)
    index = VectorIndex.of([vectors], 4, exact=exact)
    index.write(tmp_path)
    read = VectorIndex.read(tmp_path, count, 4, exact=exact)
    assert read.search(VECTORS, 3)[1].tolist() == index.search(VECTORS, 3)[1].tolist()


def nan(index: faiss.Index) -> None:
    vectors = index if isinstance(index, faiss.IndexFlat) else faiss.downcast_index(index.storage)
    faiss.rev_swig_ptr(vectors.get_xb(), vectors.ntotal * vectors.d)[5] = np.nan


def link_to_nothing(index: faiss.Index) -> None:
    faiss.rev_swig_ptr(index.hnsw.neighbors.data(), 1)[0] = 10**6


def link_to_lower_layer(index: faiss.Index) -> None:
    levels = faiss.vector_to_array(index.hnsw.levels)
    high, low = levels.argmax(), levels.argmin()
    first = int(faiss.vector_to_array(index.hnsw.offsets)[high])
    links = faiss.rev_swig_ptr(index.hnsw.neighbors.data(), index.hnsw.neighbors.size())
    links[first + index.hnsw.cum_nb_neighbors(1)] = low


def entry_of_lower_layer(index: faiss.Index) -> None:
    index.hnsw.entry_point = int(faiss.vector_to_array(index.hnsw.levels).argmin())


def no_entry(index: faiss.Index) -> None:
    index.hnsw.entry_point = -1


def other_layers(index: faiss.Index) -> None:
    index.hnsw.max_level = 0


DAMAGES = [
    *[nan, link_to_nothing, link_to_lower_layer],
    *[entry_of_lower_layer, no_entry, other_layers],
]


@pytest.mark.parametrize(
    ("damage", "exact"), [(nan, True), *((damage, False) for damage in DAMAGES)]
)
def test_damaged_index_is_rejected_before_queries(
    tmp_path: Path, damage: Callable[[faiss.Index], None], *, exact: bool
) -> None:
    index = flat(4, 3) if exact else hnsw(4, 300)
    damage(index)
    faiss.write_index(index, str(tmp_path / FILE))
    with pytest.raises(RuntimeError, match=r"damaged|out of range"):
        VectorIndex.read(tmp_path, index.ntotal, 4, exact=exact)


def test_depth_of_search_is_not_read(tmp_path: Path) -> None:
    index = hnsw(4, 300)
    index.hnsw.efSearch = 2**31 - 1  # a search would allocate 16 GiB
    faiss.write_index(index, str(tmp_path / FILE))
    positions = VectorIndex.read(tmp_path, 300, 4, exact=False).search(VECTORS, 2)[1]
    assert positions.shape == (3, 2)


def test_damaged_index_is_reported_with_remedy(tmp_path: Path, model: Path) -> None:
    retriever = make_retriever(tmp_path, model, ["w1", "w2"])
    load_index(retriever)
    [file] = (tmp_path / "indexes").glob(f"*/{FILE}")
    faiss.write_index(flat(16, 2, faiss.METRIC_L2), str(file))  # of equal size
    with pytest.raises(CorpusError, match=r"is not an index of this corpus.*delete the folder"):
        load_index(retriever)


@pytest.mark.parametrize("name", ["read_index", "write_index"])
def test_lack_of_memory_for_index_is_reported_with_remedy(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("std::bad_alloc")

    monkeypatch.setattr(faiss, name, fail)
    with pytest.raises(CorpusError, match=r"2 passages does not fit into memory; increase the mem"):
        load_index(make_retriever(tmp_path, model, ["w1", "w2"]))


@pytest.mark.parametrize(
    ("end", "remedy"),
    [
        (signal.SIGKILL, "memory runs out while it builds the model; give the retriever more mem"),
        (signal.SIGSEGV, r"exit code -11\) while it builds the model; copy the file again, or use"),
    ],
)
def test_end_of_process_that_builds_the_model_is_reported_with_remedy(
    model: Path, monkeypatch: pytest.MonkeyPatch, end: signal.Signals, remedy: str
) -> None:
    monkeypatch.setattr(embedding, "_model_problem", lambda _: os.kill(os.getpid(), end))
    with pytest.raises(CorpusError, match=remedy):
        Embedder(EmbeddingModel(path=str(model)))


def test_lack_of_memory_for_the_model_is_reported_with_remedy(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    monkeypatch.setattr(AutoModel, "from_pretrained", fail)
    with pytest.raises(CorpusError, match="not fit into memory; give the retriever more memory"):
        Embedder(EmbeddingModel(path=str(model)))
