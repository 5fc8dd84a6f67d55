"""Tensors and values in archives of `torch.save`, which are the shards of a checkpoint. Pure.

`torch.load` allocates what an archive requests, also with `weights_only`; these functions never
need more memory than the archive has.
"""

import io
import zipfile
from typing import Any

import torch

from .plain_pickle import Global, Instance, read_plain

MAX_PICKLE_BYTES = 2**20
"""Size limit of a value, and of the description of a tensor."""
MAX_DIRECTORY_BYTES = 2**17
"""Size limit of an archive's directory, which has about 60 bytes per file; 20 files are usual."""
_DTYPES = {
    "torch.DoubleStorage": torch.float64,
    "torch.FloatStorage": torch.float32,
    "torch.HalfStorage": torch.float16,
    "torch.BFloat16Storage": torch.bfloat16,
    "torch.LongStorage": torch.int64,
    "torch.IntStorage": torch.int32,
    "torch.ShortStorage": torch.int16,
    "torch.CharStorage": torch.int8,
    "torch.ByteStorage": torch.uint8,
    "torch.BoolStorage": torch.bool,
}


def parse_value(content: bytearray) -> Any:
    """Return the value in an archive: numbers, texts, lists and dicts. Raises ValueError."""
    return read_plain(_Archive(content).pickled(), has_objects=False)


def parse_tensor(content: bytearray) -> torch.Tensor:
    """Return the tensor in an archive, which uses the archive's memory. Raises ValueError."""
    archive = _Archive(content)
    match read_plain(archive.pickled()):
        case Instance("torch._utils._rebuild_tensor_v2", (stored, int(offset), size, stride, *_)):
            return archive.storage(stored).as_strided(_counts(size), _counts(stride), offset)
    raise ValueError("a shard contains no tensor")


class _Archived(io.BytesIO):
    """An archive, of which `zipfile` only reads the directory."""

    def read(self, size: int | None = -1, /) -> bytes:
        is_limited = size is not None and 0 <= size <= MAX_DIRECTORY_BYTES
        content = super().read(size if is_limited else MAX_DIRECTORY_BYTES + 1)
        if len(content) > MAX_DIRECTORY_BYTES:
            raise ValueError("a shard has too many files")
        return content


class _Archive:
    def __init__(self, content: bytearray) -> None:
        self._content = content
        try:
            with zipfile.ZipFile(_Archived(content)) as archive:
                self._files = {each.filename.partition("/")[2]: each for each in archive.infolist()}
        except (zipfile.BadZipFile, NotImplementedError) as error:
            raise ValueError(f"a shard is no archive of PyTorch: {error}") from error

    def pickled(self) -> bytes:
        """Return the pickle, which describes the value or the tensor."""
        start, size = self._place("data.pkl")
        if size > MAX_PICKLE_BYTES:
            raise ValueError(f"a value has more than {MAX_PICKLE_BYTES:,} bytes")
        return bytes(self._content[start : start + size])

    def storage(self, reference: Any) -> torch.Tensor:
        """Return the elements of a storage, 1-D."""
        match reference:
            case Instance("", (("storage", Global(kind), str(key), _, _),)) if kind in _DTYPES:
                start, size = self._place(f"data/{key}")
                content = memoryview(self._content)[start : start + size]
                dtype = _DTYPES[kind]
                return (
                    torch.frombuffer(content, dtype=dtype) if size else torch.empty(0, dtype=dtype)
                )
        raise ValueError("a shard contains no tensor of a known type")

    def _place(self, name: str) -> tuple[int, int]:
        """Return start and size of a file."""
        file = self._files.get(name)
        if file is None or file.compress_type != zipfile.ZIP_STORED:
            raise ValueError(f"{name} is missing or compressed")
        header = self._content[file.header_offset : file.header_offset + 30]
        start = (
            file.header_offset
            + 30
            + sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))
        )
        if start + file.file_size > len(self._content):
            raise ValueError(f"{name} is incomplete")
        return start, file.file_size


def _counts(value: Any) -> tuple[int, ...]:
    if type(value) is not tuple or not all(type(each) is int for each in value):
        raise ValueError("a tensor has no valid size")
    return value
