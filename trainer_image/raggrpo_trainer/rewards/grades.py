"""Read the grade in a judge's reply, by a path, a pattern or what usually stands there. Pure.

A grade that can be read in two ways is none: a wrong reward trains, and nobody sees it.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # its searches take a time limit

from raggrpo_api.fields.json_values import values_at
from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.diagnosis import has_error, service_error
from raggrpo_trainer.http.responses import require_object

from .worker import finite_number

READ_CHARACTERS: Final = 16_384
"""Of a reply, from its end: a grade comes last."""
PATTERN_SECONDS: Final = 1.0
SHOWN_CHARACTERS: Final = 120
CHOICE: Final = "choices[0]"
CONTENT: Final = f"{CHOICE}.message.content"
_THINKING: Final = regex.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", regex.DOTALL)
_NUMBER: Final = r"(?<![\w.,/])-?\d+(?:,\d{3})*(?:\.\d+)?(?!\w)"
_GRADE: Final = regex.compile(rf"({_NUMBER})(?:\s*(?:/|out of|of)\s*\d+(?:\.\d+)?)?")
_NAMED: Final = regex.compile(
    rf"\b(?:grade|score|rating|points?)\b[\s\"'*_:=]*(?:is|of)?[\s\"'*_:=]*({_NUMBER})",
    regex.IGNORECASE,
)
_FENCED: Final = regex.compile(r"```(?:json)?\s*(.*?)```", regex.DOTALL)


def parse_grade(spec: JudgeSpec, answer: Any) -> float:
    """Return the grade in a chat completion, scaled so that lowest is 0 and highest 1.

    Raises CallFailed: MissingField without a reply, NotANumber without one grade within the range.
    """
    reply = _reply(require_object(answer))
    if spec.score_path:
        grade = _at_path(spec.score_path, reply)
    elif spec.score_pattern:
        grade = _by_pattern(spec.score_pattern, reply)
    else:
        if values_at(f"{CHOICE}.finish_reason", answer) == ["length"]:
            raise _no_grade("the judge's reply was cut off; raise judge.maxTokens")
        grade = _usual(reply)
    if not spec.lowest <= grade <= spec.highest:
        raise _no_grade(
            f"the judge's grade {grade:g} is not within {spec.lowest:g} to {spec.highest:g}"
        )
    return (grade - spec.lowest) / (spec.highest - spec.lowest)


def _reply(answer: Mapping[str, Any]) -> str:
    """Return what the judge wrote after it had thought."""
    found = values_at(CONTENT, answer)
    if not found or not isinstance(found[0], str):
        if has_error(answer):
            raise service_error(answer)
        why = f"{CONTENT}: the judge wrote no text"
        if values_at(f"{CHOICE}.message.reasoning_content", answer):
            why += " after its reasoning; raise judge.maxTokens, or switch reasoning off"
        raise CallFailed(FailureCause.MISSING_FIELD, why)
    reply: str = _THINKING.sub("", found[0])[-READ_CHARACTERS:]
    return reply


def _usual(reply: str) -> float:
    """Return the number after `grade`, `score` or `rating`, the last one, or the only number."""
    if named := _NAMED.findall(reply):
        return _number(named[-1].replace(",", ""), reply)
    numbers = {number.replace(",", "") for number in _GRADE.findall(reply)}
    if len(numbers) > 1:
        raise _no_grade(
            f"the judge's reply has several numbers: {_shown(reply)}; set judge.scorePattern, such "
            r"as 'Grade: (\d+)'"
        )
    if not numbers:
        raise _no_grade(f"the judge's reply has no grade: {_shown(reply)}")
    return _number(numbers.pop(), reply)


def _at_path(path: str, reply: str) -> float:
    # Models like to put JSON into a fenced block, with words around it.
    fenced = _FENCED.findall(reply)
    try:
        found = values_at(path, json.loads(fenced[-1] if fenced else reply))
    except (ValueError, RecursionError) as error:
        raise _no_grade(f"the judge's reply is not JSON: {_shown(reply)}") from error
    if not found:
        raise _no_grade(f"the judge's reply has nothing at {path}: {_shown(reply)}")
    return _number(found[0], reply)


def _by_pattern(pattern: str, reply: str) -> float:
    try:
        found = regex.search(pattern, reply, timeout=PATTERN_SECONDS)
    except TimeoutError as error:
        raise _no_grade(f"scorePattern took more than {PATTERN_SECONDS:g} s") from error
    if found is None:
        raise _no_grade(f"the judge's reply has nothing like scorePattern: {_shown(reply)}")
    return _number(found.group(1) if found.re.groups else found.group(0), reply)


def _number(value: Any, reply: str) -> float:
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _no_grade(f"the judge's grade is no number: {_shown(reply)}") from error
    return finite_number(None if isinstance(number, bool) else number)


def _no_grade(detail: str) -> CallFailed:
    return CallFailed(FailureCause.NOT_A_NUMBER, detail)


def _shown(reply: str) -> str:
    return repr(reply[-SHOWN_CHARACTERS:])
