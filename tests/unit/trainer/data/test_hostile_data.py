"""Data files and corpora made to exhaust memory, to hang or to read files elsewhere."""

import gzip
import json
import os
import random
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raggrpo_api import parquet_batches
from raggrpo_api.foreign_files import DuplicateKey, parse_json
from raggrpo_api.spec.retrieval import ManagedRetriever
from raggrpo_retriever.corpus import CorpusError, Passage, load_corpus
from raggrpo_retriever.index import Bm25Index
from raggrpo_retriever.loading import load_index
from raggrpo_trainer.data.columns import MISSING, value_at
from raggrpo_trainer.data.conversation import InvalidValue, read_conversation, read_tools
from raggrpo_trainer.data.rows import Row, read_rows
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.preflight.embedding import count_passages
from raggrpo_trainer.preflight.weights import Unreadable
from support.hostile.limited_process import Make, outcomes
from support.hostile.memory import peak_memory
from support.hostile.special_files import SECRET, SPECIAL_FILES


def list_rows(path: Path) -> list[Row]:
    return list(read_rows(path, None))


def large_line(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b'{"prompt": "')
        file.truncate(5 << 30)  # sparse: it takes no space on the disk


def repeated(value: str, rows: int) -> Make:
    """Return a function that writes a file whose rows all refer to one value."""

    def make(path: Path) -> None:
        indices = pa.array(np.zeros(rows, np.int32))
        column = pa.DictionaryArray.from_arrays(indices, pa.array([value]))
        names = ["prompt", "answer", "id", "text"]
        pq.write_table(pa.table([column] * len(names), names=names), path, compression="zstd")

    return make


NAMES = ("prompt", "answer", "id", "text")


def lists(value: str, length: int) -> Make:
    """Return a function that writes one row with a list that repeats a value."""

    def make(path: Path) -> None:
        values = pa.DictionaryArray.from_arrays(
            pa.array(np.zeros(length, np.int32)), pa.array([value])
        )
        column = pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), values)
        table = pa.table([pa.array(["a"]), column, column, column], names=NAMES)
        pq.write_table(table, path, compression="zstd")

    return make


def in_struct(path: Path) -> None:
    """Write rows whose texts, 2 MB each, are fields of structures."""
    values = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(1000, np.int32)), pa.array(["x" * 2_000_000])
    )
    column = pa.StructArray.from_arrays([values], names=["a"])
    pq.write_table(pa.table([column, column, pa.array(range(1000)), column], names=NAMES), path)


def large_value(path: Path) -> None:
    """Write a value of 500 MB that is compressed to few kilobytes."""
    value = pa.array(["x" * 500_000_000])
    table = pa.table([value] * len(NAMES), names=NAMES)
    pq.write_table(table, path, compression="zstd", use_dictionary=False)


def columns(values: pa.Array) -> Make:
    """Return a function that writes one row with these values in most columns."""
    table = pa.table([values, values, pa.array(["a"]), values], names=NAMES)
    return lambda path: pq.write_table(table, path)


def fixed_size(path: Path) -> None:
    """Write a list that refers 2,000 times to one binary value of 512 KiB, of fixed size."""
    value = pa.array([os.urandom(1 << 19)], pa.binary(1 << 19))
    values = pa.DictionaryArray.from_arrays(pa.array(np.zeros(2000, np.int32)), value)
    column = pa.ListArray.from_arrays(pa.array([0, 2000], pa.int32()), values)
    table = pa.table([column, column, pa.array(["a"]), column], names=NAMES)
    pq.write_table(table, path, store_schema=False)


def texts(*sizes: int) -> Make:
    """Return a function that writes one row per size, with a text of this many megabytes."""

    def make(path: Path) -> None:
        column = pa.array(["\u00e9" + "x" * (size * 1_000_000) for size in sizes])
        ids = pa.array([str(number) for number in range(len(sizes))])
        table = pa.table([column, ids, ids, column], names=NAMES)
        pq.write_table(table, path, compression="zstd", use_dictionary=False)

    return make


def not_utf8(path: Path) -> None:
    buffers = [None, pa.py_buffer(np.array([0, 2], np.int32)), pa.py_buffer(b"\xff\xfe")]
    value = pa.Array.from_buffers(pa.string(), 1, buffers)
    pq.write_table(pa.table([value] * len(NAMES), names=NAMES), path)


def test_rows_with_maps_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    column = pa.array([[("a", "b")], None, []], pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table({"prompt": column}), path)

    assert [row.values["prompt"] for row in read_rows(path, None)] == [{"a": "b"}, None, {}]


def nested(depth: int) -> Make:
    return lambda path: path.write_text('{"prompt": ' + "[" * depth + "]" * depth + "}\n")


JSONL: dict[str, Make] = {
    "line of 5 GB": large_line,
    "deep nesting": nested(100_000),
    "nesting of 600": nested(600),
    "nesting of 150": nested(150),
    "nested value of another column": lambda path: path.write_text(
        '{"prompt": "a", "answer": "b", "x": ' + "[" * 600 + "]" * 600 + ', "id": 1}\n'
    ),
    "sender that is a list": lambda path: path.write_text(
        '{"prompt": [{"from": ["x"], "value": "a"}], "id": 1}\n'
    ),
    "lone surrogate in a text": lambda path: path.write_text(
        '{"prompt": "\\udc80", "id": "1", "text": "\\udc80"}\n'
    ),
    "many small objects": lambda path: path.write_text(
        '{"prompt": [' + ",".join(["{}"] * 4_000_000) + "]}\n"
    ),
    "duplicate key": lambda path: path.write_text('{"prompt": "a", "prompt": "b", "id": 1}\n'),
    "integer of 100,000 digits": lambda path: path.write_text(
        f'{{"prompt": "a", "id": {"9" * 100_000}}}\n'
    ),
    "infinity": lambda path: path.write_text('{"prompt": Infinity, "id": 1e999}\n'),
    "NUL bytes": lambda path: path.write_bytes(b"\0" * 1_000_000),
    "not UTF-8": lambda path: path.write_bytes(b'{"prompt": "\xff\xfe"}\n'),
    "lone surrogate": lambda path: path.write_text('{"prompt": "\\ud800", "id": 7}\n'),
    "compressed": lambda path: path.write_bytes(gzip.compress(b"\0" * 10_000_000)),
    "values of other types": lambda path: path.write_text('{"prompt": {"a": 1}, "id": []}\n'),
}
PARQUET: dict[str, Make] = {
    "long value, often": repeated("x" * 10_000_000, 100_000),
    "short value, very often": repeated("x", 100_000_000),
    "list of 40 million texts": lists("ab", 40_000_000),
    "list of 12 million texts": lists("ab", 12_000_000),
    "list that repeats a long text": lists("x" * 50_000, 30_000),
    "texts in structures": in_struct,
    "value of 500 MB": large_value,
    "fixed size": fixed_size,
    "map with lists as keys": columns(
        pa.array([[([1], "a")]], pa.map_(pa.list_(pa.int64()), pa.string()))
    ),
    "map with structures as keys": columns(
        pa.array([[({"a": 1}, "a")]], pa.map_(pa.struct([("a", pa.int64())]), pa.string()))
    ),
    "fields with the same name": columns(
        pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    ),
    "text of 110 MB": texts(110),
    "text of 100 MB after others": texts(0, 0, 0, 100, 0),
    "text of 20 MB after others": texts(*[0] * 9, 20, 0),
    "not UTF-8": not_utf8,
    "random bytes": lambda path: path.write_bytes(b"PAR1" + os.urandom(1000) + b"PAR1"),
    "large footer": lambda path: path.write_bytes(b"PAR1" + b"\xff\xff\xff\x7fPAR1"),
    "empty": lambda path: path.write_bytes(b""),
}


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The outcomes of all cases, by check, suffix and name of the case."""
    names: dict[str, list[tuple[str, Path]]] = {"data": [], "corpus": []}
    for suffix, cases in ((".jsonl", JSONL), (".parquet", PARQUET)):
        for name, make in {**cases, **SPECIAL_FILES}.items():
            path = tmp_path_factory.mktemp("case") / f"file{suffix}"
            make(path)
            for check, made in names.items():
                made.append((f"{check} {suffix} {name}", path))
    results: dict[str, str] = {}
    for check, made in names.items():
        by_path = outcomes(check, [path for _, path in made])
        results |= {name: by_path[str(path)] for name, path in made}
    return results


ALL = [
    f"{check} {suffix} {name}"
    for check in ("data", "corpus")
    for suffix, cases in ((".jsonl", JSONL), (".parquet", PARQUET))
    for name in {**cases, **SPECIAL_FILES}
]


REASONS = {
    "data .jsonl line of 5 GB": "line 1 has more than",
    "corpus .jsonl line of 5 GB": "line 1 has more than",
    "data .parquet long value, often": "a row has more than",
    "data .parquet short value, very often": "its rows need more than",
    "data .parquet fixed size": "a row has more than",
    "data .parquet map with lists as keys": "row 0: a value cannot be read (unhashable",
    **{
        f"{check} {suffix} {name}": reason
        for check in ("data", "corpus")
        for suffix in (".jsonl", ".parquet")
        for name, reason in (
            ("pipe", "it is not a regular file"),
            ("socket", "it is not a regular file"),
            ("device", "it is not a regular file"),
            ("link out of the folder", "it is a link to"),
        )
    },
    **{
        f"{check} .parquet {name}": "a row "  # "has more than", or "group needs more memory"
        for check in ("data", "corpus")
        for name in (
            *("text of 110 MB", "text of 100 MB after others", "text of 20 MB after others"),
        )
    },
}
"""Reasons of rejections that other problems of a file must not hide."""


@pytest.mark.parametrize("name", ALL)
def test_hostile_file_is_rejected_within_limits(checked: dict[str, str], name: str) -> None:
    assert checked[name].startswith("rejected: "), checked[name][-1500:]
    assert "MemoryError" not in checked[name]
    assert SECRET not in checked[name]
    assert REASONS.get(name, "") in checked[name]


LONG = "\U000e0001" * 400_000
"""Unprintable text; its representation needs 4 MB."""
FIELDS = json.dumps(dict.fromkeys(range(1000)))
MANY_LISTS = "[[]]," * 1_700_000 + "1]}"
"""JSON whose values need more than MAX_JSON_MEMORY."""
VALUES: dict[str, object] = {
    "text in a list": [LONG],
    "unknown role": [{"role": LONG, "content": "a"}],
    "unknown sender": [{"from": LONG, "value": "a"}],
    "unknown content": [{"role": "user", "content": {"a": LONG}}],
    "unknown type of content": [{"role": "user", "content": [{"type": LONG, "text": "a"}]}],
    "list as type of content": [{"role": "user", "content": [{"type": [LONG], "text": "a"}]}],
    "text in an object": {"a": LONG},
    "bytes": LONG.encode(),
    "messages below a long key": (
        f'{{"{"k" * 10_000}":{FIELDS},"a":{{"b":[{{"type":"user","content":"a"}}]}}}}'
    ),
    "role and many lists": '{"type":"user","x":[' + MANY_LISTS,
}
"""Prompts that a column of parquet may have; the last one is a text."""


@pytest.mark.parametrize("name", VALUES)
def test_value_in_wrong_format_needs_little_memory(name: str) -> None:
    def read() -> None:
        with pytest.raises(InvalidValue) if name != "role and many lists" else nullcontext():
            read_conversation(VALUES[name])

    assert peak_memory(read) < 2_000_000


@pytest.mark.parametrize("name", ["image", "images"])
def test_column_for_media_with_unreadable_values_is_rejected(tmp_path: Path, name: str) -> None:
    path = tmp_path / "rows.parquet"
    kind = pa.list_(pa.map_(pa.list_(pa.int64()), pa.string()))
    pq.write_table(pa.table({name: pa.array([[[([1], "a")]]], kind)}), path)

    with pytest.raises(TrainerError, match="row 0: a value cannot be read"):
        list(read_rows(path, []))


@pytest.mark.parametrize("escape", ["\\ud800", "\\uDFFF", "\\ude00\\ud83d"])
def test_lone_surrogates_in_json_text_are_rejected(escape: str) -> None:
    messages = f'[{{"role": "user", "content": "a{escape}"}}]'
    with pytest.raises(InvalidValue, match="contains a lone surrogate"):
        read_conversation(messages)
    with pytest.raises(InvalidValue, match="contains a lone surrogate"):
        read_tools(f'[{{"{escape}": 1}}]')


@pytest.mark.parametrize("text", ["\\ud83d\\ude00", "\\\\ud800", "\\u0041"])
def test_escaped_characters_in_json_text_are_read(text: str) -> None:
    value = [{"role": "user", "content": f"a{text}"}]
    content = json.loads(f'"a{text}"')
    assert read_conversation(json.dumps(value).replace("\\\\", "\\")).question == content


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32"])
def test_json_in_other_encodings_is_rejected(encoding: str) -> None:
    with pytest.raises(ValueError, match=r"codec|Expecting"):
        parse_json('{"a": "b"}'.encode(encoding))


def test_column_of_many_json_values_needs_little_memory() -> None:
    def read() -> None:
        assert value_at({"a": '{"b":0,"x":[' + MANY_LISTS}, "a.b") is MISSING

    assert peak_memory(read) < 20_000_000  # the text itself has 9 MB


def test_index_of_many_short_words_needs_little_memory() -> None:
    passages = [Passage("1", "ab c " * 200_000)]

    assert peak_memory(lambda: Bm25Index(passages)) < 8_000_000


def test_corpus_of_random_ideographs_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("raggrpo_retriever.index.MIN_MAX_WORDS", 10_000)
    text = "".join(map(chr, random.Random(1).choices(range(0x4E00, 0x9FFF), k=1_000_000)))
    path = tmp_path / "corpus.jsonl"
    path.write_text(json.dumps({"id": 1, "text": text}))

    def load() -> None:
        with pytest.raises(CorpusError, match=r"its 1 passages have too many different words.*use"):
            load_index(ManagedRetriever(corpus=str(path)))

    assert peak_memory(load) < 50_000_000


def test_corpus_may_have_more_words_the_larger_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raggrpo_retriever.index.MIN_MAX_WORDS", 10)
    words = [f"word{number} {'the ' * 15}" for number in range(20_000)]
    Bm25Index([Passage(str(number), text) for number, text in enumerate(words)])


def test_index_beyond_memory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> None:
        raise MemoryError

    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 1, "text": "a"}\n')
    monkeypatch.setattr("raggrpo_retriever.loading.Bm25Index", fail)
    with pytest.raises(CorpusError, match=r"corpus\.jsonl: the index of 1 passages does not fit"):
        load_index(ManagedRetriever(corpus=str(path)))


def test_duplicate_id_is_cut_in_message(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text(2 * f'{{"id": "{"x" * 100_000}", "text": "a"}}\n')
    with pytest.raises(CorpusError) as caught:
        load_corpus(path)

    assert len(str(caught.value)) < 1000


def test_passages_of_a_sparse_corpus_are_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.touch()
    os.truncate(path, 50 << 30)
    with pytest.raises(Unreadable, match="line 1 has more than"):
        count_passages(path)


def test_corpus_with_damaged_name_of_a_column_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"id": ["1"], "passage": ["a"]}), path, store_schema=False)
    path.write_bytes(path.read_bytes().replace(b"passage", b"\xff\xfessage"))
    with pytest.raises(Unreadable, match=r"cannot be read \('utf-8' codec"):
        count_passages(path)


def test_duplicate_key_is_cut_in_message() -> None:
    with pytest.raises(DuplicateKey) as caught:
        parse_json(f'{{"{LONG}":0,"{LONG}":1}}')

    assert len(str(caught.value)) < 1000


def test_paths_in_message_are_limited(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"x" * 100_000: {f"{i}{'k' * 1000}": 0 for i in range(5000)}}))

    [outcome] = outcomes("data", [path]).values()

    assert outcome.startswith("rejected: ")
    assert len(outcome) < 20_000


def npy(header: str, size: int = 64) -> Make:
    """Return a function that writes a header and a sparse file of this size."""

    def make(path: Path) -> None:
        text = header.ljust(117) + "\n"
        raw = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()
        path.write_bytes(raw)
        os.truncate(path, len(raw) + size)

    return make


def shape(text: str, kind: str = "<f4") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {text}, }}"


def archive(path: Path) -> None:
    with path.open("wb") as file:
        np.savez_compressed(file, a=np.zeros(10_000_000))


VECTORS: dict[str, Make] = {
    **SPECIAL_FILES,
    "pickle": lambda path: np.save(path, np.array([{"a": 1}], object), allow_pickle=True),
    "archive": archive,
    "damaged archive": lambda path: path.write_bytes(b"PK\x03\x04" + bytes(200)),
    "header of a terabyte": npy(shape("(2, 250000000000)")),
    "large dimension": npy(shape("(2, 120000000)", "<f2"), 480_000_000),
    "truth values": npy(shape("(True, True)")),
    "negative": npy(shape("(2, -3)")),
    "unclosed header": npy("{'descr': ('<f4'"),
    "unhashable key": npy("{[]: 1}"),
    "many operators": npy("-" * 9000 + "1"),
    "header of 4 GB": lambda path: path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\xff{"),
}


@pytest.mark.parametrize("name", VECTORS)
def test_hostile_vectors_are_rejected_within_limits(tmp_path: Path, name: str) -> None:
    path = tmp_path / "vectors.npy"
    VECTORS[name](path)

    [outcome] = outcomes("vectors", [path]).values()

    assert outcome.startswith("rejected: "), outcome[-1500:]


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("MAX_ROW_GROUP_BYTES", r"a row group has [\d,]+ bytes, limit 8"),
        ("MAX_GROUP_VALUES", r"a column of a row group has 1,000 values, limit 8"),
    ],
)
@pytest.mark.parametrize("read", [list_rows, load_corpus])
def test_large_row_group_is_reported_with_size_limit_and_remedy(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Path], object],
    limit: str,
    words: str,
) -> None:
    path = tmp_path / "rows.parquet"
    texts(*[0] * 1000)(path)
    monkeypatch.setattr(parquet_batches, limit, 8)
    with pytest.raises(
        (TrainerError, CorpusError), match=rf"rows.parquet: {words}; rewrite the file with sm"
    ):
        read(path)


@pytest.mark.parametrize("kind", [MemoryError, pa.ArrowMemoryError])
@pytest.mark.parametrize("read", [list_rows, load_corpus])
def test_lack_of_memory_is_reported(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    read: Callable[[Path], object],
    kind: type[Exception],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise kind("realloc of size 110000000 failed")

    path = tmp_path / "rows.parquet"
    texts(0)(path)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    with pytest.raises((TrainerError, CorpusError), match=r"rows.parquet: a row group needs more"):
        read(path)
