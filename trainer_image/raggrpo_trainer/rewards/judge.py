"""A language model as judge, behind an OpenAI-compatible /v1/chat/completions.

Its reply is read by a path or a regular expression and scaled to 0..1 (LLM-as-a-judge: Zheng et
al. 2023, arXiv 2306.05685). A failure is a CallFailed and affects one sample.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

import regex  # type: ignore[import-untyped]  # its searches take a time limit

from raggrpo_api.json_values import filled, filled_text, values_at
from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.http.answers import as_object
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.json_service import JsonService, Request, RetryPolicy, Waits
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.http.shared_calls import SharedCalls
from raggrpo_trainer.retrieval.protocols import filled_by_sample
from raggrpo_trainer.sample_failures import CallFailed, FailureCause

from .worker import as_number

CACHED_GRADES: Final = 10_000
READ_CHARACTERS: Final = 16_384
"""Of a reply, from its end: a grade comes last."""
PATTERN_SECONDS: Final = 1.0
SHOWN_CHARACTERS: Final = 120
_LAST_NUMBER: Final = r"(?r)(?<![\d.])(-?\d+(?:\.\d+)?)"
CONTENT: Final = "choices[0].message.content"


class JudgeReward:
    """Grades samples; equal prompts with equal completions are graded once if the job allows."""

    def __init__(
        self,
        http: HttpPool,
        url: str,
        spec: JudgeSpec,
        headers: Mapping[str, str],
        timeout_seconds: float,
        cached_grades: int = CACHED_GRADES,
        first_delay_seconds: float = 0.5,
        waits: Waits | None = None,
    ) -> None:
        """`headers`: secrets resolved. With `waits`, calls wait for a judge that is down."""
        self._spec = spec
        self._tasks = BackgroundTasks()
        # By everything that the request holds.
        self._grades: SharedCalls[str, float] = SharedCalls(self._tasks, cached_grades)
        self._service = JsonService(
            http,
            url,
            headers=headers,
            timeout_seconds=timeout_seconds,
            max_concurrency=spec.max_concurrency,
            retry=RetryPolicy(spec.retries, first_delay_seconds),
            waits=waits,
        )

    async def score(self, sample: Mapping[str, Any]) -> float:
        """Return the grade, 0 to 1. Raises CallFailed."""
        values = _values(sample)
        body = filled_by_sample(self._spec, values, _body)
        if not self._spec.cache:
            return await self._grade(body)
        # Without a value of its own for every call, such as {message_id}.
        key = json.dumps(_body(self._spec, values | {"message_id": ""}), sort_keys=True)
        return await self._grades.answer(key, lambda: self._grade(body))

    async def close(self) -> None:
        """End the calls in flight."""
        await self._tasks.close()

    async def _grade(self, body: Mapping[str, Any]) -> float:
        return await self._service.post(Request(body), partial(grade_in, self._spec))


def grade_in(spec: JudgeSpec, answer: Any) -> float:
    """Return the grade in a chat completion, scaled so that lowest is 0 and highest 1 (pure).

    Raises CallFailed: MissingField without a reply, NotANumber without a grade within the range.
    """
    found = values_at(CONTENT, as_object(answer))
    if not found or not isinstance(found[0], str):
        raise CallFailed(FailureCause.MISSING_FIELD, f"{CONTENT}: the judge wrote no text")
    reply = found[0][-READ_CHARACTERS:]
    grade = _at_path(spec.score_path, reply) if spec.score_path else _by_pattern(spec, reply)
    if not spec.lowest <= grade <= spec.highest:
        raise CallFailed(
            FailureCause.NOT_A_NUMBER,
            f"the judge's grade {grade:g} is not within {spec.lowest:g} to {spec.highest:g}",
        )
    return (grade - spec.lowest) / (spec.highest - spec.lowest)


def _at_path(path: str, reply: str) -> float:
    # Models like to put JSON into a fenced block.
    text = reply.strip().removeprefix("```json").removeprefix("```").removesuffix("```")
    try:
        found = values_at(path, json.loads(text))
    except (ValueError, RecursionError) as error:
        raise _no_grade(f"the judge's reply is not JSON: {_shown(reply)}") from error
    if not found:
        raise _no_grade(f"the judge's reply has nothing at {path}: {_shown(reply)}")
    return _number(found[0], reply)


def _by_pattern(spec: JudgeSpec, reply: str) -> float:
    pattern = spec.score_pattern or _LAST_NUMBER
    try:
        found = regex.search(pattern, reply, timeout=PATTERN_SECONDS)
    except TimeoutError as error:
        raise _no_grade(f"scorePattern took more than {PATTERN_SECONDS:g} s") from error
    if found is None:
        raise _no_grade(f"the judge's reply has no grade: {_shown(reply)}")
    return _number(found.group(1) if found.re.groups else found.group(0), reply)


def _number(value: Any, reply: str) -> float:
    try:
        number = float(value) if isinstance(value, str) else value
    except ValueError as error:
        raise _no_grade(f"the judge's grade is no number: {_shown(reply)}") from error
    return as_number(None if isinstance(number, bool) else number)


def _no_grade(detail: str) -> CallFailed:
    return CallFailed(FailureCause.NOT_A_NUMBER, detail)


def _shown(reply: str) -> str:
    return repr(reply[-SHOWN_CHARACTERS:])


def _values(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the placeholders' values; the sample's own fields win over columns."""
    return {
        **sample["columns"],
        **(sample["fields"] or {}),
        "message_id": uuid4().hex,
        "prompt": sample["prompt"],
        "question": sample["prompt"],
        "completion": sample["completion"],
        "answer": " | ".join(sample["answer"]),
        "context": sample["context"],
        "passages": "\n".join(sample["passages"]),
    }


def _body(spec: JudgeSpec, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request. Raises KeyError with a placeholder that has no value."""
    messages = [("system", spec.system), ("user", spec.prompt)]
    return {
        **filled(spec.extra_body, values),
        "model": spec.model,
        "messages": [
            {"role": role, "content": filled_text(text, values)} for role, text in messages if text
        ],
        "temperature": spec.temperature,
        "max_tokens": spec.max_tokens,
        "stream": False,
    }
