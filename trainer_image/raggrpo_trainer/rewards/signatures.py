"""How a user's reward function is called, and what it must return: our signature, verl's or TRL's.

function = UserFunction("my_rewards:score", imported, PythonSignature.VERL)
reward = function.reward(function(sample))
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any, Final, assert_never

from raggrpo_api.spec.reward import PythonSignature
from raggrpo_trainer.call_failures import CallFailed, FailureCause

from .reward_value import DETAIL_CHARACTERS, finite_number

Sample = dict[str, Any]
"""A sample as passed to a function of signature Native; JSON values only."""

EXPECTED: Final = {
    PythonSignature.NATIVE: "a function of one dict, the sample, that returns a number",
    PythonSignature.VERL: "a function of data_source, solution_str, ground_truth and extra_info "
    "that returns a number or a dict with the number `score`",
    PythonSignature.TRL: "a function of prompts, completions and columns as lists that returns a "
    "list with one number per completion",
}
FOREIGN_PARAMETERS: Final = {
    "solution_str": PythonSignature.VERL,
    "completions": PythonSignature.TRL,
}
"""Parameters that show for which trainer a function was written."""
TEXT_COLUMNS: Final = frozenset({"prompt", "completion", "prompts", "completions"})
"""Columns that TRL does not pass to reward functions."""


class RewardCodeInvalid(Exception):
    """A function cannot be imported or called; the message has the function and the remedy."""


class UserFunction:
    """A user's reward function, called with a sample."""

    def __init__(
        self, target: str, function: Callable[..., Any], signature: PythonSignature
    ) -> None:
        """Wrap a function. Raises RewardCodeInvalid if the function does not have the signature."""
        self._function = function
        self._signature = signature
        self._parameters = _parameters(function)
        if problem := self._signature_problem():
            raise RewardCodeInvalid(f"reward {target} {problem}")

    @property
    def is_coroutine(self) -> bool:
        """Whether it is a coroutine function."""
        return inspect.iscoroutinefunction(self._function)

    def __call__(self, sample: Sample) -> Any:
        """Return the function's result, which is awaitable for a coroutine function."""
        match self._signature:
            case PythonSignature.NATIVE:
                return self._function(sample)
            case PythonSignature.VERL:
                return self._call(_verl_arguments(sample))
            case PythonSignature.TRL:
                return self._call(_trl_arguments(sample))
            case _:
                assert_never(self._signature)

    def reward(self, result: object) -> float:
        """Return the reward in a result. Raises CallFailed (WrongType or NotANumber)."""
        value = result
        match self._signature, result:
            case PythonSignature.VERL, {"score": score}:
                value = score
            case PythonSignature.TRL, [item]:
                value = item
            case PythonSignature.TRL, _:
                value = None
        if not _is_number(value):
            shown = f"{_shown(result)} ({type(result).__name__})"
            raise CallFailed(
                FailureCause.WRONG_TYPE, f"returned {shown}, expected {EXPECTED[self._signature]}"
            )
        return finite_number(value)

    def _signature_problem(self) -> str:
        """Return how the function differs from the signature, or ""."""
        if self._parameters is None:
            return ""
        actual = _signature_of(self._parameters)
        if actual is not PythonSignature.NATIVE:
            is_suitable = actual is self._signature
        elif self._signature is PythonSignature.NATIVE:
            is_suitable = _takes_one_argument(self._parameters)
        else:
            is_suitable = _has_keywords(self._parameters)
        if is_suitable:
            return ""
        names = ", ".join(self._parameters)
        remedy = "change the function"
        if actual is not self._signature:
            remedy = f"set signature: {actual}, or change the function"
        return f"has the parameters ({names}), expected {EXPECTED[self._signature]}; {remedy}"

    def _call(self, arguments: Mapping[str, Any]) -> Any:
        named = self._accepted(arguments)
        positional = [
            named.pop(name)
            for name, parameter in (self._parameters or {}).items()
            if parameter.kind is Parameter.POSITIONAL_ONLY and name in named
        ]
        return self._function(*positional, **named)

    def _accepted(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments that the function has parameters for."""
        if self._parameters is None or _has_keywords(self._parameters):
            return dict(arguments)
        return {name: value for name, value in arguments.items() if name in self._parameters}


def _parameters(function: Callable[..., Any]) -> Mapping[str, Parameter] | None:
    """Return the parameters of a function, or None if it does not state them."""
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def _signature_of(parameters: Mapping[str, Parameter]) -> PythonSignature:
    foreign = (FOREIGN_PARAMETERS[name] for name in parameters if name in FOREIGN_PARAMETERS)
    return next(foreign, PythonSignature.NATIVE)


def _has_keywords(parameters: Mapping[str, Parameter]) -> bool:
    return any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())


def _takes_one_argument(parameters: Mapping[str, Parameter]) -> bool:
    try:
        inspect.Signature(list(parameters.values())).bind({})
    except TypeError:
        return False
    return True


def _verl_arguments(sample: Sample) -> dict[str, Any]:
    """Return the arguments of verl's `compute_score`.

    The ground truth is the one of verl's column `reward_model`, or else the accepted answers, of
    which a single one is passed as text.
    """
    answers = sample["answer"]
    columns = sample["columns"]
    model = columns.get("reward_model")
    truth = model.get("ground_truth") if isinstance(model, Mapping) else None
    if truth is None:
        truth = answers[0] if len(answers) == 1 else answers
    return {
        "data_source": columns.get("data_source", ""),
        "solution_str": sample["completion"],
        "ground_truth": truth,
        "extra_info": columns.get("extra_info") or {},
    }


def _trl_arguments(sample: Sample) -> dict[str, Any]:
    """Return the arguments of a TRL reward function for one completion.

    As in TRL, prompts and completions are lists of messages if the prompts of the data are.
    """
    columns = sample["columns"]
    prompt, completion = sample["prompt"], sample["completion"]
    if isinstance(columns.get("prompt"), list):
        prompt = columns["prompt"]
        completion = [{"role": "assistant", "content": completion}]
    others = {name: [value] for name, value in columns.items() if name not in TEXT_COLUMNS}
    return {**others, "prompts": [prompt], "completions": [completion]}


def _is_number(value: object) -> bool:
    """Return whether `value` converts to float and is not text."""
    if isinstance(value, str | bytes | bytearray | Sequence):
        return False
    try:
        float(value)  # type: ignore[arg-type]
    except OverflowError:  # an integer beyond float's range is a number
        return True
    except Exception:  # a user's type may raise anything
        return False
    return True


def _shown(value: object) -> str:
    try:
        return repr(value)[:DETAIL_CHARACTERS]
    except Exception:
        return "a value without repr"
