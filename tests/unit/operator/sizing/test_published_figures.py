"""Estimates compared with published measurements.

Sources, with what was read there:

- ZeRO: Rajbhandari et al., arXiv 1910.02054, figure 1: memory of the model states per device for
  7.5B parameters and mixed-precision Adam (K = 12): 120 GB without, 1.9 GB with all three
  partitions over 64 devices.
- DeepSpeed: its documentation "Memory Requirements" (docs/code-docs/source/memory.rst), ZeRO-3
  without offload, 2851M parameters (t5-3b), 8 GPUs: 6.09 GB. It counts an fp16 copy of the
  parameters in addition (18 B per parameter instead of 16).
- torchtitan: benchmarks/llama3_h100_202412_torchtitan.md, tables 1 and 3, Llama 3.1 8B under FSDP
  with local batch 2: 82.4 GiB per H100 of 8, 67.0 GiB per H100 of 128. Only the sharded states
  depend on the number of GPUs, so the difference is theirs.
- vLLM: Kwon et al., arXiv 2309.06180, sections 1 and 3, OPT-13B on an A100 of 40 GB: weights take
  about 65 % of it (26 GB), one token of KV cache 800 KB, one sequence of 2048 tokens 1.6 GB.
- Hugging Face: blog "Llama 3.1", section "Inference memory requirements": KV cache in FP16.
- Korthikanti et al., arXiv 2205.05198, section 5: recomputing the attention of GPT-3 and MT-NLG
  saves 70 % and 65 % of the activations, 5·a·s/h being 80 and 64 in addition to 34.
- verl: docs/perf/device_tuning.rst, least resources of GRPO: Qwen2-72B runs on 32 H800.
"""

from typing import Any

import pytest

from raggrpo_api.memory import gpu as gpu_memory
from raggrpo_api.memory.arithmetic import GIB, kv_bytes_per_token
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.preflight import Facts
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Reason, errors
from support.builders.operator.jobs import make_job

GB = 10**9
ZERO_7_5B = Facts(parameters=7_500_000_000)
T5_3B = Facts(parameters=2_851_000_000)
OPT_13B = Facts(
    parameters=13_000_000_000, layers=40, hidden_size=5120, heads=40, kv_heads=40, head_size=128,
    vocabulary=50_272, context_length=2048,
)  # fmt: skip
LLAMA_8B = Facts(
    parameters=8_030_000_000, layers=32, hidden_size=4096, heads=32, kv_heads=8, head_size=128,
    vocabulary=128_256, context_length=131_072,
)  # fmt: skip
LLAMA_70B = Facts(
    parameters=70_600_000_000, layers=80, hidden_size=8192, heads=64, kv_heads=8, head_size=128,
    vocabulary=128_256, context_length=131_072,
)  # fmt: skip
QWEN2_72B = Facts(
    parameters=72_700_000_000, layers=80, hidden_size=8192, heads=64, kv_heads=8, head_size=128,
    vocabulary=152_064, context_length=32_768, rows=10_000,
)  # fmt: skip
GPT_3 = Facts(layers=96, hidden_size=12_288, heads=96)
MT_NLG = Facts(layers=105, hidden_size=20_480, heads=128)


def on(gpus: int, *, nodes: int = 1, gib: int = 80, **changes: Any) -> JobSpec:
    resources = {"gpusPerNode": gpus, "nodes": nodes, "gpuMemoryGib": gib}
    return resolve(make_job({"resources": resources, **changes})).spec


def state_gb(facts: Facts, ranks: int) -> float:
    per_node = min(8, ranks)
    return gpu_memory.training_state(on(per_node, nodes=ranks // per_node), facts) / GB


def kv_gib(facts: Facts, tokens: int) -> float:
    one = kv_bytes_per_token(facts.layers, facts.kv_heads, facts.head_size, Precision.FP16)
    return one * tokens / GIB


def attention_saved(facts: Facts) -> float:
    """Return the share of attention scores in the activations at 2048 tokens, in percent."""
    lengths = {"data.maxPromptLength": 1024, "data.maxResponseLength": 1024}
    eager = on(8, **lengths, **{"model.attention": "Eager"})
    flash = on(8, **lengths, **{"model.attention": "Sdpa"})
    whole = gpu_memory.activation_bytes_per_token(eager, facts)
    return 100 * (1 - gpu_memory.activation_bytes_per_token(flash, facts) / whole)


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    ("ours", "published", "tolerance"),
    [
        pytest.param(state_gb(ZERO_7_5B, 1), 120.0, 0.001, id="ZeRO 7.5B, 1 device"),
        pytest.param(state_gb(ZERO_7_5B, 64), 1.9, 0.02, id="ZeRO 7.5B, 64 devices"),
        pytest.param(state_gb(T5_3B, 8) * GB / GIB, 6.09, 0.15, id="DeepSpeed t5-3b, 8 GPUs"),
        pytest.param(
            (state_gb(LLAMA_8B, 8) - state_gb(LLAMA_8B, 128)) * GB / GIB,
            82.4 - 67.0,
            0.10,
            id="torchtitan Llama 3.1 8B, from 8 to 128 H100",
        ),
        pytest.param(
            gpu_memory.engine_weights(on(1), OPT_13B) / (40 * GB),
            0.65,
            0.01,
            id="vLLM OPT-13B on an A100-40GB, weights",
        ),
        pytest.param(kv_gib(OPT_13B, 1) * 2**20, 800, 0.001, id="vLLM OPT-13B, a token (KB)"),
        pytest.param(kv_gib(OPT_13B, 2048), 1.6, 0.03, id="vLLM OPT-13B, a sequence"),
        pytest.param(kv_gib(LLAMA_8B, 16_000), 1.95, 0.005, id="Llama 3.1 8B, 16k tokens"),
        pytest.param(kv_gib(LLAMA_8B, 128_000), 15.62, 0.001, id="Llama 3.1 8B, 128k tokens"),
        pytest.param(kv_gib(LLAMA_70B, 16_000), 4.88, 0.001, id="Llama 3.1 70B, 16k tokens"),
        pytest.param(kv_gib(LLAMA_70B, 128_000), 39.06, 0.001, id="Llama 3.1 70B, 128k tokens"),
        pytest.param(attention_saved(GPT_3), 70, 0.01, id="GPT-3, recomputed attention (%)"),
        pytest.param(attention_saved(MT_NLG), 65, 0.01, id="MT-NLG, recomputed attention (%)"),
    ],
)
def test_estimate_matches_published_figure(ours: float, published: float, tolerance: float) -> None:
    assert ours == pytest.approx(published, rel=tolerance)


@pytest.mark.parametrize(
    ("facts", "resources", "rollout", "refused"),
    [
        (
            QWEN2_72B,
            {"gpusPerNode": 8, "nodes": 4},
            {"tensorParallelSize": 8, "gpuMemoryUtilization": 0.4},
            False,
        ),
        (LLAMA_70B, {"gpusPerNode": 1}, {}, True),
    ],
    ids=["verl Qwen2-72B, 32 H800", "Llama 70B on one GPU"],
)
def test_published_configurations_fit_and_known_oom_configurations_are_rejected(
    facts: Facts, resources: dict[str, Any], rollout: dict[str, Any], refused: bool
) -> None:
    job = make_job({"resources": {"gpuMemoryGib": 80, **resources}, "rollout": rollout})
    reasons = {each.reason for each in errors(violations(job, resolve(job, facts), facts))}
    assert (Reason.TRAINING_STATE_DOES_NOT_FIT in reasons) is refused
    assert refused or Reason.WEIGHTS_DO_NOT_FIT not in reasons


def test_rejected_training_state_with_adapters_names_frozen_and_trained_parameters() -> None:
    facts = LLAMA_70B.model_copy(
        update={"adapted_layers": 560, "adapter_parameters_per_rank": 12_943_360}
    )
    job = make_job({"resources": {"gpusPerNode": 1, "gpuMemoryGib": 80}, "training.lora": {}})
    reasons = {each.reason: each for each in violations(job, resolve(job, facts), facts)}
    refused = reasons[Reason.TRAINING_STATE_DOES_NOT_FIT]
    assert "70,600,000,000 frozen parameters (BF16) and 414,187,520 of adapters" in refused.message
    assert "training.lora" not in refused.remedy


def test_llama_70b_on_one_gpu_is_rejected_with_memory_terms() -> None:
    facts = LLAMA_70B.model_copy(update={"rows": 10_000})
    job = make_job({"resources": {"gpusPerNode": 1}})
    violations_by_reason = {
        each.reason: each for each in violations(job, resolve(job, facts), facts)
    }
    refused = violations_by_reason[Reason.TRAINING_STATE_DOES_NOT_FIT]
    assert "does not fit (1052.0 GiB per GPU" in refused.message
    assert "70,600,000,000 parameters over 1" in refused.message
    assert "(unknown; the largest of any GPU)" in refused.message
    assert "or train adapters only (training.lora)" in refused.remedy
    assert Reason.GPU_MEMORY_UNKNOWN in violations_by_reason
