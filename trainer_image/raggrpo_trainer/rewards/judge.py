"""A language model as judge, called through an OpenAI-compatible /v1/chat/completions endpoint.

LLM-as-a-judge: Zheng et al. 2023, arXiv 2306.05685. A reply in JSON is requested, unless the server
rejects it; `grades` parses the replies. A failed call raises CallFailed and affects one sample.
"""

import json
import logging
import sys
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

from raggrpo_api.fields.json_values import render_template, render_text
from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.json_service import GateOptions, JsonService, Request, RetryPolicy
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.http.shared_calls import SharedCalls
from raggrpo_trainer.retrieval.protocols import fill_template

from .grades import GRADE_KEYS, parse_grade

log = logging.getLogger(__name__)

CACHED_GRADES: Final = 10_000
MIN_JSON_TOKENS: Final = 32
"""Minimum `maxTokens` for a reply in JSON; a shorter limit is meant for a bare number."""
OUTPUT_FORMATS: Final = ("response_format", "structured_outputs", "guided_", "grammar", "tools")
"""Prefixes of request fields that determine the format of a reply."""
JSON_FORMAT: Final = {
    "type": "json_schema",
    "json_schema": {
        "name": "grade",
        "schema": {
            "type": "object",
            "properties": {"reason": {"type": "string"}, GRADE_KEYS[0]: {"type": "number"}},
            "required": [GRADE_KEYS[0]],
            "additionalProperties": False,
        },
    },
}
"""`response_format` of OpenAI's API; the reason is optional."""

REJECTIONS: Final = (FailureCause.HTTP_STATUS, FailureCause.SERVICE_ERROR)


class JudgeReward:
    """Grades samples; equal requests share one call and its grade unless `cache` is false."""

    def __init__(
        self,
        http: HttpPool,
        url: str,
        spec: JudgeSpec,
        headers: Mapping[str, str],
        timeout_seconds: float,
        cached_grades: int = CACHED_GRADES,
        first_delay_seconds: float = 0.5,
        gate: GateOptions | None = None,
    ) -> None:
        """`headers` contains resolved secrets. With `gate`, calls wait while the judge is down."""
        self._spec = spec
        self._parse = partial(parse_grade, spec)
        self._timeout_seconds = timeout_seconds
        self._tasks = BackgroundTasks()
        self._requests_json = _can_request_json(spec)
        self._has_json_support = False
        # The key is the whole request as JSON.
        self._grades: SharedCalls[str, float] = SharedCalls(
            self._tasks, cached_grades, lambda key, _: sys.getsizeof(key)
        )
        self._service = JsonService(
            http,
            url,
            headers=headers,
            timeout_seconds=timeout_seconds,
            max_concurrency=spec.max_concurrency,
            retry=RetryPolicy(spec.retries, first_delay_seconds),
            gate=gate,
        )

    async def score(self, sample: Mapping[str, Any]) -> float:
        """Return the grade of a sample, scaled to 0 to 1. Raises CallFailed."""
        values = _values(sample)
        body = fill_template(self._spec, values, _body)
        if not self._spec.cache:
            return await self._grade(body)
        # {message_id} differs in every call and must not be part of the key.
        key = json.dumps(_body(self._spec, values | {"message_id": ""}), sort_keys=True)
        return await self._grades.get(key, lambda: self._grade(body))

    async def close(self) -> None:
        """Cancel the calls in flight."""
        await self._tasks.close()

    async def _grade(self, body: Mapping[str, Any]) -> float:
        if not self._requests_json:
            return await self._post(body)
        with_format = {**body, "response_format": JSON_FORMAT}
        if self._has_json_support:
            return await self._post(with_format)
        try:
            # A server may reject the format with any status, so a failure is not an outage yet.
            request = Request(with_format)
            grade = await self._service.post_once(request, self._parse, self._timeout_seconds)
        except CallFailed as failure:
            if failure.cause in REJECTIONS:
                grade = await self._post(body)
                if not failure.transient and self._requests_json:
                    log.info(
                        "judge %s: reply in JSON is not requested: %s", self._spec.model, failure
                    )
                    self._requests_json = False
                return grade
            if failure.transient:
                return await self._post(with_format)
            raise
        self._has_json_support = True
        return grade

    async def _post(self, body: Mapping[str, Any]) -> float:
        return await self._service.post(Request(body), self._parse)


def _can_request_json(spec: JudgeSpec) -> bool:
    """Return whether a reply in JSON suits the grade's format and the specified request."""
    is_format_specified = any(name.startswith(OUTPUT_FORMATS) for name in spec.extra_body)
    is_parsed_by_format = not spec.score_pattern and not spec.score_path
    return is_parsed_by_format and not is_format_specified and spec.max_tokens >= MIN_JSON_TOKENS


def _values(sample: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of placeholders; the sample's fields take precedence over columns."""
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
    """Return the body of a request. Raises KeyError for a placeholder without a value."""
    messages = [("system", spec.system), ("user", spec.prompt)]
    return {
        **render_template(spec.extra_body, values),
        "model": spec.model,
        "messages": [
            {"role": role, "content": render_text(text, values)} for role, text in messages if text
        ],
        "temperature": spec.temperature,
        "max_tokens": spec.max_tokens,
        "stream": False,
    }
