import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.engines.engine_options import engine_environment, engine_options
from support.builders.trainer.policies import write_model
from support.builders.trainer.reports import make_config


def arguments(folder: Path, **changes: Any) -> dict[str, Any]:
    return engine_options(make_config(folder, changes), "FP32").arguments()


@pytest.mark.row("A3")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_chunked_prefill_is_off_on_cpu(tmp_path: Path, is_enabled: bool) -> None:
    changes = {
        "model.path": str(write_model(tmp_path)),
        "resources": {"device": "CPU"},
        "rollout.enableChunkedPrefill": is_enabled,
    }
    assert arguments(tmp_path, **changes)["enable_chunked_prefill"] is False


@pytest.mark.row("A3")
@pytest.mark.parametrize("is_enabled", [True, False])
def test_chunked_prefill_follows_spec_on_gpu(tmp_path: Path, is_enabled: bool) -> None:
    changes = {"rollout.enableChunkedPrefill": is_enabled}
    assert arguments(tmp_path, **changes)["enable_chunked_prefill"] is is_enabled


COMPILE_PRODUCT = """
import triton, triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

@triton.jit
def product(a, b, c):
    at = tl.arange(0, 32)[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(c + at, tl.dot(tl.load(a + at), tl.load(b + at)))

source = ASTSource(fn=product, signature=dict.fromkeys("abc", "*fp32"), constexprs={})
print("tf32" in triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["ptx"])
"""
"""Prints whether Triton multiplies FP32 matrices in TF32 on an H100; needs no GPU."""


@pytest.mark.row("A21")
@pytest.mark.parametrize(("precision", "uses_tf32"), [("FP32", "False"), ("BF16", "True")])
def test_triton_kernels_of_fp32_engines_do_not_use_tf32(
    tmp_path: Path, precision: str, uses_tf32: str
) -> None:
    script = tmp_path / "compile_product.py"
    script.write_text(COMPILE_PRODUCT)
    env = os.environ | engine_environment("cuda", 1, LogLevel.INFO, precision=precision)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, env=env, check=True
    )
    assert done.stdout.split() == [uses_tf32]
