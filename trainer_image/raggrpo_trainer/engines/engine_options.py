"""Options of a vLLM engine, vLLM's arguments for them, and the environment of its process."""

from dataclasses import dataclass
from typing import Any

from raggrpo_api.memory.arithmetic import concurrent_sequences, cpu_kv_cache, kv_bytes_per_token
from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.host.logs import vllm_log_variables
from raggrpo_trainer.weights.backend import WeightTransferBackend, weight_transfer_backend

WORKER_EXTENSION = "raggrpo_trainer.weights.vllm_extension.WorkerExtension"
CPU_BLOCK_SIZE = 32
"""Tokens per KV cache block; with vLLM's CPU default of 128, short prompts would share no block."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Options of an engine; a running engine is reused if its options are equal.

    The field names are part of `options_digest`.
    """

    model_path: str
    device: str
    """Torch's device type: cpu or cuda."""
    precision: str
    max_model_len: int
    max_num_batched_tokens: int
    max_num_seqs: int
    gpu_memory_utilization: float
    tensor_parallel_size: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    """Whether a GPU prefills in chunks; always off on CPU, see `_cpu_arguments`."""
    enforce_eager: bool
    enable_sleep: bool
    weight_way: WeightTransferBackend = WeightTransferBackend.SHARED_MEMORY
    """The weight transfer backend."""
    kv_cache_tokens: int = 0
    """KV cache size on CPU, in tokens; on GPU it is derived from `gpu_memory_utilization`."""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of vLLM's engines."""
        common = {
            "model": self.model_path,
            "dtype": {"FP32": "float32", "BF16": "bfloat16", "FP16": "float16"}[self.precision],
            "max_model_len": self.max_model_len,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_num_seqs": self.max_num_seqs,
            "tensor_parallel_size": self.tensor_parallel_size,
            "enable_prefix_caching": self.enable_prefix_caching,
            "worker_extension_cls": WORKER_EXTENSION,
            # By default vLLM reports logprobs before temperature is applied.
            "logprobs_mode": "processed_logprobs",
            "disable_log_stats": True,
            "use_tqdm_on_load": False,
            "seed": 0,
        }
        return common | (self._cpu_arguments() if self.device == "cpu" else self._gpu_arguments())

    def _cpu_arguments(self) -> dict[str, Any]:
        return {
            "enforce_eager": True,
            "block_size": CPU_BLOCK_SIZE,
            "kv_cache_memory_bytes": self._kv_cache_bytes(),
            # Chunked prefill is off on CPU: it rewinds the random generator of a seeded request
            # after each partial prefill, which torch's CPU generator does not support.
            "enable_chunked_prefill": False,
        }

    def _gpu_arguments(self) -> dict[str, Any]:
        arguments: dict[str, Any] = {
            "enforce_eager": self.enforce_eager,
            "gpu_memory_utilization": self.gpu_memory_utilization,
            "enable_chunked_prefill": self.enable_chunked_prefill,
            "enable_sleep_mode": self.enable_sleep,
        }
        if self.tensor_parallel_size > 1:
            # In a placement group vLLM selects Ray, which requires bundles with one GPU.
            arguments["distributed_executor_backend"] = "mp"
        if self.weight_way is not WeightTransferBackend.SHARED_MEMORY:
            from vllm.config.weight_transfer import WeightTransferConfig

            backend = self.weight_way.value.lower()
            arguments["weight_transfer_config"] = WeightTransferConfig(backend=backend)
        return arguments

    def _kv_cache_bytes(self) -> int:
        from transformers import AutoConfig  # slow import, which an engine's process needs anyway

        model = AutoConfig.from_pretrained(self.model_path, trust_remote_code=False)
        num_heads = model.num_attention_heads
        head_dim = getattr(model, "head_dim", None) or model.hidden_size // num_heads
        num_kv_heads = getattr(model, "num_key_value_heads", None) or num_heads
        per_token = kv_bytes_per_token(
            model.num_hidden_layers, num_kv_heads, head_dim, Precision(self.precision)
        )
        return cpu_kv_cache(self.kv_cache_tokens, per_token)


def engine_options(config: TrainerConfig, precision: str) -> EngineOptions:
    """Return the options of the job's engines; `precision` must be resolved (not Auto)."""
    data, rollout = config.data, config.rollout
    is_cpu = config.resources.device == "CPU"
    length = data.max_sequence_length
    concurrent = concurrent_sequences(data, rollout)
    return EngineOptions(
        model_path=config.model.path,
        device="cpu" if is_cpu else "cuda",
        precision=precision,
        max_model_len=length,
        max_num_batched_tokens=rollout.max_num_batched_tokens,
        # vLLM rejects more sequences than tokens per engine step.
        max_num_seqs=min(concurrent, rollout.max_num_batched_tokens),
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        tensor_parallel_size=rollout.tensor_parallel_size,
        enable_prefix_caching=rollout.enable_prefix_caching,
        enable_chunked_prefill=rollout.enable_chunked_prefill,
        enforce_eager=rollout.enforce_eager,
        enable_sleep=config.resources.placement == "Colocated",
        weight_way=weight_transfer_backend(config.resources),
        kv_cache_tokens=length * concurrent if is_cpu else 0,
    )


def engine_environment(
    device: str,
    threads: int,
    level: LogLevel,
    backend: WeightTransferBackend = WeightTransferBackend.SHARED_MEMORY,
    precision: str = "BF16",
) -> dict[str, str]:
    """Return the environment variables of an engine's process."""
    common = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"} | vllm_log_variables(level)
    if backend is WeightTransferBackend.IPC:
        # Handles of GPU memory are pickled; vLLM's workers unpickle them only with this variable.
        common["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if device != "cpu":
        # FlashInfer's sampler does not return the logprobs of the sampling distribution.
        common["VLLM_USE_FLASHINFER_SAMPLER"] = "0"
        if precision == "FP32":
            # Triton multiplies FP32 matrices in TF32 by default, the precision of FP16; vLLM's
            # attention in FP32 then differs from the trainer's by 0.002 nats on average.
            common["TRITON_F32_DEFAULT"] = "ieee"
        return common
    return common | {
        # Use one process instead of four, and 0.7 GiB of memory instead of 3 GiB.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        # Even in eager mode vLLM compiles a sampling function, which takes 4–16 s and g++.
        "TORCHDYNAMO_DISABLE": "1",
    }
