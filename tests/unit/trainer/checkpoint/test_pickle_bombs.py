"""Small metadata and shards that ask for much memory or time: rejected within limits of both."""

import dataclasses
import io
import json
import os
import pickle
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from raggrpo_trainer.checkpoint.hashing_save import save_hashed

MODULE = "torch.distributed.checkpoint"
LOAD = """
import json, resource, signal, sys, warnings
from pathlib import Path
import torch
from raggrpo_trainer.checkpoint.safe_load import SafeReader, load_into
warnings.simplefilter("ignore")

def load(folder):
    load_into({"model": {"w": torch.zeros(4, 4)}, "lr": 1.0}, SafeReader(folder))

def ending(folder):
    signal.setitimer(signal.ITIMER_PROF, 20)  # CPU time
    try:
        load(folder)
    except BaseException as error:
        return type(error).__name__ + ": " + str(error)
    return "loaded"

used = 4096 * int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, used + 2**30))
signal.signal(signal.SIGPROF, lambda *_: exec("raise TimeoutError"))
print(json.dumps({folder: ending(Path(folder)) for folder in sys.argv[1:]}))
"""
Attack = Callable[[Path], object]


def with_metadata(content: bytes) -> Attack:
    return lambda folder: (folder / ".metadata").write_bytes(content)


def with_changes(change: Callable[[Metadata], object]) -> Attack:
    def attack(folder: Path) -> None:
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        change(metadata)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata))

    return attack


def with_shard(fqn: str, archive: Callable[[], bytes]) -> Attack:
    """Replace the archive of a tensor or value."""

    def attack(folder: Path) -> None:
        (folder / "own.distcp").write_bytes(content := archive())
        own = {"relative_path": "own.distcp", "offset": 0, "length": len(content)}
        with_changes(lambda metadata: change_shards(metadata, fqn, **own))(folder)

    return attack


def change_shards(metadata: Metadata, fqn: str = "", **changes: Any) -> None:
    metadata.storage_data = {
        index: dataclasses.replace(info, **changes) if index.fqn.startswith(fqn) else info
        for index, info in metadata.storage_data.items()
    }


def tensor_of(metadata: Metadata) -> TensorStorageMetadata:
    [tensor] = (each for each in metadata.state_dict_metadata.values() if hasattr(each, "chunks"))
    return tensor


def archive(value: object, **records: bytes) -> bytes:
    """Return an archive of `torch.save`, with some of its files replaced."""
    saved, changed = io.BytesIO(), io.BytesIO()
    torch.save(value, saved)
    with zipfile.ZipFile(saved) as source, zipfile.ZipFile(changed, "w") as target:
        for file in source.infolist():
            target.writestr(file, records.get(file.filename.split("/")[-1], source.read(file)))
    return changed.getvalue()


def value_of(pickled: bytes) -> Callable[[], bytes]:
    return lambda: archive(0.5, **{"data.pkl": pickled})


def deflated_archive() -> bytes:
    """Return an archive whose storage has 1.4 GB, compressed."""
    saved, size = io.BytesIO(), 1400 << 20
    torch.save(torch.zeros(1, dtype=torch.uint8), saved)
    changed = io.BytesIO()
    with (
        zipfile.ZipFile(saved) as source,
        zipfile.ZipFile(changed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for file in source.infolist():
            if file.filename.endswith("data/0"):
                with target.open(file.filename, "w") as storage:
                    for _ in range(1400):
                        storage.write(bytes(1 << 20))
            else:
                numel = b"J" + struct.pack("<i", size) + b"tq\x02Q"
                content = source.read(file).replace(b"K\x01tq\x02Q", numel)
                target.writestr(file.filename, content)
    return changed.getvalue()


def legacy_archive(pickled: bytes) -> Callable[[], bytes]:
    """Return a file in the format before PyTorch 1.6."""
    head = [0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True}]
    return lambda: b"".join(pickle.dumps(each, 2) for each in head) + pickled + pickle.dumps([], 2)


def saved(value: object) -> Callable[[], bytes]:
    def content() -> bytes:
        torch.save(value, file := io.BytesIO())
        return file.getvalue()

    return content


def sparse_file(folder: Path) -> None:
    """Let a tensor's archive have 8 GB, most of which is a hole."""
    with (folder / "own.distcp").open("wb") as file:
        file.truncate(8 << 30)
    shard = {"relative_path": "own.distcp", "offset": 0, "length": 8 << 30}
    with_changes(lambda metadata: change_shards(metadata, "model", **shard))(folder)


def shared_chunks(metadata: Metadata) -> None:
    """Let 20,000 tensors share a list of 20,000 chunks."""
    [(index, info), *_] = metadata.storage_data.items()
    numbers = range(20_000)
    metadata.storage_data = {dataclasses.replace(index, fqn=f"n{n}"): info for n in numbers}
    tensor = tensor_of(metadata)
    tensor.chunks *= 20_000
    metadata.state_dict_metadata = {
        f"n{n}": TensorStorageMetadata(tensor.properties, tensor.size, tensor.chunks)
        for n in numbers
    }


SHARED = b")\x940" + b"".join(b"h%ch%c\x86\x940" % (each, each) for each in range(60)) + b"h<"
"""2**60 nested tuples, by references to the one before; only the last one stays on the stack."""
SIZE = b"ctorch\nSize\n"
PATH = b"cpathlib\nPosixPath\n"
STORAGE_INFO = b"ctorch.distributed.checkpoint.filesystem\n_StorageInfo\n"
METADATA: dict[str, Attack] = {
    "one long name of many classes": with_metadata(
        b"\x80\4(X"
        + (800).to_bytes(4, "little")
        + "🎲".encode() * 200
        + b"\x94"
        + b"h\0h\0\x93" * 3_000_000
        + b"t."
    ),
    "many classes": with_metadata(
        b"\x80\4(" + b"".join(b"cm\n%d\n" % i for i in range(1_000_000)) + b"t."
    ),
    "13 million numbered values": with_metadata(b"\x80\4(" + b"N\x94" * 13_000_000 + b"t."),
    "5 million numbered values": with_metadata(b"\x80\4(" + b"NN\x94" * 5_000_000 + b"t."),
    "more than the files need": with_metadata(b"\x80\4(" + b"N" * 17_000_000 + b"t."),
    "shared tuples as a key": with_metadata(b"\x80\x04}" + SHARED + b"Ns."),
    "deep tuple as a key": with_metadata(b"\x80\x04})" + b"\x85" * 3_000_000 + b"Ns."),
    "equal hashes": with_metadata(
        b"\x80\x02}("
        + b"".join(pickle.dumps(each * (2**61 - 1), 2)[2:-1] + b"N" for each in range(1, 200_000))
        + b"u."
    ),
    "copies of a size": with_metadata(
        b"\x80\x04("
        + b"K\x01" * 100_000
        + b"t\x85\x940"
        + SIZE
        + b"\x94"
        + b"h\x01h\x00R" * 100_000
        + b"."
    ),
    "copies of a state": with_metadata(
        b"\x80\x04}\x94("
        + b"".join(b"\x8c\x05%05dN" % each for each in range(90_000))
        + b"u"
        + STORAGE_INFO
        + b"\x94"
        + b"h\x01)\x81h\x00b" * 100_000
        + b"."
    ),
    "attribute of a class": with_metadata(
        b"\x80\x02" + PATH + b"N}X\x0a\x00\x00\x00is_symlink" + PATH + b"s\x86b."
    ),
    "memo index": with_metadata(b"\x80\x02)r\xff\xff\xff\x07."),
    "bytearray of 8 GB": with_metadata(b"\x80\x05\x96" + struct.pack("<Q", 8 << 30) + b"."),
    "bytes of 8 GB": with_metadata(b"\x80\x05\x8e" + struct.pack("<Q", 8 << 30) + b"."),
    "text of 4 GB": with_metadata(b"\x80\x05X" + struct.pack("<I", 2**32 - 1) + b"."),
    "frame of 8 GB": with_metadata(b"\x80\x05\x95" + struct.pack("<Q", 8 << 30) + b"N."),
    "number of 50 MB": with_metadata(
        b"\x80\x02\x8b" + struct.pack("<i", 20 << 20) + b"\x01" * (20 << 20) + b"."
    ),
    "decimal digits": with_metadata(b"L" + b"9" * 5_000_000 + b"L\n."),
    "lists": with_metadata(b"\x80\x02" + b"]" * 20_000_000 + b"."),
    "sets": with_metadata(b"\x80\x04" + b"\x8f" * 20_000_000 + b"."),
    "dicts": with_metadata(b"\x80\x02" + b"}" * 20_000_000 + b"."),
    "marks": with_metadata(b"\x80\x02" + b"(" * 20_000_000 + b"."),
    "nothing but None": with_metadata(b"\x80\x02" + b"N" * 10_000_000 + b"."),
    "64 MB": with_metadata(pickle.dumps("x" * (64 << 20))),
    "extension": with_metadata(b"\x80\x02\x82\x01."),
    "persistent id": with_metadata(b"\x80\x02P1\n."),
    "two values": with_metadata(b"\x80\x02NN."),
    "no end": with_metadata(b"\x80\x02N"),
    "storage data: list": with_changes(lambda m: setattr(m, "storage_data", [1])),
    "storage data: other objects": with_changes(
        lambda m: setattr(m, "storage_data", dict.fromkeys(m.storage_data, Path("/etc/passwd")))
    ),
    "storage data: nothing": with_changes(lambda m: setattr(m, "storage_data", None)),
    "storage data: empty": with_changes(lambda m: setattr(m, "storage_data", {})),
    "chunks: one list for all tensors": with_changes(shared_chunks),
    "state: list": with_changes(lambda m: setattr(m, "state_dict_metadata", [1, 2])),
    "state: numbers": with_changes(lambda m: setattr(m, "state_dict_metadata", {"lr": 1})),
    "path: a Path": with_changes(lambda m: change_shards(m, relative_path=Path("x"))),
    "path: not text": with_changes(lambda m: change_shards(m, relative_path=("a", "b"))),
    "path: the folder": with_changes(lambda m: change_shards(m, relative_path=".")),
    "offset: negative": with_changes(lambda m: change_shards(m, offset=-100)),
    "offset: large": with_changes(lambda m: change_shards(m, offset=2**62)),
    "offset: beyond the end": with_changes(lambda m: change_shards(m, offset=2**40)),
    "length: large": with_changes(lambda m: change_shards(m, length=2**62)),
    "length: text": with_changes(lambda m: change_shards(m, length="x")),
    "length: true": with_changes(lambda m: change_shards(m, length=True)),
    "length: 0": with_changes(lambda m: change_shards(m, length=0)),
    "transformed": with_changes(lambda m: change_shards(m, transform_descriptors=["zstd"])),
    "chunks: 1,000,000": with_changes(
        lambda m: tensor_of(m).chunks.extend(tensor_of(m).chunks * 1_000_000)
    ),
    "chunks: none": with_changes(lambda m: tensor_of(m).chunks.clear()),
    "chunks: 2**60 elements": with_changes(
        lambda m: setattr(tensor_of(m).chunks[0], "sizes", torch.Size([2**30, 2**30]))
    ),
    "chunks: other dimensions": with_changes(
        lambda m: setattr(tensor_of(m).chunks[0], "offsets", torch.Size([0] * 7))
    ),
    "size: 2**60 elements": with_changes(
        lambda m: setattr(tensor_of(m), "size", torch.Size([2**30, 2**30]))
    ),
    "size: 100,000 dimensions": with_changes(
        lambda m: setattr(tensor_of(m), "size", torch.Size([1] * 100_000))
    ),
    "size: list": with_changes(lambda m: setattr(tensor_of(m), "size", [4, 4])),
    "sparse file": sparse_file,
}
SHARDS: dict[str, Attack] = {
    "value: bytearray of 1.4 GB": with_shard(
        "lr",
        value_of(b"\x80\x02c__builtin__\nbytearray\nJ" + struct.pack("<i", 1400 << 20) + b"\x85R."),
    ),
    "value: legacy bytearray of 1.4 GB": with_shard(
        "lr",
        legacy_archive(
            b"\x80\x02c__builtin__\nbytearray\nJ" + struct.pack("<i", 1400 << 20) + b"\x85R."
        ),
    ),
    "value: OrderedDict": with_shard("lr", value_of(b"\x80\x02ccollections\nOrderedDict\n)R.")),
    "value: memo index": with_shard("lr", value_of(b"\x80\x02)r\xff\xff\xff\x07.")),
    "value: tensor": with_shard("lr", saved(torch.ones(1))),
    "value: list": with_shard("lr", saved([[[1.0]]])),
    "value: shared tuples": with_shard("lr", value_of(b"\x80\x02" + SHARED + b".")),
    "value: 2 MB": with_shard("lr", saved("x" * (2 << 20))),
    "value: empty": with_shard("lr", lambda: b""),
    "value: no zip": with_shard("lr", lambda: b"PK\x05\x06" + bytes(10)),
    "value: compressed": with_shard("lr", deflated_archive),
    "tensor: compressed": with_shard("model", deflated_archive),
    "tensor: expanded": with_shard("model", saved(torch.zeros(1).expand(10**12))),
    "tensor: sparse": with_shard(
        "model",
        saved(torch.sparse_coo_tensor(torch.tensor([[0]]), torch.tensor([1.0]), (2**40,))),
    ),
    "tensor: on meta": with_shard("model", saved(torch.zeros(4, 4, device="meta"))),
    "tensor: parameter": with_shard("model", saved(torch.nn.Parameter(torch.zeros(4, 4)))),
    "tensor: number": with_shard("model", saved(1.0)),
    "tensor: other size": with_shard("model", saved(torch.zeros(2, 2))),
    "tensor: 3-D": with_shard("model", saved(torch.zeros(4, 4, 4))),
    "tensor: quantized": with_shard(
        "model", saved(torch.quantize_per_tensor(torch.zeros(4, 4), 0.1, 0, torch.quint8))
    ),
    "tensor: short storage": with_shard(
        "model", lambda: archive(torch.zeros(4, 4), **{"0": bytes(12)})
    ),
    "tensor: no storage": with_shard("model", value_of(b"\x80\x02N.")),
}
ATTACKS = METADATA | SHARDS


@pytest.fixture(scope="module")
def endings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return how loading ended, by attack; all in a process with 1 GiB more than it starts with."""
    root = tmp_path_factory.mktemp("bombs")
    folders = {name: root / str(number) for number, name in enumerate(ATTACKS)}
    for name, folder in folders.items():
        save_hashed({"model": {"w": torch.ones(4, 4)}, "lr": 0.5}, folder)
        ATTACKS[name](folder)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOAD, *map(str, folders.values())]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    ended = json.loads(done.stdout)
    return {name: ended[str(folder)] for name, folder in folders.items()}


@pytest.mark.parametrize("attack", ATTACKS)
def test_hostile_file_is_rejected_within_limits(endings: dict[str, str], attack: str) -> None:
    ending = endings[attack]

    assert ending.startswith(("ValueError: ", "UnsuitableFile: "))
    assert len(ending) < 600
    assert "\n" not in ending
