"""Write Parquet files that consist of a footer, in Thrift's compact protocol."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from .limited_process import Make

_I32, _I64, _BYTES, _LIST, _STRUCT = 5, 6, 8, 9, 12
"""Types of fields in Thrift's compact protocol."""
Field = tuple[int, int, bytes]
"""Number, type and encoded value."""


def footer(
    names: Sequence[str], columns: int, groups: int = 1, rows: int = 1, encrypted: int = 0
) -> Make:
    """Return a function that writes a file with text columns of these names.

    It has row groups with `columns` column chunks each, which have no metadata; the last
    `encrypted` ones are encrypted with a key of their column. The numbers of rows are `rows`.
    """

    def make(path: Path) -> None:
        leaves = [
            _struct((1, _I32, _int(6)), (3, _I32, _int(1)), (4, _BYTES, _bytes(name.encode())))
            for name in names
        ]
        root = _struct((4, _BYTES, _bytes(b"root")), (5, _I32, _int(len(names))))
        chunk = _struct((2, _I64, _int(4)))
        key = _struct((2, _STRUCT, _struct((1, _LIST, _structs([])))))
        chunks = [chunk] * (columns - encrypted)
        chunks += [_struct((2, _I64, _int(4)), (8, _STRUCT, key))] * encrypted
        group = _struct((1, _LIST, _structs(chunks)), (2, _I64, _int(1)), (3, _I64, _int(rows)))
        content = _struct(
            (1, _I32, _int(2)),
            (2, _LIST, _structs([root, *leaves])),
            (3, _I64, _int(rows)),
            (4, _LIST, _structs([group] * groups)),
        )
        path.write_bytes(b"PAR1" + content + len(content).to_bytes(4, "little") + b"PAR1")

    return make


def repeated_text(names: Sequence[str], size: int, rows: int) -> Make:
    """Return a function that writes a file whose rows refer to one text of `size` characters.

    The footer states that the column with the text has a few bytes.
    """

    def make(path: Path) -> None:
        indices = pa.array([0] * rows, pa.int32())
        text = pa.DictionaryArray.from_arrays(indices, pa.array(["a" * size]))
        other = pa.array([str(row) for row in range(rows)])
        table = pa.table({names[0]: text, names[1]: other})
        limit = 2 * size
        options = {"store_schema": False, "dictionary_pagesize_limit": limit}
        pq.write_table(table, path, compression="zstd", **options)
        _understate_size(path)

    return make


def _understate_size(path: Path) -> None:
    """Change the size of the first column in the footer to a number of as many bytes."""
    content = path.read_bytes()
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    real = _int(pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size)
    small = b"\xc8" + b"\x80" * (len(real) - 2) + b"\0"
    assert content.count(real, start) == 1
    path.write_bytes(content[:start] + content[start:].replace(real, small))


def _struct(*fields: Field) -> bytes:
    """Encode fields in ascending order of their numbers."""
    previous = [0, *(number for number, _, _ in fields)]
    content = (
        bytes([(number - before) << 4 | kind]) + value
        for before, (number, kind, value) in zip(previous, fields, strict=False)
    )
    return b"".join(content) + b"\0"


def _structs(values: Sequence[bytes]) -> bytes:
    return bytes([0xF0 | _STRUCT]) + _varint(len(values)) + b"".join(values)


def _bytes(value: bytes) -> bytes:
    return _varint(len(value)) + value


def _int(value: int) -> bytes:
    return _varint(value << 1 if value >= 0 else -value * 2 - 1)  # zigzag encoding


def _varint(value: int) -> bytes:
    groups = [value >> shift & 0x7F for shift in range(0, max(1, value.bit_length()), 7)]
    return bytes([*(each | 0x80 for each in groups[:-1]), groups[-1]])
