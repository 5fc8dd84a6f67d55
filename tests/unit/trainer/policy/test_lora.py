"""Adapters: gradients, reference, ranks, rows, checkpoints and exports."""

from functools import partialmethod
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, inject_adapter_in_model
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.spec.training import Precision, RowLayout
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_quickstart.model import make_model, make_tokenizer
from raggrpo_quickstart.records import load_records
from raggrpo_trainer.checkpoint.hashing_save import save_hashed
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.policy.lora import adapt, adapters_off
from raggrpo_trainer.policy.packing import MicroBatch, build_items, build_micro_batch
from raggrpo_trainer.policy.policy import Policy
from raggrpo_trainer.ranks.rank_actor import load_checkpoint
from support.builders.trainer import policies as policy_support
from support.builders.trainer.policies import (
    Ranks,
    make_group,
    make_objective,
    make_policy,
    parameters,
    uneven_groups,
)

pytestmark = pytest.mark.usefixtures("process_group")

LORA = LoraSpec(rank=4)
ALPHA = LoraSpec(rank=4, alpha=1.5)
KL = make_objective(kl_coefficient=0.1)


def make_adapted(model: Path, lora: LoraSpec = LORA) -> PreTrainedModel:
    """Return the plain model with adapters whose B is not zero."""
    causal_lm: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model).eval()
    adapt(causal_lm, lora, seed=0)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in causal_lm.named_parameters():
        if name.endswith(".lora_B"):
            parameter.data.normal_(std=0.05, generator=generator)
    return causal_lm


def make_peft(model: Path, adapted: PreTrainedModel, lora: LoraSpec) -> PreTrainedModel:
    """Return the model with peft's adapters of equal values."""
    leaves = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(
        r=lora.rank, lora_alpha=lora.scale * lora.rank, target_modules=leaves, lora_dropout=0.0
    )
    plain: PreTrainedModel = AutoModelForCausalLM.from_pretrained(model).eval()
    inject_adapter_in_model(config, plain)
    values = dict(adapted.named_parameters())
    for name, parameter in plain.named_parameters():
        if ".lora_" in name:
            parameter.data.copy_(values[name.removesuffix(".default.weight")])
    return plain


def gradients(model: PreTrainedModel) -> dict[str, Tensor]:
    ids = torch.arange(3, 40)[None]
    model(input_ids=ids, labels=ids).loss.backward()
    return {
        name.removesuffix(".default.weight"): parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name in actual if not torch.equal(actual[name], expected[name])] == []


@pytest.mark.row("F1")
@pytest.mark.parametrize("lora", [LORA, ALPHA], ids=["alpha = 2 rank", "alpha 1.5"])
def test_output_and_gradients_equal_peft(model: Path, lora: LoraSpec) -> None:
    adapted = make_adapted(model, lora)
    plain = make_peft(model, adapted, lora)
    ids = torch.arange(3, 40)[None]
    logits = plain(ids).logits
    assert (adapted(ids).logits - logits).norm() <= 1e-5 * logits.norm()

    actual, expected = gradients(adapted), gradients(plain)

    assert actual.keys() == expected.keys()
    assert len(actual) == 2 * 7 * 2
    for name, each in expected.items():
        assert each.norm() > 0
        assert (actual[name] - each).norm() <= 1e-5 * each.norm()


def test_initial_adapters_do_not_change_logprobs(model: Path) -> None:
    expected = make_policy(model).logprobs(uneven_groups())
    assert make_policy(model, lora=LORA).logprobs(uneven_groups()) == expected


def test_initial_adapters_depend_on_seed_and_layer_only(model: Path) -> None:
    first, second = (adapters(make_policy(model, lora=LORA)) for _ in range(2))
    other = adapters(make_policy(model, lora=LORA, seed=1))
    some = adapters(make_policy(model, lora=LoraSpec(rank=4, targets=["k_proj", "v_proj"])))

    assert_equal(first, second)
    assert {name: first[name] for name in some}.keys() == some.keys()
    assert all(torch.equal(first[name], each) for name, each in some.items())
    values = [each for name, each in first.items() if name.endswith("lora_A")]
    assert len({each.flatten()[0].item() for each in values}) == len(values)
    assert not torch.equal(values[0], other[min(first)])


def adapters(policy: Policy) -> dict[str, Tensor]:
    model = policy._model.causal_lm
    return {
        n: p.detach().full_tensor().clone() for n, p in model.named_parameters() if "lora_" in n
    }


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_reference_is_bitwise_the_initial_model(model: Path, precision: Precision) -> None:
    batch = one_batch()
    full = make_policy(model, precision=precision, objective=KL)
    policy = make_policy(model, precision=precision, objective=KL, lora=LORA)
    policy.step(uneven_groups(), step=2)
    assert full._reference is not None
    assert policy._reference is not None
    with torch.no_grad():
        expected = full._reference(batch)
        assert torch.equal(policy._reference(batch), expected)
        assert not torch.equal(policy._model(batch), expected)


def one_batch() -> MicroBatch:
    items = build_items([make_group()], [1.0] * 3, skip_zero_advantage=False)
    return build_micro_batch(items, RowLayout.SHARED_PREFIX)


CASES: dict[str, dict[str, Any]] = {
    "one update": {},
    "padded rows": {"row_layout": RowLayout.PADDED},
    "mini-batches": {"mini_batch_prompts": 2},
    "KL, recomputed activations": {"objective": KL, "gradient_checkpointing": True},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_training_on_two_ranks_matches_one_rank(
    model: Path, two_ranks: Ranks, changes: dict[str, Any]
) -> None:
    changes = {"lora": LORA, **changes}
    metrics, expected = policy_support.train(0, 1, str(model), changes, range(1, 3))
    (actual_metrics, actual), (other_metrics, other) = two_ranks.run(
        policy_support.train, str(model), changes, range(1, 3)
    )

    assert actual_metrics == other_metrics
    assert_equal(actual, other)
    for pair, expected_pair in zip(actual_metrics, metrics, strict=True):
        assert pair == pytest.approx(expected_pair, rel=1e-5, abs=1e-7)
    assert max((actual[n] - expected[n]).abs().max().item() for n in expected) < 2e-4


def test_layouts_and_recomputation_train_equally(model: Path) -> None:
    expected = trained(model)
    for changes in (
        {"row_layout": RowLayout.PADDED},
        {"gradient_checkpointing": True},
        {"tokens_per_micro_batch": 10_000},
    ):
        actual = trained(model, **changes)
        assert max((actual[n] - expected[n]).abs().max().item() for n in expected) < 2e-4


def trained(model: Path, **changes: Any) -> dict[str, Tensor]:
    policy = make_policy(model, lora=LORA, **changes)
    policy.step(uneven_groups(), step=2)
    return parameters(policy)


def test_training_changes_target_layers_only(model: Path) -> None:
    before, after = parameters(make_policy(model)), trained(model)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert before.keys() == after.keys()
    assert changed == {name for name in before if name.endswith("_proj.weight")}

    lora = LoraSpec(rank=2, targets=["self_attn.q_proj", "down_proj"])
    policy = make_policy(model, lora=lora)
    policy.step(uneven_groups(), step=2)
    after = parameters(policy)
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    expected = {n for n in before if n.endswith(("self_attn.q_proj.weight", "down_proj.weight"))}
    assert changed == expected


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16, Precision.FP16])
def test_exported_weights_are_those_of_the_forward_pass(model: Path, precision: Precision) -> None:
    policy = make_policy(model, lora=ALPHA, precision=precision)
    policy.step(uneven_groups(), step=2)
    plain = AutoModelForCausalLM.from_pretrained(model)
    plain.load_state_dict({n: t.float() for n, t in parameters(policy).items()}, strict=False)
    plain.save_pretrained(model.parent / f"{model.name}-{precision}")
    (model.parent / f"{model.name}-{precision}" / "tokenizer.json").write_text("{}")

    merged = make_policy(model.parent / f"{model.name}-{precision}", precision=precision)

    assert policy.logprobs(uneven_groups()) == merged.logprobs(uneven_groups())


@pytest.mark.row("F1")
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_checkpoint_contains_adapters_only_and_resumes_bitwise(
    model: Path, untied_model: Path, tmp_path: Path, precision: Precision, *, tied: bool
) -> None:
    source = model if tied else untied_model
    options: dict[str, Any] = {"lora": LORA, "precision": precision, "objective": KL}
    first = make_policy(source, **options)
    for step in (1, 2):
        first.step(uneven_groups(), step=step)
    names = first.state_dict()["model"].keys()
    assert names == adapters(first).keys()
    save_hashed(first.state_dict(), tmp_path)
    for step in (3, 4):
        first.step(uneven_groups(), step=step)

    second = make_policy(source, **options)
    load_checkpoint(second, str(tmp_path))
    for step in (3, 4):
        second.step(uneven_groups(), step=step)

    assert_equal(parameters(second), parameters(first))
    assert second.checksum() == first.checksum()


def test_checkpoint_of_two_ranks_resumes_on_one_rank(
    model: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    changes = {"lora": LORA}
    ((expected, weights), _) = two_ranks.run(
        policy_support.train_save_train, str(model), str(tmp_path), changes
    )
    policy = make_policy(model, lora=LORA)
    load_checkpoint(policy, str(tmp_path))
    metrics = policy.step(uneven_groups(), step=3)

    assert (metrics.loss, metrics.grad_norm) == pytest.approx(expected[0], abs=1e-6)
    actual = parameters(policy)
    assert max((actual[n] - weights[n]).abs().max().item() for n in weights) < 2e-4


@pytest.mark.row("F1")
def test_checkpoint_of_one_rank_resumes_on_two_ranks(
    model: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    policy = make_policy(model, lora=LORA)
    for step in (1, 2):
        policy.step(uneven_groups(), step=step)
    save_hashed(policy.state_dict(), tmp_path)
    metrics = policy.step(uneven_groups(), step=3)
    expected = parameters(policy)

    (first, actual), (second, other) = two_ranks.run(
        policy_support.load_train, str(model), str(tmp_path), {"lora": LORA}
    )

    assert first == second
    assert first[0] == pytest.approx((metrics.loss, metrics.grad_norm), abs=1e-6)
    assert_equal(actual, other)
    assert max((actual[n] - expected[n]).abs().max().item() for n in expected) < 2e-4


@pytest.mark.row("F1")
def test_saved_checkpoint_has_estimated_size(tmp_path: Path) -> None:
    tokenizer = make_tokenizer(load_records())
    make_model(tokenizer, seed=0).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    policy = make_policy(tmp_path / "model", lora=LoraSpec(rank=32))
    policy.step(uneven_groups(), step=1)

    save_hashed(policy.state_dict(), tmp_path)

    size = sum(file.stat().st_size for file in tmp_path.glob("*.distcp"))
    assert size == pytest.approx(12 * policy.num_trained_parameters, rel=0.15)


def test_base_is_held_in_forward_dtype_and_adapters_in_fp32(model: Path) -> None:
    policy = make_policy(model, lora=LORA, precision=Precision.BF16)
    dtypes = {n: p.dtype for n, p in policy._model.causal_lm.named_parameters()}
    assert {d for n, d in dtypes.items() if "lora_" in n} == {torch.float32}
    assert {d for n, d in dtypes.items() if "lora_" not in n} == {torch.bfloat16}
    assert policy.num_trained_parameters == sum(each.numel() for each in adapters(policy).values())


@pytest.mark.row("F1")
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_export_loads_in_transformers_and_peft_with_equal_logits(
    model: Path, tmp_path: Path, precision: Precision
) -> None:
    policy = make_policy(model, lora=ALPHA, precision=precision)
    policy.step(uneven_groups(), step=2)
    policy.export_hf(tmp_path / "exported")

    ids = torch.arange(3, 40)[None]
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    base = AutoModelForCausalLM.from_pretrained(model)
    initial = base(ids).logits
    with_adapter = PeftModel.from_pretrained(base, str(tmp_path / "exported" / "adapter"))
    logits = merged(ids).logits
    torch.testing.assert_close(with_adapter(ids).logits, logits, rtol=0, atol=1e-4)
    assert (logits - initial).abs().max() > 0.1
    if precision is Precision.FP32:
        streamed = parameters(policy)
        assert_equal({n: p.data for n, p in merged.named_parameters()}, streamed)


def test_adapters_are_on_again_after_an_error(model: Path) -> None:
    adapted = make_adapted(model)
    ids = torch.arange(3, 40)[None]
    expected = adapted(ids).logits
    with pytest.raises(ValueError, match="stop"), adapters_off(adapted):
        raise ValueError("stop")
    assert torch.equal(adapted(ids).logits, expected)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "backend",
    ["aot_eager", "inductor"],  # the first one traces as the second does, without a C++ compiler
)
def test_compiled_layers_train_like_plain_ones(
    model: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    compiled = partialmethod(torch.nn.Module.compile, backend=backend)
    monkeypatch.setattr(torch.nn.Module, "compile", compiled)
    expected = trained(model, objective=KL)
    actual = trained(model, objective=KL, compile=True)
    assert max((actual[n] - expected[n]).abs().max().item() for n in expected) < 2e-4


REJECTED = {
    "lm_head": "lm_head is lm_head, an embedding or the LM head",
    "embed_tokens": "embed_tokens is model.embed_tokens, an embedding",
    "c_attn": "c_attn matches no torch.nn.Linear of a decoder layer; the model has down_proj",
    "self_attn": r"matches no .* \(model.layers.0.self_attn is a Qwen2Attention\)",
}


@pytest.mark.parametrize(("target", "message"), REJECTED.items())
def test_targets_that_are_not_linear_layers_are_named(
    untied_model: Path, target: str, message: str
) -> None:
    lora = LoraSpec(targets=["q_proj", target])
    with pytest.raises(TrainerError, match=message) as raised:
        make_policy(untied_model, lora=lora)
    assert raised.value.exit_code is ExitCode.PREFLIGHT_FAILED
