"""Data files and corpora made to exhaust memory, to hang or to read files elsewhere."""

import gzip
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.hostile.limited_process import Make, outcomes
from support.hostile.special_files import SECRET, SPECIAL_FILES


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


def nested(depth: int) -> Make:
    return lambda path: path.write_text('{"prompt": ' + "[" * depth + "]" * depth + "}\n")


JSONL: dict[str, Make] = {
    "line of 5 GB": large_line,
    "deep nesting": nested(100_000),
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
    "data .parquet long value, often": "its rows need more than",
    "data .parquet short value, very often": "its rows need more than",
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
}
"""Reasons of rejections that other problems of a file must not hide."""


@pytest.mark.parametrize("name", ALL)
def test_hostile_file_is_rejected_within_limits(checked: dict[str, str], name: str) -> None:
    assert checked[name].startswith("rejected: "), checked[name][-1500:]
    assert "MemoryError" not in checked[name]
    assert SECRET not in checked[name]
    assert REASONS.get(name, "") in checked[name]


@pytest.mark.parametrize("name", [*SPECIAL_FILES, "header of a terabyte", "pickle", "archive"])
def test_hostile_vectors_are_rejected_within_limits(tmp_path: Path, name: str) -> None:
    path = tmp_path / "vectors.npy"
    if name in SPECIAL_FILES:
        SPECIAL_FILES[name](path)
    elif name == "pickle":
        np.save(path, np.array([{"a": 1}], object), allow_pickle=True)
    elif name == "archive":
        with path.open("wb") as file:
            np.savez_compressed(file, a=np.zeros(10_000_000))
    else:
        header = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 250000000000), }"
        text = header.ljust(117) + "\n"
        path.write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode())

    [outcome] = outcomes("vectors", [path]).values()

    assert outcome.startswith("rejected: "), outcome[-1500:]
