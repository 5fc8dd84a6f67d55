"""Parse the grade in a judge's reply: by path, by pattern, as JSON or in text. Pure.

An ambiguous reply has no grade: a wrong reward would not be noticed in training.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import regex  # type: ignore[import-untyped]  # its searches take a time limit

from raggrpo_api.fields.json_values import values_at
from raggrpo_api.foreign_files import DuplicateKey, unique_keys
from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.reported_errors import reported_error
from raggrpo_trainer.http.responses import require_object

from .grade_text import grades_in
from .reward_value import finite_number

MAX_REPLY_CHARACTERS: Final = 16_384
"""Number of characters searched at the end of a reply, where the grade is expected."""
MAX_CONTENT_CHARACTERS: Final = 1 << 20
"""Maximum length of a reply with its reasoning; judge.maxTokens permits less."""
PATTERN_TIMEOUT_SECONDS: Final = 1.0
EXCERPT_CHARACTERS: Final = 120
CHOICE: Final = "choices[0]"
CONTENT: Final = f"{CHOICE}.message.content"
_REASONING: Final = regex.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", regex.DOTALL)
GRADE_KEYS: Final = ("grade", "score", "rating")
"""Keys of the grade in a JSON reply; the first one that occurs is used."""
_FENCED: Final = regex.compile(r"```(?:json)?\s*+(.*?)```", regex.DOTALL)


def parse_grade(spec: JudgeSpec, response: Any) -> float:
    """Return the grade in a chat completion, scaled from `lowest`..`highest` to 0..1.

    Raises CallFailed: MissingField without a reply, NotANumber without exactly one valid grade.
    """
    reply = _reply(require_object(response))
    if spec.score_path:
        grade = _grade_at_path(spec.score_path, reply)
    elif spec.score_pattern:
        grade = _grade_by_pattern(spec.score_pattern, reply)
    else:
        if values_at(f"{CHOICE}.finish_reason", response) == ["length"]:
            raise _no_grade("the judge's reply was truncated; increase judge.maxTokens")
        grade = _grade_by_format(spec, reply)
    if not spec.lowest <= grade <= spec.highest:
        raise _no_grade(
            f"the judge's grade {grade:g} is outside the range {spec.lowest:g} to {spec.highest:g}"
        )
    return (grade - spec.lowest) / (spec.highest - spec.lowest)


def _reply(response: Mapping[str, Any]) -> str:
    """Return the judge's reply without its reasoning."""
    contents = values_at(CONTENT, response)
    if not contents or not isinstance(contents[0], str):
        if error := reported_error(response):
            raise error
        problem = f"{CONTENT}: the judge wrote no text"
        if values_at(f"{CHOICE}.message.reasoning_content", response):
            problem += " after its reasoning; increase judge.maxTokens or disable reasoning"
        raise CallFailed(FailureCause.MISSING_FIELD, problem)
    if len(contents[0]) > MAX_CONTENT_CHARACTERS:
        problem = f"{CONTENT}: the judge wrote more than {MAX_CONTENT_CHARACTERS:,} characters"
        raise _no_grade(f"{problem}; decrease judge.maxTokens")
    reply: str = _REASONING.sub("", contents[0])[-MAX_REPLY_CHARACTERS:]
    return reply


def _grade_by_format(spec: JudgeSpec, reply: str) -> float:
    """Return the grade in a JSON object, or else in text."""
    value = _json_grade(reply)
    if not isinstance(value, str):
        return _number(value, reply)
    grades = grades_in(value, spec.lowest, spec.highest)
    if len(grades) > 1:
        raise _no_grade(
            f"the judge's reply contains several numbers: {_excerpt(reply)}; "
            r"set judge.scorePattern, such as 'Grade: (\d+)'"
        )
    if not grades:
        raise _no_grade(f"the judge's reply has no grade: {_excerpt(reply)}")
    return grades[0]


def _json_grade(reply: str) -> Any:
    """Return the value of the grade's key in a JSON reply; `reply` if there is none."""
    try:
        value = _json(reply)
    except (ValueError, RecursionError):
        return reply
    values = value if isinstance(value, dict) else {}
    lower = _fields([(key.lower(), each) for key, each in values.items()])
    return next((lower[key] for key in GRADE_KEYS if key in lower), reply)


def _json(reply: str) -> Any:
    """Return the JSON value in a reply.

    Raises ValueError or RecursionError if there is none, and CallFailed if a key occurs twice.
    """
    # Models often put JSON into a fenced code block, with text around it.
    text = next(reversed(_FENCED.findall(reply)), reply)
    try:
        return json.loads(text, object_pairs_hook=_fields)
    except ValueError:
        start, end = text.find("{"), text.rfind("}")
        if start < 0 or end < start:
            raise
        return json.loads(text[start : end + 1], object_pairs_hook=_fields)


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises CallFailed (NotANumber) if a key occurs twice."""
    try:
        return unique_keys(pairs)
    except DuplicateKey as error:
        raise _no_grade(f"the judge's reply is ambiguous: {error}") from error


def _grade_at_path(path: str, reply: str) -> float:
    try:
        values = values_at(path, _json(reply))
    except (ValueError, RecursionError) as error:
        raise _no_grade(f"the judge's reply is not JSON: {_excerpt(reply)}") from error
    if not values:
        raise _no_grade(f"the judge's reply has no value at {path}: {_excerpt(reply)}")
    return _number(values[0], reply)


def _grade_by_pattern(pattern: str, reply: str) -> float:
    try:
        match = regex.search(pattern, reply, timeout=PATTERN_TIMEOUT_SECONDS)
    except TimeoutError as error:
        raise _no_grade(
            f"matching scorePattern took more than {PATTERN_TIMEOUT_SECONDS:g} s"
        ) from error
    if match is None:
        raise _no_grade(f"the judge's reply does not match scorePattern: {_excerpt(reply)}")
    return _number(match.group(1) if match.re.groups else match.group(0), reply)


def _number(value: Any, reply: str) -> float:
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _no_grade(f"the judge's grade is not a number: {_excerpt(reply)}") from error
    return finite_number(None if isinstance(number, bool) else number)


def _no_grade(detail: str) -> CallFailed:
    return CallFailed(FailureCause.NOT_A_NUMBER, detail)


def _excerpt(reply: str) -> str:
    return repr(reply[-EXCERPT_CHARACTERS:])
