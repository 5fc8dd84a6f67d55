"""Choose FP32 or BF16 on a CPU by timing one layer of the model.

The measurement runs in a child process: a CPU may advertise instructions (AMX) that its hypervisor
forbids, in which case the first BF16 matrix product kills the process.
"""

import subprocess
import sys
import time

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModel

from raggrpo_api.spec.training import Precision
from raggrpo_trainer.exchange.precision import MeasuredPrecision

_MIN_SPEEDUP = 1.2
_TOKENS = 512
_REPEATS = 5


def measure_precision(model_path: str) -> MeasuredPrecision:
    """Return BF16 if a layer runs at least _MIN_SPEEDUP times as fast as in FP32, else FP32.

    Takes seconds, mostly for imports. Raises CalledProcessError if the child process exits with an
    error; if a signal kills it, the result is FP32.
    """
    command = [
        sys.executable,
        "-m",
        "raggrpo_trainer.policy.precision_probe",
        model_path,
        str(torch.get_num_threads()),
    ]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if child.returncode < 0:
        return MeasuredPrecision(Precision.FP32, bf16_works=False)
    child.check_returncode()
    return MeasuredPrecision(Precision(child.stdout.split()[-1]), bf16_works=True)


def faster_precision(model_path: str) -> Precision:
    """Return the faster precision, measured in this process; BF16 may kill the process."""
    config = AutoConfig.from_pretrained(model_path, trust_remote_code=False)
    config.num_hidden_layers = 1
    config.vocab_size, config.pad_token_id = 2, None
    model = AutoModel.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
    hidden = torch.randn(1, _TOKENS, config.hidden_size)
    seconds = {torch.float32: float("inf"), torch.bfloat16: float("inf")}
    for _ in range(_REPEATS):  # alternating, so that other load affects both equally
        for dtype in seconds:
            seconds[dtype] = min(seconds[dtype], _forward_backward(model.to(dtype), hidden))
    return preferred_precision(seconds[torch.float32], seconds[torch.bfloat16])


def preferred_precision(fp32_seconds: float, bf16_seconds: float) -> Precision:
    """Return BF16 if its speedup outweighs its rounding errors and is not noise, else FP32."""
    return Precision.BF16 if fp32_seconds >= _MIN_SPEEDUP * bf16_seconds else Precision.FP32


def _forward_backward(model: torch.nn.Module, hidden: Tensor) -> float:
    inputs = hidden.to(next(model.parameters()).dtype)
    started = time.perf_counter()
    model(inputs_embeds=inputs, use_cache=False).last_hidden_state.sum().backward()
    return time.perf_counter() - started


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[2]))
    print(faster_precision(sys.argv[1]))
