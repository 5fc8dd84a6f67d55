"""Signatures of user rewards: arguments and results as in our, verl's and TRL's trainers."""

from collections.abc import Callable
from typing import Any

import pytest

from raggrpo_api.spec.reward import PythonSignature
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.rewards.rewards import RewardSample
from raggrpo_trainer.rewards.signatures import EXPECTED, RewardCodeInvalid, UserFunction
from raggrpo_trainer.rewards.worker import exception_failure

NATIVE, VERL, TRL = PythonSignature


def make_sample(**columns: Any) -> dict[str, Any]:
    return RewardSample("1/0", "Capital?", "Paris", ("Paris",), columns=columns).as_json()


def call(function: Callable[..., Any], signature: PythonSignature, sample: dict[str, Any]) -> float:
    wrapped = UserFunction("m:f", function, signature)
    return wrapped.reward(wrapped(sample))


def test_verl_function_gets_columns_and_returns_number_or_dict() -> None:
    received: dict[str, Any] = {}

    def compute_score(
        data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None
    ) -> dict[str, Any]:
        received.update(locals())
        return {"score": 0.5, "acc": True}

    sample = make_sample(data_source="gsm8k", extra_info={"index": 3})
    assert call(compute_score, VERL, sample) == 0.5
    assert {name: received[name] for name in ("data_source", "ground_truth")} == {
        "data_source": "gsm8k",
        "ground_truth": "Paris",
    }
    assert (received["solution_str"], received["extra_info"]) == ("Paris", {"index": 3})


def test_verl_function_gets_ground_truth_of_its_column() -> None:
    truth = {"target": ["Paris", "paris"]}
    sample = make_sample(reward_model={"style": "rule", "ground_truth": truth})
    assert call(lambda solution_str, ground_truth: ground_truth == truth, VERL, sample) == 1.0


def test_trl_function_gets_lists_and_only_its_parameters() -> None:
    def reward(completions: list[str], prompts: list[str], level: list[int]) -> list[float]:
        assert (prompts, completions) == (["Capital?"], ["Paris"])
        return [float(each) for each in level]

    assert call(reward, TRL, make_sample(level=4, unused=1)) == 4.0


def test_trl_function_gets_messages_if_prompts_are_messages() -> None:
    messages = [{"role": "user", "content": "Capital?"}]

    def reward(prompts: Any, completions: Any, **columns: Any) -> list[float]:
        assert prompts == [messages]
        assert columns == {"answer": ["Paris"]}
        return [float(len(completion[0]["content"])) for completion in completions]

    assert call(reward, TRL, make_sample(prompt=messages, answer="Paris")) == 5.0


@pytest.mark.parametrize("function", [lambda sample: True, lambda sample, weight=2: 1, int])
def test_function_of_one_argument_has_native_signature(function: Any) -> None:
    UserFunction("m:f", function, NATIVE)


@pytest.mark.parametrize(
    ("function", "signature", "remedy"),
    [
        (lambda data_source, solution_str, ground_truth: 0, NATIVE, "set signature: Verl"),
        (lambda completions, **kwargs: 0, NATIVE, "set signature: Trl"),
        (lambda prompts, completions: 0, VERL, "set signature: Trl"),
        (lambda sample: 0, TRL, "set signature: Native"),
        (lambda: 0, NATIVE, "change the function"),
        (lambda a, b: 0, NATIVE, "change the function"),
    ],
)
def test_other_signature_is_rejected_with_remedy(
    function: Any, signature: PythonSignature, remedy: str
) -> None:
    with pytest.raises(RewardCodeInvalid) as raised:
        UserFunction("m:f", function, signature)
    assert str(raised.value).startswith("reward m:f has the parameters (")
    assert f"expected {EXPECTED[signature]}" in str(raised.value)
    assert remedy in str(raised.value)


@pytest.mark.parametrize("signature", [VERL, TRL])
def test_function_of_keywords_has_foreign_signature(signature: PythonSignature) -> None:
    UserFunction("m:f", lambda **kwargs: 0, signature)


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError

    def __float__(self) -> float:
        raise KeyError


@pytest.mark.parametrize(
    ("signature", "result", "cause"),
    [
        (NATIVE, None, FailureCause.WRONG_TYPE),
        (NATIVE, {"score": 1.0}, FailureCause.WRONG_TYPE),
        (NATIVE, [1.0], FailureCause.WRONG_TYPE),
        (NATIVE, "0.5", FailureCause.WRONG_TYPE),
        (NATIVE, b"0.5", FailureCause.WRONG_TYPE),
        (NATIVE, 1j, FailureCause.WRONG_TYPE),
        (NATIVE, Unprintable(), FailureCause.WRONG_TYPE),
        (NATIVE, float("nan"), FailureCause.NOT_A_NUMBER),
        (NATIVE, 1e308, FailureCause.NOT_A_NUMBER),
        (NATIVE, -(10**400), FailureCause.NOT_A_NUMBER),
        (VERL, {"acc": 1.0}, FailureCause.WRONG_TYPE),
        (VERL, {"score": None}, FailureCause.WRONG_TYPE),
        (VERL, {"score": float("inf")}, FailureCause.NOT_A_NUMBER),
        (TRL, 1.0, FailureCause.WRONG_TYPE),
        (TRL, [], FailureCause.WRONG_TYPE),
        (TRL, [None], FailureCause.WRONG_TYPE),
        (TRL, [1.0, 2.0], FailureCause.WRONG_TYPE),
        (TRL, "1", FailureCause.WRONG_TYPE),
    ],
)
def test_unusable_result_fails_sample(
    signature: PythonSignature, result: Any, cause: FailureCause
) -> None:
    function = UserFunction("m:f", lambda *args, **kwargs: None, signature)
    with pytest.raises(CallFailed) as failed:
        function.reward(result)
    assert failed.value.cause is cause
    if cause is FailureCause.WRONG_TYPE:
        assert f"expected {EXPECTED[signature]}" in failed.value.detail


def test_positional_only_parameters_are_passed_by_position() -> None:
    def score(solution_str: str, ground_truth: str, /, extra_info: Any = None) -> float:
        return float(solution_str == ground_truth and extra_info == {})

    assert call(score, VERL, make_sample()) == 1.0


def test_exception_without_text_is_reported_by_its_type() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    failure = exception_failure(Silent())
    assert (failure.cause, failure.detail) == (
        FailureCause.RAISED,
        "Silent: its message cannot be shown",
    )
