"""Print as JSON what vLLM decides for our engine options on a faked H100; needs no GPU.

    PYTHONPATH=tests python -m support.engines.faked_cuda MODEL_FOLDER

Runs in a separate process because vLLM's platform is global. The faked device can be configured,
but not used.
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.engines.engine_options import (
    EngineOptions,
    engine_environment,
    engine_options,
)
from raggrpo_trainer.engines.generation import GenerationRequest, sampling_params
from raggrpo_trainer.weights.backend import WeightTransferBackend
from support.builders.trainer.reports import make_config

COMPILED = (
    "vllm._C_stable_libtorch",
    "vllm.vllm_flash_attn._vllm_fa2_C",
    "vllm.vllm_flash_attn._vllm_fa3_C",
)
"""Compiled modules of vLLM's CUDA wheel, which the CPU wheel lacks."""
HEAD_DIM = 64
GPU_MEMORY = 79 * 2**30


@dataclass
class DeviceProperties:
    """The fields of torch's device properties that vLLM reads."""

    name: str = "NVIDIA H100 80GB HBM3"
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    total_memory: int = GPU_MEMORY
    shared_memory_per_block_optin: int = 232448


def fake_cuda() -> None:
    """Select vLLM's CUDA platform with one H100; must run before vLLM is imported elsewhere."""
    for name in COMPILED:
        sys.modules[name] = ModuleType(name)
    import torch
    import vllm.platforms

    patched: Any = vllm.platforms
    patched.vllm_version_matches_substr = lambda _: False  # of the CPU build, which needs no Triton
    from vllm.platforms.cuda import CudaPlatformBase
    from vllm.platforms.interface import DeviceCapability

    capability = DeviceCapability(9, 0)

    class FakedCudaPlatform(CudaPlatformBase):
        get_device_capability = classmethod(lambda cls, device_id=0: capability)
        has_device_capability = classmethod(
            lambda cls, capability, device_id=0: (
                (capability if isinstance(capability, int) else capability[0] * 10 + capability[1])
                <= 90
            )
        )
        get_device_name = classmethod(lambda cls, device_id=0: DeviceProperties.name)
        get_device_total_memory = classmethod(lambda cls, device_id=0: GPU_MEMORY)
        get_device_uuid = classmethod(lambda cls, device_id=0: "GPU-0")
        num_compute_units = classmethod(lambda cls, device_id=0: 132)
        is_cumem_allocator_available = classmethod(lambda cls: True)
        is_fully_connected = classmethod(lambda cls, device_ids: True)
        device_count = classmethod(lambda cls: 1)
        log_warnings = classmethod(lambda cls: None)

    patched._current_platform = FakedCudaPlatform()
    cuda: Any = torch.cuda
    cuda.is_available = lambda: True
    cuda.device_count = lambda: 1
    cuda.current_device = lambda: 0
    cuda.get_device_properties = lambda *_: DeviceProperties()
    cuda.get_device_capability = lambda *_: (9, 0)
    accelerator: Any = torch.accelerator
    accelerator.device_count = lambda: 1
    accelerator.current_device_index = lambda: 0


@contextmanager
def in_placement_group_with_gpus(count: int) -> Iterator[None]:
    """Fake what vLLM sees in the actor of an engine with several GPUs."""
    import ray
    import vllm.platforms

    platform: Any = type(vllm.platforms.current_platform)
    with (
        patch.object(platform, "device_count", classmethod(lambda cls: count)),
        patch.object(ray, "is_initialized", lambda: True),
        patch.object(ray, "get_runtime_context", lambda: SimpleNamespace(runtime_env=None)),
        patch.object(ray.util, "get_current_placement_group", MagicMock()),
    ):
        yield


def options(folder: Path, precision: str, **changes: Any) -> EngineOptions:
    model = {"model.path": str(folder), "data.maxPromptLength": 128, "data.maxResponseLength": 128}
    return engine_options(make_config(folder, model | changes), precision)


def decisions(engine: EngineOptions) -> dict[str, Any]:
    """Return vLLM's decisions for the options."""
    from vllm import AsyncEngineArgs
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.backends.fa_utils import get_flash_attn_version
    from vllm.v1.attention.selector import get_attn_backend

    config = AsyncEngineArgs(**engine.arguments()).create_engine_config()
    with set_current_vllm_config(config):
        backend = get_attn_backend(HEAD_DIM, config.model_config.dtype, None).get_name()
        is_flash = backend == "FLASH_ATTN"
        version = get_flash_attn_version() if is_flash else None
    transfer = config.weight_transfer_config
    return {
        "attention": f"{backend} {version}" if is_flash else backend,
        "runner": "V2" if config.use_v2_model_runner else "V1",
        "compilation": config.compilation_config.mode.name,
        "graphs": config.compilation_config.cudagraph_mode.name,
        "executor": str(config.parallel_config.distributed_executor_backend),
        "worker": config.parallel_config.worker_cls,
        "sleep": config.model_config.enable_sleep_mode,
        "discardable memory": config.model_config.enable_cumem_allocator,
        "transfer": transfer.backend if transfer is not None else None,
        "logprobs": config.model_config.logprobs_mode,
        "share": config.cache_config.gpu_memory_utilization,
        "chunked prefill": config.scheduler_config.enable_chunked_prefill,
        "prefix caching": config.cache_config.enable_prefix_caching,
    }


def samplers() -> dict[str, bool]:
    """Return whether vLLM's samplers use FlashInfer."""
    from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, flashinfer_sampler_supported

    sampler = TopKTopPSampler("processed_logprobs")
    return {
        "V1": sampler.forward.__name__ != "forward_native",
        "V2": flashinfer_sampler_supported(),
        "imported": any(name.split(".")[0] == "flashinfer" for name in sys.modules),
    }


def used_sampler_tensors() -> dict[str, bool]:
    """Return whether a request with all options uses tensors of the sampler that sleep discards."""
    from vllm.v1.worker.gpu.sample.bad_words import BadWordsState
    from vllm.v1.worker.gpu.sample.logit_bias import LogitBiasState
    from vllm.v1.worker.gpu.sample.penalties import PenaltiesState

    request = GenerationRequest(
        (1, 2), 4, temperature=0.7, seed=1, top_p=0.9, stop_token_ids=(3,), stop=("t0",)
    )
    states = (LogitBiasState, PenaltiesState, BadWordsState)
    params = sampling_params(request)
    return {each.__name__: each.add_request(MagicMock(), 0, params) for each in states}


def main(folder: Path) -> None:
    os.environ.update(engine_environment("cuda", 1, LogLevel.INFO, WeightTransferBackend.IPC))
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # vLLM then uses Triton without an active driver
    fake_cuda()
    placed = {"resources.placement": "Disaggregated", "resources.rolloutGpus": 2}
    results: dict[str, Any] = {
        precision: decisions(options(folder, precision)) for precision in ("BF16", "FP16", "FP32")
    }
    results["eager"] = decisions(options(folder, "BF16", **{"rollout.enforceEager": True}))
    results["disaggregated"] = decisions(options(folder, "BF16", **placed))
    with in_placement_group_with_gpus(2):
        two_gpus = placed | {"rollout.tensorParallelSize": 2}
        results["tensor parallel"] = decisions(options(folder, "BF16", **two_gpus))
    results["samplers"] = samplers()
    results["sampler tensors"] = used_sampler_tensors()
    print(json.dumps(results), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
