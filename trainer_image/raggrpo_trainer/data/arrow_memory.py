"""Estimate the memory of parquet rows before they become Python objects. Pure."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from raggrpo_api.foreign_files import VALUE_BYTES


def repeated_texts(schema: pq.ParquetSchema) -> list[str]:
    """Return the paths of texts in lists.

    They must be read as dictionaries: a list may refer to one value any number of times.
    """
    columns = (schema.column(i) for i in range(len(schema)))
    return [each.path for each in columns if _is_repeated(each, "BYTE_ARRAY")]


def repeated_sizes(schema: pq.ParquetSchema, names: Sequence[str]) -> dict[int, int]:
    """Return the sizes of values of fixed size in lists, by the number of their column.

    They cannot be read as dictionaries. Only columns below `names` are included.
    """
    columns = ((i, schema.column(i)) for i in range(len(schema)))
    prefixes = tuple(f"{name}." for name in names)
    return {
        i: each.length
        for i, each in columns
        if _is_repeated(each, "FIXED_LEN_BYTE_ARRAY") and f"{each.path}.".startswith(prefixes)
    }


def _is_repeated(column: pq.ColumnSchema, physical_type: str) -> bool:
    return bool(column.max_repetition_level) and column.physical_type == physical_type


def batch_memory(batch: pa.RecordBatch) -> int:
    """Return the approximate memory of the rows of a batch as Python objects."""
    return sum(map(_memory, batch.columns))


def _memory(array: pa.Array) -> int:
    """Return the approximate memory of the values of an array as Python objects."""
    kind = array.type
    size = VALUE_BYTES * len(array)
    if pa.types.is_dictionary(kind):
        lengths = pc.binary_length(array.dictionary)
        return size + int(pc.sum(lengths.take(array.indices), min_count=0).as_py())
    if pa.types.is_map(kind):
        start, end = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return size + sum(_memory(each[start:end]) for each in (array.keys, array.items))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return size + _memory(array.flatten())
    if pa.types.is_struct(kind):
        return size + sum(map(_memory, array.flatten()))
    return size + int(array.nbytes)
