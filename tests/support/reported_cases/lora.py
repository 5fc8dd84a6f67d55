"""Reported cases about adapters."""

from pathlib import Path

from raggrpo_api.trainer.preflight import CheckId, CheckState
from support.builders.trainer.preflight import make_fit_config
from support.engines.lora_parity import measure
from support.reported_cases.case import case
from support.reported_cases.checks import expect, preflight

MAX_NATS = 1e-5
MIN_CHANGE = 1e-2
"""Minimum mean change of logprobs per update at this learning rate, in nats."""


@case("L1", fault="Engines keep the initial weights")
def engine_follows_each_update(folder: Path) -> None:
    """The engine's logprobs change with each sync and equal the policy's."""
    before, *syncs = measure(folder, "FP32", "merged")
    assert before["mean"] <= MAX_NATS
    assert all(each["mean"] <= MAX_NATS for each in syncs), syncs
    assert all(each["change"] >= MIN_CHANGE for each in syncs), syncs


@case(
    "L2",
    fault="A target that cannot have an adapter",
    inputs=["lm_head", "embed_tokens", "c_attn", "model.norm"],
)
def target_that_is_no_linear_layer_is_rejected(folder: Path, target: str) -> None:
    make_fit_config(folder)
    changes = {"training.lora": {"targets": ["q_proj", target]}}
    words = ("training.lora.targets", target)
    expect(preflight(folder, changes), CheckId.LORA_TARGETS, CheckState.FAILED, *words)
