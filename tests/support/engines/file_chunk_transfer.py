"""A vLLM weight transfer backend for tests without a GPU: each tensor chunk is a file.

Implements the interface of vLLM's IPC and NCCL engines. Imported by vLLM in its worker process.
"""

from dataclasses import dataclass

from safetensors.torch import load_file
from vllm.config.weight_transfer import WeightTransferConfig
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.ipc_engine import IPCWeightTransferEngine

from raggrpo_trainer.engines.engine_options import EngineOptions
from raggrpo_trainer.weights.vllm_extension import WorkerExtension

BACKEND = "files"


@dataclass
class FileInit(WeightTransferInitInfo):
    folder: str


@dataclass
class FileUpdate(WeightTransferUpdateInfo):
    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    file: str


class FileTransferEngine(IPCWeightTransferEngine):
    init_info_cls = FileInit  # type: ignore[assignment]
    update_info_cls = FileUpdate  # type: ignore[assignment]
    folder = ""

    def init_transfer_engine(self, init_info: FileInit) -> None:  # type: ignore[override]
        self.folder = init_info.folder

    def receive_weights(self, update_info: FileUpdate) -> None:  # type: ignore[override]
        tensors = load_file(f"{self.folder}/{update_info.file}")
        received = list(
            zip(update_info.names, update_info.dtype_names, update_info.shapes, strict=True)
        )
        assert received == [
            (n, str(tensors[n].dtype)[6:], list(tensors[n].shape)) for n, *_ in received
        ]
        self.model.load_weights([(name, tensors[name]) for name in update_info.names])


class Extension(WorkerExtension):
    """Worker mixin whose import registers the backend."""


class ChunkOptions(EngineOptions):
    """Options of an engine that loads tensor chunks from files."""

    def arguments(self) -> dict[str, object]:
        return EngineOptions.arguments(self) | {
            "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
            "worker_extension_cls": f"{__name__}.Extension",
        }


WeightTransferEngineFactory.register_engine(BACKEND, FileTransferEngine)
