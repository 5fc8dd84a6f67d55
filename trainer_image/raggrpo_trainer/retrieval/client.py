"""Ask retrieval endpoints for passages while many samples are generated at once.

A call that fails concerns its sample only and raises RetrievalFailed (A13); this module counts
latencies and causes, but never decides whether the run goes on.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, assert_never

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    RetrievalEndpoint,
    RetrievalSpec,
)
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.json_service import (
    ONE_TRY,
    CallSummary,
    CircuitBreaker,
    JsonService,
    RetryPolicy,
)
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.sample_failures import CallFailed, RetrievalFailed

from .micro_batch import MicroBatcher
from .protocols import Passage, Question, parse_answer, request_body

logger = logging.getLogger(__name__)

BATCH_QUERIES = 64
BATCH_WINDOW_SECONDS = 0.005
CACHED_ANSWERS = 10_000  # per endpoint; three passages of 1 KiB each make that 30 MiB
WARM_UP_PAUSE_SECONDS = 1.0
WARM_UP_TEXT = "warm-up"

Passages = tuple[Passage, ...]
"""Answer to one question, best passage first."""


@dataclass(frozen=True)
class WarmUp:
    """Seconds that the first answer took (with the wait for it), and the one after it (A4)."""

    first_seconds: float
    next_seconds: float


class RetrievalClient:
    """All endpoints of a job over one connection pool; an async context manager.

    Equal questions to one endpoint share one call and, later, its remembered answer; so those who
    wait for the same call share its failure too (`cache: false` on the endpoint ends both).
    """

    def __init__(
        self,
        spec: RetrievalSpec,
        headers: Mapping[str, Mapping[str, str]],
        *,
        log_calls: bool = False,
        retry: RetryPolicy = RetryPolicy(),
        cached_answers: int = CACHED_ANSWERS,
    ) -> None:
        """`headers`: by endpoint name, secrets already resolved. `log_calls`: the switch of A11."""
        self._log_calls = log_calls
        self._tasks = BackgroundTasks()
        self._http = HttpPool()
        self._endpoints = {
            endpoint.name: _Endpoint(
                endpoint,
                JsonService(
                    self._http,
                    endpoint.url,
                    headers=headers.get(endpoint.name, {}),
                    timeout_seconds=endpoint.timeout_seconds,
                    max_concurrency=endpoint.max_concurrency,
                    retry=retry,
                    breaker=CircuitBreaker(),
                ),
                self._tasks,
                cached_answers,
            )
            for endpoint in spec.endpoints
        }
        self._actor_fields = spec.actor_output.fields

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self._http.close()

    async def retrieve(
        self, endpoint: str, context: str, fields: Mapping[str, str] | None = None, *, sample: str
    ) -> Passages:
        """Return the passages for a query, or for a context with the actor's `fields`.

        `sample` is the id that log lines carry. Raises RetrievalFailed.
        """
        question = Question(context, tuple((fields or {}).items()))
        asked = self._endpoints[endpoint]
        status = "remembered" if asked.remembers(question) else "asked"
        started = time.monotonic()
        try:
            passages = await asked.ask(question)
        except RetrievalFailed as failure:
            self._log(endpoint, sample, started, f"{failure.cause}: {failure.detail}")
            raise
        self._log(endpoint, sample, started, f"{status}, {len(passages)} passages")
        return passages

    async def ask_once(self, endpoint: str, question: Question) -> Passages:
        """Make one call, without memory, batches and retries. Raises CallFailed."""
        asked = self._endpoints[endpoint]
        return await asked.ask_once(question, asked.spec.timeout_seconds)

    async def warm_up(self, endpoint: str, limit_seconds: float) -> WarmUp:
        """Ask until a first answer comes, then once more, and return what both took (A4).

        The first answer of a cold service is slow, so it may take the whole limit. Raises
        TrainerError with the endpoint's name, URL, status and the start of its body.
        """
        asked = self._endpoints[endpoint]
        fields: dict[str, str] = {}
        if asked.spec.role is EndpointRole.ACTOR:
            fields = dict.fromkeys(self._actor_fields, WARM_UP_TEXT)
        question = Question(WARM_UP_TEXT, tuple(fields.items()))
        started = time.monotonic()
        try:
            await asked.ask_until_answered(question, started + limit_seconds)
            answered = time.monotonic()
            await asked.ask_once(question, asked.spec.timeout_seconds)
        except CallFailed as failure:
            raise TrainerError(
                ExitCode.RETRIEVAL_UNAVAILABLE,
                f"endpoint {endpoint} ({asked.service.shown_url}) gave no usable answer for "
                f"{time.monotonic() - started:.0f} s: {failure.cause}: {failure.detail}; "
                "check that the service runs, its URL and its headers",
            ) from failure
        return WarmUp(answered - started, time.monotonic() - answered)

    def summaries(self) -> dict[str, CallSummary]:
        """Return each endpoint's latencies (seconds) and failures since the start."""
        return {
            name: endpoint.service.statistics.summary()
            for name, endpoint in self._endpoints.items()
        }

    def _log(self, endpoint: str, sample: str, started: float, status: str) -> None:
        if self._log_calls:
            seconds = time.monotonic() - started
            logger.info("rag call %s sample %s %.3f s %s", endpoint, sample, seconds, status)


class _Endpoint:
    """One endpoint: batches where its protocol can, remembers answers where the job allows."""

    def __init__(
        self,
        spec: RetrievalEndpoint,
        service: JsonService,
        tasks: BackgroundTasks,
        cached_answers: int,
    ) -> None:
        self.spec = spec
        self.service = service
        self._tasks = tasks
        self._cached_answers = cached_answers
        self._batcher: MicroBatcher[Question, Passages] = MicroBatcher(
            self._ask_batch, tasks, window_seconds=BATCH_WINDOW_SECONDS, max_size=BATCH_QUERIES
        )
        # In flight or answered, least recently asked first.
        self._answers: OrderedDict[Question, asyncio.Task[Passages]] = OrderedDict()

    def remembers(self, question: Question) -> bool:
        return question in self._answers

    async def ask(self, question: Question) -> Passages:
        if not self.spec.cache:
            return await self._ask_anew(question)
        task = self._answers.get(question)
        if task is None:
            task = self._answers[question] = self._tasks.start(self._ask_anew(question))
            task.add_done_callback(lambda done: self._forget_failure(question, done))
            if len(self._answers) > self._cached_answers:
                self._answers.popitem(last=False)
        self._answers.move_to_end(question)
        return await asyncio.shield(task)

    async def ask_once(self, question: Question, timeout_seconds: float) -> Passages:
        answer = await self.service.post_once(request_body(self.spec, [question]), timeout_seconds)
        [passages] = parse_answer(self.spec.protocol, answer, 1)
        return passages

    async def ask_until_answered(self, question: Question, deadline: float) -> None:
        while True:
            try:
                await self.ask_once(question, max(deadline - time.monotonic(), 0.0))
                return
            except CallFailed as failure:
                if not failure.transient or time.monotonic() + WARM_UP_PAUSE_SECONDS > deadline:
                    raise
            await asyncio.sleep(WARM_UP_PAUSE_SECONDS)

    async def _ask_anew(self, question: Question) -> Passages:
        match self.spec.protocol:
            case EndpointProtocol.SEARCH_R1:
                return await self._batcher.ask(question)
            case EndpointProtocol.RAG_CHAT:
                [passages] = await self._post([question])
                return passages
            case _:
                assert_never(self.spec.protocol)

    async def _ask_batch(self, questions: Sequence[Question]) -> list[Passages | BaseException]:
        if len(questions) > 1:
            try:
                return [*await self._post(questions, ONE_TRY)]
            except RetrievalFailed as failure:
                # One bad question must not cost its neighbours theirs (A13).
                logger.debug("asking %d questions one by one: %s", len(questions), failure)
        each = await asyncio.gather(
            *(self._post([question]) for question in questions), return_exceptions=True
        )
        return [outcome if isinstance(outcome, BaseException) else outcome[0] for outcome in each]

    async def _post(
        self, questions: Sequence[Question], retry: RetryPolicy | None = None
    ) -> list[Passages]:
        try:
            return await self.service.post(
                request_body(self.spec, questions),
                lambda answer: parse_answer(self.spec.protocol, answer, len(questions)),
                retry,
            )
        except CallFailed as failure:
            raise RetrievalFailed(self.spec.name, failure.cause, failure.detail) from failure

    def _forget_failure(self, question: Question, done: asyncio.Task[Passages]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed and self._answers.get(question) is done:
            del self._answers[question]
