import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raggrpo_retriever.corpus import CorpusError, Passage, load_corpus, load_vectors


def test_passages_are_equal_from_jsonl_and_parquet(tmp_path: Path) -> None:
    records = [{"id": "a", "contents": "Köln"}, {"id": "b", "contents": "成都"}]
    jsonl = tmp_path / "corpus.jsonl"
    jsonl.write_text("\n".join(json.dumps(record) for record in records) + "\n\n")
    parquet = tmp_path / "corpus.parquet"
    pq.write_table(pa.Table.from_pylist(records), parquet)

    expected = [Passage("a", "Köln"), Passage("b", "成都")]
    assert load_corpus(jsonl) == expected
    assert load_corpus(parquet) == expected


def test_title_and_integer_ids_are_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"id": 7, "title": "Tea", "text": "Leaves."}\n{"id": 8, "text": "Beans."}\n')
    assert load_corpus(path) == [Passage("7", "Tea\nLeaves."), Passage("8", "Beans.")]


GOOD = b'{"id": "1", "contents": "x"}\n'


@pytest.mark.parametrize("name", ["corpus.NDJSON", "corpus.json", "corpus.ndjson"])
def test_selected_suffixes_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(GOOD)
    assert load_corpus(path) == [Passage("1", "x")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        (
            "c.jsonl",
            GOOD + b"\n{oops\n",
            "line 3: invalid JSON at column 2 (Expecting property name",
        ),
        ("c.jsonl", GOOD + b"\xff\xfe\n", "line 2: not valid UTF-8; save the file in UTF-8"),
        (
            "c.jsonl",
            GOOD + b"[1]\n",
            "line 2: not a JSON object; write one object per line, such as {",
        ),
        (
            "c.jsonl",
            b'{"contents": "x"}\n',
            'line 1: "id" must be a non-empty string or an integer; write',
        ),
        ("c.jsonl", b'{"id": true, "text": "x"}\n', 'line 1: "id" must be a non-empty string'),
        (
            "c.jsonl",
            b'{"id": "1"}\n',
            'line 1: "contents" is missing, blank or not a string; write',
        ),
        (
            "c.jsonl",
            b'{"id": "1", "text": " "}\n',
            'line 1: "text" is missing, blank or not a string',
        ),
        ("c.jsonl", b'{"id": 1, "text": "x", "title": 3}\n', 'line 1: "title" is not a string'),
        ("c.jsonl", GOOD + GOOD, "line 2: duplicate id '1', first used in line 1; make ids unique"),
        ("c.jsonl", b"\n", " contains no passages; add one record such as {"),
        ("c.parquet", b"PAR1 and no more", ": cannot be read as Parquet ("),
        ("c.csv", GOOD, ": unsupported file type; use .jsonl or .parquet"),
    ],
)
def test_invalid_corpus_is_rejected_with_location_and_remedy(
    tmp_path: Path, name: str, content: bytes, expected: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(CorpusError) as raised:
        load_corpus(path)

    assert str(raised.value).startswith(str(path))
    assert expected in str(raised.value)
    assert "\n" not in str(raised.value)


def test_missing_corpus_file_is_named_in_error(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"absent\.jsonl: no such file; use"):
        load_corpus(tmp_path / "absent.jsonl")


def test_parquet_without_columns_names_row_and_field(tmp_path: Path) -> None:
    path = tmp_path / "corpus.parquet"
    pq.write_table(pa.table({"id": ["1"], "body": ["x"]}), path)
    with pytest.raises(CorpusError, match='row 1: "contents" is missing'):
        load_corpus(path)


def test_vectors_are_mapped_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    np.save(path, np.array([[1.0, 2.0], [3.0, 4.0]]))
    vectors = load_vectors(path, 2, 2)
    assert isinstance(vectors, np.memmap)
    assert vectors.tolist() == [[1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.zeros((3, 2), np.float32), "contains 3 vectors, but the corpus has 2 passages; embed"),
        (np.zeros(2, np.float32), r"expected a float32 array \[N, D\], found float32 \(2,\)"),
        (np.zeros((2, 2), np.int64), r"expected a float32 array \[N, D\], found int64"),
        (np.array([[0, 1, 2], [0, 1, np.nan]]), "row 2 contains NaN or infinity"),
    ],
)
def test_mismatched_vectors_are_rejected(tmp_path: Path, array: np.ndarray, expected: str) -> None:
    path = tmp_path / "vectors.npy"
    np.save(path, array)
    with pytest.raises(CorpusError, match=expected):
        load_vectors(path, 2, 3)


def test_vector_file_in_format_other_than_npy_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    path.write_text("1 2 3")
    with pytest.raises(
        CorpusError, match=r"cannot be read as \.npy .*; write the file with numpy\.save"
    ):
        load_vectors(path, 1, 3)
