"""Decisions of vLLM's CUDA platform for our engine options, on a faked GPU."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from support.builders.trainer.word_model import write_word_model


@pytest.fixture(scope="module")
def decisions(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("model")
    write_word_model(folder, ["t0"], context=1024)
    done = subprocess.run(
        [sys.executable, "-m", "support.engines.faked_cuda", str(folder)],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


@pytest.mark.row("A21")
@pytest.mark.parametrize(
    ("precision", "attention"),
    [("BF16", "FLASH_ATTN 3"), ("FP16", "FLASH_ATTN 3"), ("FP32", "TRITON_ATTN")],
)
def test_attention_backend_supports_precision(
    decisions: Any, precision: str, attention: str
) -> None:
    assert decisions[precision]["attention"] == attention


def test_gpu_engine_uses_model_runner_v2_in_its_core_process(decisions: Any) -> None:
    assert decisions["BF16"]["runner"] == "V2"
    assert decisions["BF16"]["executor"] == "uni"
    assert decisions["BF16"]["worker"] == "vllm.v1.worker.gpu_worker.Worker"


def test_engine_with_several_gpus_starts_their_workers_itself(decisions: Any) -> None:
    """vLLM's default in a placement group, Ray, requires bundles with one GPU."""
    assert decisions["tensor parallel"]["executor"] == "mp"


@pytest.mark.parametrize(
    ("engine", "compilation", "graphs"),
    [("BF16", "VLLM_COMPILE", "FULL_AND_PIECEWISE"), ("eager", "NONE", "NONE")],
)
def test_cuda_graphs_follow_enforce_eager(
    decisions: Any, engine: str, compilation: str, graphs: str
) -> None:
    assert decisions[engine]["compilation"] == compilation
    assert decisions[engine]["graphs"] == graphs


@pytest.mark.row("A20")
@pytest.mark.parametrize(("engine", "sleeps"), [("BF16", True), ("disaggregated", False)])
def test_colocated_engine_can_free_its_memory(decisions: Any, engine: str, sleeps: bool) -> None:
    assert decisions[engine]["sleep"] is sleeps
    assert decisions[engine]["discardable memory"] is sleeps


@pytest.mark.row("G3")
@pytest.mark.parametrize(("engine", "transfer"), [("BF16", "ipc"), ("disaggregated", "nccl")])
def test_weight_transfer_backend_follows_placement(
    decisions: Any, engine: str, transfer: str
) -> None:
    assert decisions[engine]["transfer"] == transfer


def test_samplers_do_not_import_flashinfer(decisions: Any) -> None:
    assert decisions["BF16"]["logprobs"] == "processed_logprobs"
    assert decisions["samplers"] == {"V1": False, "V2": False, "imported": False}


@pytest.mark.row("A20")
def test_requests_do_not_use_sampler_tensors_that_sleep_discards(decisions: Any) -> None:
    assert decisions["sampler tensors"] == {
        "LogitBiasState": False,
        "PenaltiesState": False,
        "BadWordsState": False,
    }
