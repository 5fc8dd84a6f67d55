"""The rollout engine with real vLLM: what the trainer and exact restarts rely on."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROBE = Path(__file__).parents[1] / "engine_probe.py"


@pytest.fixture(
    scope="module", params=[("tied", "in-process"), ("untied", "in-process"), ("untied", "async")]
)
def measured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    tied, kind = request.param
    folder = tmp_path_factory.mktemp("model")
    make_model(folder, tied=tied == "tied")
    done = subprocess.run(
        [sys.executable, str(PROBE), str(folder), kind],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def make_model(folder: Path, *, tied: bool) -> None:
    import torch
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=tied,
        bos_token_id=None,
        eos_token_id=0,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"t{i}": i for i in range(256)}, unk_token="t1"))
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="t0").save_pretrained(folder)


def test_engine_agrees_with_the_trainers_model_before_and_after_every_update(measured: Any) -> None:
    assert measured["gap_before"] <= 1e-4
    assert max(measured["gaps_after"]) <= 1e-4  # a stale prefix cache or tied head gives > 0.1
    assert measured["changed"]
    assert measured["version"] == 2


def test_seeded_requests_give_the_same_completions_in_any_order(measured: Any) -> None:
    assert measured["repeatable"]
    assert measured["order_free"]


def test_a_failed_update_leaves_the_engine_generating(measured: Any) -> None:
    assert measured["bad_update"] != "accepted"
    assert measured["alive_after_bad_update"]


def test_a_stop_token_ends_the_completion_and_stays_in_it(measured: Any) -> None:
    assert measured["stop_reason"] == "stop"
    assert measured["stop_length"] <= 3
