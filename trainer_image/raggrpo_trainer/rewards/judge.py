"""A language model as judge, called through an OpenAI-compatible /v1/chat/completions endpoint.

LLM-as-a-judge: Zheng et al. 2023, arXiv 2306.05685. `grades` parses the replies. A failed call
raises CallFailed and affects one sample.
"""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, Final
from uuid import uuid4

from raggrpo_api.fields.json_values import render_template, render_text
from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.json_service import GateOptions, JsonService, Request, RetryPolicy
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.http.shared_calls import SharedCalls
from raggrpo_trainer.retrieval.protocols import fill_template

from .grades import parse_grade

CACHED_GRADES: Final = 10_000


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
        self._tasks = BackgroundTasks()
        # The key is the whole request as JSON.
        self._grades: SharedCalls[str, float] = SharedCalls(self._tasks, cached_grades)
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
        return await self._service.post(Request(body), partial(parse_grade, self._spec))


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
