import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM

from raggrpo_api.spec.algorithm import LossAggregation
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.training import Precision, RowLayout, TrainingSpec
from raggrpo_trainer.exchange.groups import Completion, Group
from raggrpo_trainer.exchange.step_metrics import StepMetrics
from raggrpo_trainer.policy.learning_rate import learning_rate
from raggrpo_trainer.policy.loss import grpo_loss
from raggrpo_trainer.policy.model import TokenLogprobs, attention_implementation
from raggrpo_trainer.policy.packing import build_items, build_micro_batch, plan_micro_batches
from raggrpo_trainer.policy.phase_timer import Phase
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


def gradient(
    model: Path, groups: list[Group], layout: RowLayout, budget: int
) -> tuple[float, Tensor]:
    causal_lm = AutoModelForCausalLM.from_pretrained(
        model, attn_implementation=attention_implementation(Attention.AUTO, layout)
    )
    network = TokenLogprobs(causal_lm, temperature=0.7)
    number = sum(len(group.completions) for group in groups)
    work = build_items(groups, [0.01] * number, skip_zero_advantage=False)
    loss = 0.0
    for rows in plan_micro_batches(work, layout, budget):
        batch = build_micro_batch(rows, layout)
        terms = grpo_loss(
            network(batch),
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            weights=batch.weights,
            objective=make_objective(),
        )
        terms.loss.backward()  # type: ignore[no-untyped-call]
        loss += terms.loss.item()
    grads = [parameter.grad for parameter in network.parameters()]
    return loss, torch.cat([grad.flatten() for grad in grads if grad is not None])


def relative_error(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).norm() / expected.norm())


@pytest.mark.parametrize("budget", [10_000, 60])
def test_shared_prefix_rows_match_padded_rows_in_loss_and_gradient(
    model: Path, budget: int
) -> None:
    groups = uneven_groups()
    expected_loss, expected = gradient(model, groups, RowLayout.PADDED, 10_000)
    loss, actual = gradient(model, groups, RowLayout.SHARED_PREFIX, budget)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert relative_error(actual, expected) <= 1e-5


def test_logprobs_match_plain_model_on_each_completion(model: Path) -> None:
    groups = uneven_groups()
    plain = AutoModelForCausalLM.from_pretrained(model).eval()
    actual = iter(make_policy(model).logprobs(groups))

    for group in groups:
        for completion in group.completions:
            ids = torch.tensor([group.prompt_ids + completion.token_ids])
            logits = plain(ids).logits[0, len(group.prompt_ids) - 1 : -1] / 0.7
            chosen = logits.log_softmax(-1).gather(-1, ids[0, len(group.prompt_ids) :, None])[:, 0]
            expected = chosen[torch.tensor(completion.sampled)]
            assert next(actual) == pytest.approx(expected.tolist(), abs=1e-5)


def test_retrieved_tokens_do_not_affect_loss(model: Path) -> None:
    group = make_group((8, 8), inserted=slice(2, 5))
    other = replace(group, completions=tuple(map(with_other_inserted_logprobs, group.completions)))
    metrics = make_policy(model).step([group], step=1)
    assert without_memory(make_policy(model).step([other], step=1)) == without_memory(metrics)
    assert metrics.num_trained_tokens == 2 * (8 - 3)


def with_other_inserted_logprobs(completion: Completion) -> Completion:
    pairs = zip(completion.rollout_logprobs, completion.sampled, strict=True)
    return replace(
        completion, rollout_logprobs=tuple(value if kept else -9.0 for value, kept in pairs)
    )


def test_gradient_depends_on_sampled_tokens_only(untied_model: Path) -> None:
    group = make_group((8, 5), inserted=slice(2, 4))
    plain = AutoModelForCausalLM.from_pretrained(untied_model)
    loss = torch.zeros(())
    for completion, advantage in zip(group.completions, group.advantages, strict=True):
        ids = torch.tensor([group.prompt_ids + completion.token_ids])
        logits = plain(ids).logits[0, len(group.prompt_ids) - 1 : -1] / 0.7
        for place in (i for i, sampled in enumerate(completion.sampled) if sampled):
            logprob = logits[place].log_softmax(-1)[completion.token_ids[place]]
            ratio = (logprob.detach() - completion.rollout_logprobs[place]).exp()
            loss = loss - 0.01 * advantage * logprob * ratio.clamp(max=2.0)
    loss.backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([parameter.grad.flatten() for parameter in plain.parameters()])

    _, actual = gradient(untied_model, [group], RowLayout.SHARED_PREFIX, 10_000)

    assert relative_error(actual, expected) <= 1e-5


def without_memory(metrics: StepMetrics) -> StepMetrics:
    return replace(metrics, rank_memory_bytes=0)


def test_groups_without_variance_count_in_denominator_only(model: Path) -> None:
    useful = make_group((7, 7), advantages=(1.0, -1.0))
    useless = make_group((7, 7), prompt=30, advantages=(0.0, 0.0))
    alone = make_policy(model).step([useful], step=1)
    together = make_policy(model).step([useful, useless], step=1)

    assert together.num_positions == alone.num_positions == 11 + 2 * 6
    assert (together.num_sampled_tokens, together.num_trained_tokens) == (28, 14)
    both = useful.completions + useless.completions
    expected = [-logprob for done in both for logprob in done.rollout_logprobs]
    assert together.entropy == pytest.approx(sum(expected) / 28)
    assert together.entropy != alone.entropy
    assert together.grad_norm == pytest.approx(alone.grad_norm / 2, rel=1e-5)


@pytest.mark.parametrize("groups", [[make_group(advantages=(0.0, 0.0, 0.0))], []])
def test_batch_without_advantage_does_not_change_parameters(
    model: Path, groups: list[Group]
) -> None:
    policy = make_policy(model)
    before = parameters(policy)
    metrics = policy.step(groups, step=1)
    assert (metrics.num_positions, metrics.grad_norm, metrics.non_finite) == (0, 0.0, False)
    assert_equal(parameters(policy), before)


def assert_equal(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert actual.keys() == expected.keys()
    assert [name for name in actual if not torch.equal(actual[name], expected[name])] == []


def test_training_is_bitwise_deterministic(model: Path) -> None:
    runs = [run_steps(make_policy(model), steps=range(1, 4)) for _ in range(2)]
    assert runs[0][0] == runs[1][0]
    assert_equal(runs[0][1], runs[1][1])


def test_engine_noise_below_tolerance_does_not_change_parameters(model: Path) -> None:
    groups = uneven_groups()
    exact = iter(make_policy(model).logprobs(groups))

    def shifted(by: float) -> list[Group]:
        return [
            replace(
                group,
                completions=tuple(
                    with_rollout_logprobs(done, [value + by for value in values])
                    for done, values in zip(group.completions, of_group, strict=True)
                ),
            )
            for group, of_group in zip(groups, logprobs, strict=True)
        ]

    logprobs = [[next(exact) for _ in group.completions] for group in groups]
    runs = []
    for noise in (4e-6, -7e-6):
        policy = make_policy(model)
        policy.step(shifted(noise), step=1)
        runs.append(parameters(policy))

    assert_equal(runs[0], runs[1])


def with_rollout_logprobs(completion: Completion, values: list[float]) -> Completion:
    given = iter(values)
    return replace(
        completion,
        rollout_logprobs=tuple(next(given) if kept else 0.0 for kept in completion.sampled),
    )


def run_steps(policy: Policy, steps: range) -> tuple[list[tuple[float, float]], dict[str, Tensor]]:
    metrics = [policy.step(uneven_groups(), step=step) for step in steps]
    return [(one.loss, one.grad_norm) for one in metrics], parameters(policy)


CASES: dict[str, dict[str, Any]] = {
    "one update": {},
    "padded rows": {"row_layout": RowLayout.PADDED},
    "mini-batches": {"mini_batch_prompts": 2},
    "sequence mean and KL": {
        "objective": make_objective(
            loss_aggregation=LossAggregation.SEQUENCE_MEAN, kl_coefficient=0.1
        )
    },
    "fixed length, recomputed activations": {
        "objective": make_objective(loss_aggregation=LossAggregation.FIXED_LENGTH),
        "gradient_checkpointing": True,
    },
}


@pytest.mark.row("A33")
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_training_on_two_ranks_matches_one_rank(
    model: Path, two_ranks: Ranks, changes: dict[str, Any]
) -> None:
    metrics, expected = run_steps(make_policy(model, **changes), steps=range(1, 3))

    (actual_metrics, actual), (other_metrics, other) = two_ranks.run(
        policy_support.train, str(model), changes, range(1, 3)
    )

    assert actual_metrics == other_metrics
    assert_equal(actual, other)
    for pair, expected_pair in zip(actual_metrics, metrics, strict=True):
        assert pair == pytest.approx(expected_pair, rel=1e-5, abs=1e-7)
    difference = max((actual[name] - expected[name]).abs().max().item() for name in expected)
    assert (
        difference < 2e-4
    )  # two steps of Adam at 1e-2, which magnifies rounding of tiny gradients


def test_ranks_of_pod_load_model_one_at_a_time(model: Path, two_ranks: Ranks) -> None:
    (_, first_end), (second_start, _) = two_ranks.run(policy_support.build_times, str(model))
    assert first_end <= second_start


@pytest.mark.row("B20")
def test_checkpoint_of_two_ranks_resumes_on_one_rank(
    model: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    folder = str(tmp_path / "checkpoint")
    ((expected, _), _) = two_ranks.run(policy_support.train_save_train, str(model), folder)
    policy = make_policy(model)
    resume(policy, folder)
    actual, _ = run_steps(policy, steps=range(3, 4))

    assert actual[0] == pytest.approx(expected[0], abs=1e-6)


def test_resumed_run_is_bitwise_equal_to_uninterrupted_run(model: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    first = make_policy(model)
    run_steps(first, steps=range(1, 3))
    save(first.state_dict(), checkpoint_id=folder)
    _, expected = run_steps(first, steps=range(3, 5))
    second = make_policy(model)
    resume(second, folder)
    _, actual = run_steps(second, steps=range(3, 5))

    assert_equal(actual, expected)


def test_checkpoint_is_loaded_without_optimizer_state(model: Path, tmp_path: Path) -> None:
    folder = str(tmp_path / "checkpoint")
    first = make_policy(model)
    run_steps(first, steps=range(1, 3))
    save(first.state_dict(), checkpoint_id=folder)
    second = make_policy(model)
    load_checkpoint(second, folder, with_optimizer=False)

    assert_equal(parameters(second), parameters(first))
    moments = [state["exp_avg"].abs().sum() for state in second._optimizer.state.values()]
    assert sum(float(moment) for moment in moments) == 0.0


def test_changed_weight_decay_and_learning_rate_apply_after_resume(
    model: Path, tmp_path: Path
) -> None:
    folder = str(tmp_path / "checkpoint")
    first = make_policy(model)
    run_steps(first, steps=range(1, 3))
    save(first.state_dict(), checkpoint_id=folder)
    second = make_policy(model, weight_decay=0.5, learning_rate=1e-3)
    resume(second, folder)
    run_steps(second, steps=range(3, 4))

    groups = second._optimizer.param_groups
    assert [group["weight_decay"] for group in groups] == [0.5, 0.0]
    assert [group["lr"] for group in groups] == [1e-3, 1e-3]


def test_weight_decay_skips_norms_and_biases(model: Path) -> None:
    plain, decayed = make_policy(model), make_policy(model, weight_decay=0.5)
    for policy in (plain, decayed):
        policy.step(uneven_groups(), step=1)
    expected, actual = parameters(plain), parameters(decayed)

    unchanged = {name for name in expected if torch.equal(actual[name], expected[name])}
    assert unchanged == {name for name, tensor in expected.items() if tensor.ndim == 1}
    assert any("norm" in name for name in unchanged)


def test_checkpoint_before_first_step_does_not_change_training(model: Path, tmp_path: Path) -> None:
    _, expected = run_steps(make_policy(model), steps=range(1, 3))
    policy = make_policy(model)
    save(policy.state_dict(), checkpoint_id=str(tmp_path / "checkpoint"))
    _, actual = run_steps(policy, steps=range(1, 3))
    assert_equal(actual, expected)


def test_state_dict_copy_is_loaded_completely(model: Path) -> None:
    policy = make_policy(model)
    run_steps(policy, steps=range(1, 2))
    kept, before = deepcopy(policy.state_dict()), policy.checksum()
    run_steps(policy, steps=range(2, 3))
    assert policy.checksum() != before
    policy.load_state_dict(kept)
    assert policy.checksum() == before


def resume(policy: Policy, folder: str) -> None:
    state = policy.state_dict()
    load(state, checkpoint_id=folder)
    policy.load_state_dict(state)


@pytest.mark.parametrize("tied", [True, False])
def test_export_is_plain_model_with_trained_weights(
    model: Path, untied_model: Path, tmp_path: Path, *, tied: bool
) -> None:
    policy = make_policy(model if tied else untied_model)
    policy.step(uneven_groups(), step=1)
    streamed = parameters(policy)
    expected = policy.logprobs(uneven_groups())
    policy.export_hf(tmp_path / "exported")

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    assert_equal({name: tensor.data for name, tensor in loaded.named_parameters()}, streamed)
    assert ("lm_head.weight" in streamed) is not tied
    assert make_policy(tmp_path / "exported").logprobs(uneven_groups()) == expected
    assert (tmp_path / "exported" / "tokenizer.json").read_text() == "{}"


@pytest.mark.row("A29")
@pytest.mark.parametrize("lora", [None, LoraSpec(rank=3)], ids=["all parameters", "adapters"])
def test_weight_update_ratio_is_independent_of_number_of_ranks(
    model: Path, two_ranks: Ranks, lora: LoraSpec | None
) -> None:
    changes = {"weight_update_every_steps": 2, "weight_decay": 0.1, "lora": lora}
    policy = make_policy(model, **changes)
    alone = [policy.step(uneven_groups(), step=s).weight_update_ratio for s in (1, 2, 3, 4)]
    together = two_ranks.run(policy_support.weight_updates, str(model), changes, range(1, 5))

    assert alone[0] is alone[2] is None
    assert together[0] == together[1]
    assert together[0] == [None, pytest.approx(alone[1]), None, pytest.approx(alone[3])]


def test_logprobs_are_independent_of_number_of_ranks(model: Path, two_ranks: Ranks) -> None:
    alone = make_policy(model).logprobs(uneven_groups())
    first, second = two_ranks.run(policy_support.logprobs, str(model))

    assert first == second
    assert first == [pytest.approx(each, abs=1e-6) for each in alone]


def test_export_is_independent_of_number_of_ranks(
    model: Path, two_ranks: Ranks, tmp_path: Path
) -> None:
    two_ranks.run(policy_support.export, str(model), str(tmp_path / "exported"))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    original = AutoModelForCausalLM.from_pretrained(model)
    assert_equal(dict(loaded.named_parameters()), dict(original.named_parameters()))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_non_finite_gradients_do_not_change_parameters(model: Path, bad: float) -> None:
    policy, expected = make_policy(model), make_policy(model)
    before = parameters(policy)
    metrics = policy.step([make_group(), make_group(advantages=(bad, 0.5, 0.5))], step=1)

    assert metrics.non_finite
    assert_equal(parameters(policy), before)
    policy.step([make_group()], step=2)
    expected.step([make_group()], step=2)
    assert_equal(parameters(policy), parameters(expected))


def test_later_mini_batches_use_logprobs_before_first_update(model: Path) -> None:
    groups = [make_group(seed=seed) for seed in range(3)]
    policy = make_policy(
        model, mini_batch_prompts=1, learning_rate=0.05, warmup_steps=0, tokens_per_micro_batch=999
    )
    metrics = policy.step(groups, step=1)

    # A ratio that leaves 1 can only come from old log-probabilities of another policy.
    assert metrics.clip_fraction > 0.1
    assert make_policy(model).step(groups, step=1).clip_fraction == 0.0


def test_kl_is_measured_against_initial_model(model: Path) -> None:
    policy = make_policy(model, objective=make_objective(kl_coefficient=0.1))
    divergences = [policy.step(uneven_groups(), step=step).kl for step in (1, 2)]
    assert divergences[0] == pytest.approx(0.0, abs=1e-6)
    assert divergences[1] > 1e-3


def test_groups_without_variance_are_trained_when_kl_is_enabled(model: Path) -> None:
    policy = make_policy(model, objective=make_objective(kl_coefficient=0.1))
    metrics = policy.step([make_group(advantages=(0.0, 0.0, 0.0))], step=1)
    assert metrics.num_trained_tokens == metrics.num_sampled_tokens == 21


def test_parameters_are_counted_over_whole_model(model: Path, two_ranks: Ranks) -> None:
    plain = AutoModelForCausalLM.from_pretrained(model)
    actual = two_ranks.run(policy_support.count_parameters, str(model))
    assert actual == [plain.num_parameters()] * 2


def test_device_memory_and_name_are_empty_on_cpu(model: Path) -> None:
    policy = make_policy(model)
    metrics = policy.step([make_group()], step=1)
    assert metrics.device_memory_bytes is metrics.device_memory_reserved_bytes is None
    assert policy.device_name == ""


def test_step_reports_seconds_of_phases(model: Path) -> None:
    policy = make_policy(model, objective=make_objective(kl_coefficient=0.1))
    trained = policy.step([make_group()], step=1).phase_seconds()
    idle = policy.step([], step=2).phase_seconds()

    assert [*trained] == [*Phase]
    assert all(seconds > 0.0 for seconds in trained.values())
    assert idle["backward"] == idle["optimizer"] == 0.0


def test_learning_rate_warms_up_linearly_then_stays_constant(model: Path) -> None:
    policy = make_policy(model, learning_rate=0.01, warmup_steps=4)
    rates = [policy.step([make_group()], step=step).learning_rate for step in (1, 2, 4, 9)]
    assert rates == pytest.approx([0.0025, 0.005, 0.01, 0.01])


def test_resumed_run_continues_learning_rate_schedule(model: Path, tmp_path: Path) -> None:
    cosine = {"learning_rate": 1e-2, "learning_rate_schedule": "Cosine", "decay_steps": 4}
    first = make_policy(model, **cosine)
    run_steps(first, steps=range(1, 3))
    save(first.state_dict(), checkpoint_id=str(tmp_path / "checkpoint"))
    _, expected = run_steps(first, steps=range(3, 5))
    second = make_policy(model, **cosine)
    resume(second, str(tmp_path / "checkpoint"))
    rates = [second.step(uneven_groups(), step=step).learning_rate for step in (3, 4)]

    spec = TrainingSpec.model_validate(cosine | {"warmup_steps": 2})
    assert rates == [learning_rate(spec, step) for step in (3, 4)]
    assert rates[0] > rates[1]
    assert_equal(parameters(second), expected)


def test_gradients_are_clipped_to_max_norm(model: Path) -> None:
    free = make_policy(model, max_grad_norm=1e6).step(uneven_groups(), step=1)
    clipped = make_policy(model, max_grad_norm=1e-3).step(uneven_groups(), step=1)
    assert clipped.grad_norm == free.grad_norm > 1e-3


@pytest.mark.row("A32")
def test_explicit_attention_kernels_need_padded_rows() -> None:
    with pytest.raises(ValueError, match="rowLayout: Padded"):
        attention_implementation(Attention.FLASH, RowLayout.SHARED_PREFIX)
    assert attention_implementation(Attention.FLASH, RowLayout.PADDED) == "flash_attention_2"
    assert attention_implementation(Attention.SDPA, RowLayout.PADDED) == "sdpa"
    # None: transformers selects sdpa if the model supports it.
    assert attention_implementation(Attention.AUTO, RowLayout.PADDED) is None


@pytest.mark.row("A20")
def test_bf16_step_matches_fp32_within_precision(model: Path, two_ranks: Ranks) -> None:
    changes = {"precision": Precision.BF16}
    (exact, *_), _ = run_steps(make_policy(model), steps=range(1, 2))
    (((loss, grad_norm), *_), trained), _ = two_ranks.run(
        policy_support.train, str(model), changes, range(1, 2)
    )

    assert loss == pytest.approx(exact[0], abs=0.02)
    assert grad_norm == pytest.approx(exact[1], rel=0.05)
    assert (loss, grad_norm) != exact
    # engines receive weights in the dtype of the forward pass
    assert {tensor.dtype for tensor in trained.values()} == {torch.bfloat16}


def test_checksum_covers_all_ranks_and_every_bit(model: Path, two_ranks: Ranks) -> None:
    policy = make_policy(model)
    first = policy.checksum()
    assert two_ranks.run(policy_support.checksum, str(model)) == [first, first]

    policy.step(uneven_groups(), step=1)
    trained = policy.checksum()
    state = policy._optimizer.state[next(policy._model.parameters())]
    checksums = {first, trained}
    for tensor in (next(policy._model.parameters()).detach(), state["exp_avg_sq"]):
        local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
        local.view(torch.int32).view(-1)[-1] ^= 1
        checksums.add(policy.checksum())
    assert len(checksums) == 4


def test_forward_pass_does_not_change_checksum(model: Path, two_ranks: Ranks) -> None:
    policy = make_policy(model)
    before = policy.checksum()

    policy.logprobs([make_group()])  # the root's parameters stay unsharded until a backward pass
    policy.step([make_group(advantages=(0.0, 0.0, 0.0))], step=1)

    assert policy.checksum() == before
    assert two_ranks.run(policy_support.checksum_after_forward, str(model)) == [before, before]
