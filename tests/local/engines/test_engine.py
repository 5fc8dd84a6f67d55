"""The rollout engine with real vLLM: what the trainer and exact restarts rely on."""

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
        ("tied", "in-process"),
        ("untied", "in-process"),
        ("untied", "async"),
        pytest.param(("tied", "sharded"), marks=pytest.mark.long),
    ],
)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tied, kind = request.param
    words = [f"t{i}" for i in range(254)]
    folder = tmp_path_factory.mktemp("model")
    write_word_model(folder, words, context=1024, tied=tied == "tied")
    # The model's own sampling defaults: applied, they would show as a gap to the trainer.
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
    found = json.loads(done.stdout.strip().splitlines()[-1])
    return found | {"inspected": [each.name for each in cache.glob("modelinfos/*")]}


@pytest.mark.row("A21")
def test_engine_agrees_with_the_trainers_model_before_and_after_every_update(measured: Any) -> None:
    assert measured["gap_before"] <= 1e-4
    assert max(measured["gaps_after"]) <= 1e-4  # a stale prefix cache or tied head gives > 0.1
    assert measured["changed"]
    assert measured["version"] == 2


@pytest.mark.row("G3")
def test_async_engine_loads_tensor_chunks(measured: Any) -> None:
    if "chunks" not in measured:
        pytest.skip("engines of CPUs read files")
    assert measured["chunks"] > 2  # max(gaps_after), above, is also that of this update
    assert measured["version_after_chunks"] == 3


def test_an_engine_in_this_process_starts_no_other_that_imports_vllm_again(measured: Any) -> None:
    assert measured["inspected"] == []


def test_seeded_requests_give_the_same_completions_in_any_order(measured: Any) -> None:
    assert measured["repeatable"]
    assert measured["order_free"]


@pytest.mark.row("B31")
def test_tokens_sampled_across_an_update_are_each_of_one_of_both_policies(measured: Any) -> None:
    assert measured["gap_across"] <= 1e-4
    before, after = measured["of_both"]
    assert max(before, after) < 12 * 640 <= before + after  # both may agree on a token


def test_a_failed_update_leaves_the_engine_generating(measured: Any) -> None:
    assert measured["bad_update"] != "accepted"
    assert measured["alive_after_bad_update"]


def test_a_stop_token_ends_the_completion_and_stays_in_it(measured: Any) -> None:
    assert measured["stop_reason"] == "stop"
    assert measured["stop_length"] <= 3


@pytest.mark.row("D9")
def test_the_token_that_completes_a_stop_text_stays_whole(measured: Any) -> None:
    assert measured["halted"] == "stop"
    assert measured["keeps_the_whole_token"]


@pytest.mark.row("D12")
def test_a_dead_engine_tells_so_to_every_call_and_hangs_none(measured: Any) -> None:
    assert len(measured["dead"]) == 2
    for told in measured["dead"]:
        assert "EngineDeadError" in told or told == "std::bad_alloc"
