"""Properties of the real vLLM engine that the trainer and exact restarts rely on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.builders.trainer.word_model import write_word_model

PROBE = Path(__file__).parents[2] / "support" / "engines" / "engine_probe.py"


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("tied", "in-process"), id="tied"),
        pytest.param(("untied", "in-process"), id="untied"),
        pytest.param(("untied", "async"), id="async"),
        pytest.param(("tied", "sharded"), id="sharded", marks=pytest.mark.long),
    ],
)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tied, kind = request.param
    words = [f"t{i}" for i in range(254)]
    folder = tmp_path_factory.mktemp("model")
    write_word_model(folder, words, context=1024, tied=tied == "tied")
    # Sampling defaults of the model: if applied, they would show as a logprob gap.
    sampling = {"temperature": 0.3, "top_k": 2, "top_p": 0.5, "repetition_penalty": 1.8}
    (folder / "generation_config.json").write_text(json.dumps(sampling))
    cache = folder.with_name("vllm-cache")
    done = subprocess.run(
        [sys.executable, str(PROBE), str(folder), kind],
        env=os.environ
        | {"PYTHONPATH": str(PROBE.parents[2])}
        | ({"VLLM_CACHE_ROOT": str(cache)} if kind == "in-process" else {}),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    measurements = json.loads(done.stdout.strip().splitlines()[-1])
    return measurements | {"inspected": [each.name for each in cache.glob("modelinfos/*")]}


@pytest.mark.row("A21")
def test_engine_logprobs_match_trainer_before_and_after_weight_sync(measured: Any) -> None:
    assert measured["gap_before"] <= 1e-4
    assert max(measured["gaps_after"]) <= 1e-4  # a stale prefix cache or an untied head gives > 0.1
    assert measured["changed"]
    assert measured["version"] == 2


@pytest.fixture
def chunked(measured: Any) -> Any:
    if "rejected_chunks" not in measured:
        pytest.skip("this engine reads files")
    return measured


@pytest.mark.row("G3")
@pytest.mark.parametrize("update", [3, 4])
def test_vllm_receives_all_ipc_chunks_bitwise(chunked: Any, update: int) -> None:
    transfer = chunked[f"transfer_{update}"]
    assert transfer["chunks"] > 2  # max(gaps_after) above covers these updates, too
    assert transfer["bitwise"]
    assert chunked["version_after_chunks"] == 4


@pytest.mark.row("G3")
def test_ipc_buffer_is_mapped_once_per_update_and_released(chunked: Any) -> None:
    first, second = chunked["transfer_3"], chunked["transfer_4"]
    assert first["exported"] == second["exported"] == 1
    assert first["mapped"] == [[1, 1], [1, 0]]
    assert second["mapped"] == [[2, 1], [2, 0]]


@pytest.mark.row("G3")
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("name", "no module or parameter named 'other'"),
        ("shape", "size"),
        ("size", "shape"),
        ("number", "names"),
        ("GPU", "GPU-1"),
    ],
)
def test_vllm_rejects_chunk_with_wrong_description(chunked: Any, change: str, error: str) -> None:
    assert error in chunked["rejected_chunks"][change]


def test_in_process_engine_does_not_start_model_inspection_process(measured: Any) -> None:
    assert measured["inspected"] == []


def test_seeded_completions_are_repeatable_in_any_request_order(measured: Any) -> None:
    assert measured["repeatable"]
    assert measured["order_free"]


@pytest.mark.row("B31")
def test_tokens_sampled_during_weight_sync_match_old_or_new_policy(measured: Any) -> None:
    assert measured["gap_across"] <= 1e-4
    before, after = measured["of_both"]
    assert max(before, after) < 12 * 640 <= before + after  # both policies may agree on a token


def test_engine_generates_after_failed_weight_sync(measured: Any) -> None:
    assert measured["bad_update"] != "accepted"
    assert measured["alive_after_bad_update"]


def test_stop_token_ends_completion_and_is_included(measured: Any) -> None:
    assert measured["stop_reason"] == "stop"
    assert measured["stop_length"] <= 3


@pytest.mark.row("D9")
def test_token_completing_stop_text_is_not_truncated(measured: Any) -> None:
    assert measured["halted"] == "stop"
    assert measured["keeps_the_whole_token"]


@pytest.mark.row("D12")
def test_dead_engine_fails_every_call_without_hanging(measured: Any) -> None:
    assert len(measured["dead"]) == 2
    for error in measured["dead"]:
        assert "EngineDeadError" in error or error == "std::bad_alloc"
