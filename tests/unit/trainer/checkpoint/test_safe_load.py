import copy
import dataclasses
import io
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_saver import save

from raggrpo_trainer.checkpoint.plain_pickle import read_plain
from raggrpo_trainer.checkpoint.safe_load import (
    MAX_METADATA_BYTES,
    METADATA_SHARE,
    MIN_METADATA_BYTES,
    SafeReader,
    load_into,
)
from raggrpo_trainer.checkpoint.stored_metadata import parse_metadata
from raggrpo_trainer.checkpoint.stored_values import parse_tensor
from raggrpo_trainer.ranks.rank_actor import load_checkpoint
from support.builders.trainer.policies import (
    make_policy,
    parameters,
    uneven_groups,
    write_model,
)

pytestmark = pytest.mark.usefixtures("process_group")


class Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def make_state() -> dict[str, Any]:
    return {"model": {"weight": torch.ones(3)}, "optimizer": {"lr": 0.5}}


def make_checkpoint(folder: Path, state: dict[str, Any]) -> Path:
    save(state, checkpoint_id=folder)
    return folder


def rewrite_metadata(folder: Path, **changes: Any) -> None:
    metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    changed = dataclasses.replace(metadata, **changes)
    (folder / ".metadata").write_bytes(pickle.dumps(changed))


def test_policy_is_saved_and_loaded_with_its_optimizer(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    policy = make_policy(model)
    policy.step(uneven_groups(), step=1)
    folder = make_checkpoint(tmp_path / "saved", policy.state_dict())

    loaded = make_policy(model)
    load_checkpoint(loaded, str(folder))

    assert loaded.checksum() == policy.checksum()
    before, after = parameters(policy), parameters(loaded)
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert SafeReader(folder).saved_keys() == {"model", "optimizer"}


def test_values_are_loaded_besides_tensors(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "saved", make_state())
    state = {"model": {"weight": torch.zeros(3)}, "optimizer": {"lr": 0.1}}

    load_into(state, SafeReader(folder))

    assert state["model"]["weight"].tolist() == [1.0, 1.0, 1.0]  # type: ignore[index]
    assert state["optimizer"]["lr"] == 0.5


@pytest.mark.parametrize("field", ["planner_data", "storage_meta"])
def test_code_in_unused_metadata_is_not_run(tmp_path: Path, field: str) -> None:
    folder = make_checkpoint(tmp_path / "saved", make_state())
    rewrite_metadata(folder, **{field: Planted(tmp_path / "planted")})

    load_into(state := make_state(), SafeReader(folder))

    assert not (tmp_path / "planted").exists()
    assert torch.equal(state["model"]["weight"], torch.ones(3))


@pytest.mark.parametrize("field", ["state_dict_metadata", "storage_data"])
def test_code_in_metadata_is_not_run(tmp_path: Path, field: str) -> None:
    folder = make_checkpoint(tmp_path / "saved", make_state())
    rewrite_metadata(folder, **{field: Planted(tmp_path / "planted")})

    with pytest.raises(ValueError, match="it contains Instance instead of dict"):
        SafeReader(folder).saved_keys()
    with pytest.raises(ValueError, match="it contains Instance instead of dict"):
        load_into(make_state(), SafeReader(folder))
    assert not (tmp_path / "planted").exists()


def test_code_in_value_is_not_run(tmp_path: Path) -> None:
    planted = tmp_path / "planted"
    state = {"optimizer": {"lr": Planted(planted)}}
    folder = make_checkpoint(tmp_path / "saved", state)
    assert not planted.exists()

    with pytest.raises(ValueError, match="a value has no objects"):
        load_into({"optimizer": {"lr": 0.1}}, SafeReader(folder))
    assert not planted.exists()


@pytest.mark.parametrize("content", [b"", b"not a pickle", pickle.dumps({"a": 1})])
def test_metadata_without_state_is_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(ValueError, match=r"\.metadata cannot be read"):
        SafeReader(tmp_path).read_metadata()


@pytest.mark.parametrize("content", [None, b"not a pickle"])
def test_damaged_metadata_is_reported_without_traceback(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None
) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"optimizer": {"lr": 0.1}})
    if content is None:
        (folder / ".metadata").unlink()
    else:
        (folder / ".metadata").write_bytes(content)
    with pytest.raises(ValueError, match=r"\.metadata (is not a regular file|cannot be read)"):
        load_into({"optimizer": {"lr": 0.1}}, SafeReader(folder))
    assert [each for each in caplog.records if each.exc_info] == []


@pytest.mark.parametrize("name", ["../other", "/etc/hostname", "link", "fifo"])
def test_shard_outside_folder_is_not_read(tmp_path: Path, name: str) -> None:
    folder = make_checkpoint(tmp_path / "saved", make_state())
    (tmp_path / "other").write_bytes((folder / "__0_0.distcp").read_bytes())
    (folder / "link").symlink_to(tmp_path / "other")
    os.mkfifo(folder / "fifo")
    metadata: Metadata = pickle.loads((folder / ".metadata").read_bytes())
    stored = {
        index: dataclasses.replace(info, relative_path=name)
        for index, info in metadata.storage_data.items()
    }
    rewrite_metadata(folder, storage_data=stored)

    with pytest.raises(ValueError, match=r"is not the name of|is a link|not a regular"):
        load_into(make_state(), SafeReader(folder))


def test_metadata_of_140_000_shards_is_read() -> None:
    """Read what 70B parameters on 64 ranks have, and have room for 1,024 ranks and for adapters."""
    ranks, tensors = 64, 2190
    names = [f"optimizer.exp_avg.layers.{number}.mlp.down_proj.weight" for number in range(tensors)]
    shard = torch.Size([128, 8192])
    starts = [torch.Size([128 * rank, 0]) for rank in range(ranks)]
    entry = TensorStorageMetadata(
        TensorProperties(),
        torch.Size([128 * ranks, 8192]),
        [ChunkStorageMetadata(start, shard) for start in starts],
    )
    stored = {
        # As after a save of many ranks, no shard shares the text of its name with another.
        MetadataIndex(f"{name} "[:-1], starts[rank], rank): _StorageInfo(f"__{rank}_0.distcp", 0, 1)
        for name in names
        for rank in range(ranks)
    }
    content = pickle.dumps(Metadata({name: copy.deepcopy(entry) for name in names}, None, stored))

    metadata = parse_metadata(content)

    assert len(metadata.storage_data) == ranks * tensors
    assert metadata.storage_data[MetadataIndex(names[-1], starts[-1], ranks - 1)].length == 1
    assert 1024 // ranks * len(content) < MAX_METADATA_BYTES
    smallest_shard = io.BytesIO()
    torch.save(torch.zeros(1, 8), smallest_shard)
    files = ranks * tensors * len(smallest_shard.getvalue())
    assert len(content) < MIN_METADATA_BYTES + files // METADATA_SHARE


class ByGetattr:
    """Pickles as `getattr(owner, name)`, as Python before 3.11.4 does for members of an Enum."""

    def __init__(self, owner: object, name: str) -> None:
        self._owner, self._name = owner, name

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._owner, self._name)


def test_enum_members_of_older_python_are_read() -> None:
    member = _MEM_FORMAT_ENCODING.TORCH_PRESERVE_FORMAT
    pickled = pickle.dumps(ByGetattr(_MEM_FORMAT_ENCODING, member.name))

    assert read_plain(pickled).name == "builtins.getattr"


TENSORS = {
    "transposed": torch.arange(12.0).reshape(3, 4).T,
    "no elements": torch.zeros(0, 4),
    "0-D": torch.tensor(7.0),
    "part of a storage": torch.arange(100.0)[3:9],
    **{
        str(dtype): torch.ones(5, dtype=dtype)
        for dtype in (torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool)
    },
}


@pytest.mark.parametrize("tensor", TENSORS.values(), ids=TENSORS.keys())
def test_stored_tensor_is_loaded(tmp_path: Path, tensor: torch.Tensor) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"tensor": tensor})
    state = {"tensor": torch.zeros_like(tensor)}

    load_into(state, SafeReader(folder))

    assert torch.equal(state["tensor"], tensor)


VALUES = [
    (0.5, 0.0),
    (7, 0),
    (True, False),
    (None, None),
    ("text", ""),
    ([1, "a", 2.5], [0, "", 0.0]),
    ((0.9, 0.95), (0.0, 0.0)),
]


@pytest.mark.parametrize(("value", "current"), VALUES)
def test_stored_value_is_loaded(tmp_path: Path, value: object, current: object) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"value": value})
    state = {"value": current}

    load_into(state, SafeReader(folder))

    assert state["value"] == value


def test_value_of_another_type_is_rejected(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"scale": [1.0]})

    with pytest.raises(ValueError, match="scale is a list in the checkpoint"):
        load_into({"scale": 1.0}, SafeReader(folder))


@pytest.mark.parametrize(
    ("stored", "problem"),
    [
        (("x", "y"), "scale contains str"),
        ((0.9, [0.95]), "scale contains list"),
        ((0.9, float("nan")), "scale contains NaN, infinity"),
        ((float("inf"), 0.9), "scale contains NaN, infinity"),
        ((0.9,) * 100_000, "scale has 100,000 items in the checkpoint, not 2"),
        ((), "scale has 0 items in the checkpoint, not 2"),
    ],
)
def test_value_with_other_items_is_rejected(tmp_path: Path, stored: object, problem: str) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"scale": stored})

    with pytest.raises(ValueError, match=problem):
        load_into({"scale": (0.9, 0.99)}, SafeReader(folder))


@pytest.mark.parametrize(
    "stored",
    [float("nan"), -float("inf"), 2**2000, -(2**2000), 1e39],
    ids=["NaN", "infinity", "int", "negative int", "float"],
)
def test_number_that_is_not_finite_or_too_large_is_rejected(tmp_path: Path, stored: float) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"lr": stored})

    with pytest.raises(ValueError, match="lr contains NaN, infinity or a number that is too large"):
        load_into({"lr": 0.1}, SafeReader(folder))


@pytest.mark.parametrize("stored", [torch.int64, torch.bool, torch.float64, torch.float16])
def test_tensor_of_another_type_is_rejected(tmp_path: Path, stored: torch.dtype) -> None:
    folder = make_checkpoint(tmp_path / "saved", {"weight": torch.ones(3, dtype=stored)})

    with pytest.raises(ValueError, match=f"weight has type {stored} instead of torch.float32"):
        load_into({"weight": torch.zeros(3)}, SafeReader(folder))


def test_archive_with_many_files_is_rejected() -> None:
    torch.save(torch.zeros(20_000), saved := io.BytesIO())
    with zipfile.ZipFile(saved, "a") as archive:
        for number in range(3_000):
            archive.writestr(f"archive/x{number}", b"")

    with pytest.raises(ValueError, match="a shard has too many files"):
        parse_tensor(bytearray(saved.getvalue()))


Chunks = list[tuple[tuple[int, ...], tuple[int, ...]]]
"""Offset and size of each chunk."""


def read_chunks(size: tuple[int, ...], chunks: Chunks) -> Metadata:
    stored = {
        MetadataIndex("w", torch.Size(offset), number): _StorageInfo("x", 0, 1)
        for number, (offset, _) in enumerate(chunks)
    }
    entry = TensorStorageMetadata(
        TensorProperties(),
        torch.Size(size),
        [ChunkStorageMetadata(torch.Size(offset), torch.Size(part)) for offset, part in chunks],
    )
    # Chunks of equal offset share an entry; other entries take the place of the missing ones.
    stored |= {
        MetadataIndex(f"v{number}", torch.Size([0])): _StorageInfo("x", 0, 1)
        for number in range(len(chunks))
    }
    return parse_metadata(pickle.dumps(Metadata({"w": entry}, None, stored)))


OVERLAPPING: dict[str, tuple[tuple[int, ...], Chunks]] = {
    "equal": ((4, 4), [((0, 0), (2, 4)), ((0, 0), (2, 4))]),
    "overlap by a row": ((6, 4), [((0, 0), (3, 4)), ((2, 0), (3, 4))]),
    "columns": ((4, 4), [((0, 1), (4, 2)), ((0, 1), (4, 2))]),
    "within another": ((6,), [((0,), (4,)), ((1,), (2,))]),
    "gap and overlap of three": ((9,), [((0,), (3,)), ((2,), (3,)), ((6,), (3,))]),
    "crossed": ((4, 4), [((0, 0), (4, 2)), ((0, 0), (2, 4))]),
    "number twice": ((), [((), ()), ((), ())]),
}


@pytest.mark.parametrize("name", OVERLAPPING)
def test_chunks_that_overlap_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="the chunks of a tensor do not fill it"):
        read_chunks(*OVERLAPPING[name])


DISJOINT: dict[str, tuple[tuple[int, ...], Chunks]] = {
    "whole": ((4, 4), [((0, 0), (4, 4))]),
    "rows in any order": ((5, 4), [((3, 0), (2, 4)), ((0, 0), (3, 4))]),
    "columns": ((4, 4), [((0, 0), (4, 2)), ((0, 2), (4, 2))]),
    "empty chunk of a rank": ((1, 4), [((0, 0), (1, 4)), ((1, 0), (0, 4))]),
    "no elements": ((0, 4), [((0, 0), (0, 4))]),
    "number": ((), [((), ())]),
}


@pytest.mark.parametrize("name", DISJOINT)
def test_chunks_that_fill_a_tensor_are_accepted(name: str) -> None:
    size, chunks = DISJOINT[name]
    entry = read_chunks(size, chunks).state_dict_metadata["w"]
    assert isinstance(entry, TensorStorageMetadata)
    assert len(entry.chunks) == len(chunks)
