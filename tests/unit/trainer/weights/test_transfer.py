import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from raggrpo_api.spec.resources import ResourcesSpec
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.weights.backend import WeightTransferBackend, weight_transfer_backend
from raggrpo_trainer.weights.chunk_sources import NcclSource, chunk_source
from raggrpo_trainer.weights.transfer import ChunkTransfer, ChunkTransferFailed, FileTransfer


class FakeReceiver:
    """Receiver that records calls and fails at one chunk."""

    def __init__(self, pid: int, num_devices: int = 1, fails_at: int | None = None) -> None:
        self.process = PodProcess("node", pid)
        self.num_devices = num_devices
        self.fails_at = fails_at
        self.calls: list[Any] = []

    async def load_file(self, version: int, handle: str, data: Any) -> None:
        self.calls.append((version, handle, data))

    async def wake(self) -> None:
        raise AssertionError("the pool wakes engines, as it can replace them")

    async def start_update(self, init_info: Mapping[str, Any] | None) -> None:
        self.calls.append(init_info)

    async def load_chunk(self, chunk: Mapping[str, Any]) -> None:
        self.calls.append(chunk["names"])
        if self.fails_at == len(self.calls) - 2:
            raise ConnectionError("the engine died")

    async def finish_update(self, version: int) -> None:
        self.calls.append(version)


class TwoRanks:
    """Two ranks that send three chunks; broadcast number `hangs_at` never returns."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.arguments: list[Mapping[str, Any]] = []
        self.remaining: list[str] = []
        self.hangs_at = 0

    async def call(self, method: str, on_all: bool, arguments: Mapping[str, Any]) -> list[Any]:
        self.calls.append(method)
        self.arguments.append(arguments)
        if method == "address":
            return [("10.0.0.1", 1234)]
        if method == "next_chunk":
            assert on_all, "gathering a tensor is collective"
            self.remaining = ["a", "b", "c"] if arguments["first"] else self.remaining[1:]
            return [self._chunk(gpu, arguments["backend"]) for gpu in ("gpu-0", "gpu-1")]
        if method == "broadcast_chunk" and self.calls.count(method) == self.hangs_at:
            await asyncio.Event().wait()
        return [None]

    async def write_file(self) -> FileTransfer:
        return FileTransfer(7, "/dev/shm/file", "node", fetch=lambda: None)

    def _chunk(self, gpu: str, backend: WeightTransferBackend) -> dict[str, Any] | None:
        if not self.remaining:
            return None
        chunk: dict[str, Any] = {
            "names": [self.remaining[0]],
            "dtype_names": ["bfloat16"],
            "shapes": [[2]],
        }
        is_ipc = backend is WeightTransferBackend.IPC
        return chunk | ({"tensor_sizes": [4], "handle": gpu.encode()} if is_ipc else {})


@pytest.mark.parametrize(
    ("resources", "backend"),
    [
        ({"device": "CPU"}, WeightTransferBackend.SHARED_MEMORY),
        ({"device": "CPU", "placement": "Disaggregated"}, WeightTransferBackend.SHARED_MEMORY),
        ({"placement": "Colocated"}, WeightTransferBackend.IPC),
        ({"placement": "Disaggregated"}, WeightTransferBackend.NCCL),
    ],
)
def test_weight_transfer_backend_depends_on_device_and_placement(
    resources: dict[str, Any], backend: WeightTransferBackend
) -> None:
    assert weight_transfer_backend(ResourcesSpec.model_validate(resources)) is backend


def chunk_transfer(
    ranks: TwoRanks, backend: WeightTransferBackend, version: int = 7
) -> ChunkTransfer:
    return ChunkTransfer(version, chunk_source(backend, ranks.call), ranks.write_file)


async def test_ipc_transfer_sends_each_chunk_to_all_engines() -> None:
    ranks = TwoRanks()
    engines = [FakeReceiver(1), FakeReceiver(2)]
    chunks: list[Mapping[str, Any]] = []

    async def load_chunk(chunk: Mapping[str, Any]) -> None:
        chunks.append(chunk)

    engines[1].load_chunk = load_chunk  # type: ignore[method-assign]

    transfer = chunk_transfer(ranks, WeightTransferBackend.IPC)
    assert transfer.needs_all_engines
    await transfer.prepare()
    assert ranks.calls == ["free_chunks"], "ranks free memory before an engine wakes"
    assert await transfer.load_into(engines) == [None, None]

    assert engines[0].calls == [{"packed": True}, ["a"], ["b"], ["c"], 7]
    assert chunks == [
        {
            "names": [name],
            "dtype_names": ["bfloat16"],
            "shapes": [[2]],
            "tensor_sizes": [4],
            "handles": [b"gpu-0", b"gpu-1"],
        }
        for name in "abc"
    ]
    assert ranks.calls[1:] == [*["next_chunk"] * 4, "free_chunks"], "the buffer stays mapped"


@pytest.mark.row("G3")
@pytest.mark.parametrize("backend", [WeightTransferBackend.IPC, WeightTransferBackend.NCCL])
async def test_engine_loss_during_chunk_transfer_fails_without_hanging(
    backend: WeightTransferBackend,
) -> None:
    ranks = TwoRanks()
    engines = [FakeReceiver(1), FakeReceiver(2, fails_at=1)]
    ranks.hangs_at = 2  # in a broadcast, waiting for the lost engine

    with pytest.raises(ChunkTransferFailed, match="the engine died"):
        async with asyncio.timeout(10):
            await chunk_transfer(ranks, backend).load_into(engines)

    assert engines[0].calls[-1] != 7


async def test_replacement_engine_loads_weights_from_file() -> None:
    engine = FakeReceiver(3)
    transfer = chunk_transfer(TwoRanks(), WeightTransferBackend.NCCL)
    await transfer.load_into_replacement(engine)
    assert engine.calls == [(7, "/dev/shm/file", None)]


async def test_nccl_group_is_formed_once_and_rebuilt_after_engine_replacement() -> None:
    ranks = TwoRanks()
    source = NcclSource(ranks.call)
    engines: Sequence[FakeReceiver] = [
        FakeReceiver(1, num_devices=2),
        FakeReceiver(2, num_devices=2),
    ]

    await ChunkTransfer(1, source, ranks.write_file).load_into(engines)
    await ChunkTransfer(2, source, ranks.write_file).load_into(engines)

    group = {"master_address": "10.0.0.1", "master_port": 1234, "world_size": 5}
    assert engines[0].calls[0] == group | {"rank_offset": 1}
    assert engines[1].calls[0] == group | {"rank_offset": 3}
    assert engines[0].calls[5] is None, "already connected"
    assert ranks.calls.count("join_nccl_group") == 1
    assert ranks.calls.count("broadcast_chunk") == 6
    assert {"address": ("10.0.0.1", 1234), "world_size": 5} in ranks.arguments

    with_replacement = [engines[0], FakeReceiver(4, num_devices=2)]
    await ChunkTransfer(3, source, ranks.write_file).load_into(with_replacement)
    assert ranks.calls.count("join_nccl_group") == 2
