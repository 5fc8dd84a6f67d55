"""Query retrieval endpoints for passages while many samples are being generated.

A failed call affects only its sample and raises RetrievalFailed. This module counts latencies and
failure causes but must not decide whether the run continues.
"""

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self, assert_never

from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    RetrievalEndpoint,
    RetrievalSpec,
)
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.call_statistics import CallSummary
from raggrpo_trainer.http.json_service import (
    ONE_TRY,
    GateOptions,
    JsonService,
    RetryPolicy,
)
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.http.service_gate import OutageListener
from raggrpo_trainer.http.shared_calls import SharedCalls
from raggrpo_trainer.sample_failures import RetrievalFailed, source_of

from .micro_batch import MicroBatcher
from .passage import Columns, Passage, Query
from .protocols import column_names, parse_response, request_for

logger = logging.getLogger(__name__)

BATCH_QUERIES = 64
BATCH_WINDOW_SECONDS = 0.005
CACHED_ANSWERS = 10_000  # per endpoint; 30 MiB at three passages of 1 KiB each
WARM_UP_PAUSE_SECONDS = 1.0
WARM_UP_TEXT = "warm-up"

Passages = tuple[Passage, ...]
"""The answer to one query, best passage first."""


@dataclass(frozen=True)
class WarmUp:
    """Seconds until the first answer, including retries, and for the call after it."""

    first_seconds: float
    next_seconds: float


class RetrievalClient:
    """All endpoints of a job over one connection pool; an async context manager.

    Equal queries to an endpoint share one call and then its cached answer. Callers waiting for
    the same call therefore share its failure too. `cache: false` on the endpoint disables both.
    """

    def __init__(
        self,
        spec: RetrievalSpec,
        headers: Mapping[str, Mapping[str, str]],
        *,
        log_calls: bool = False,
        retry: RetryPolicy = RetryPolicy(),
        cached_answers: int = CACHED_ANSWERS,
        outages: OutageListener | None = None,
    ) -> None:
        """`headers`: by endpoint name, secrets resolved. `log_calls`: monitoring.debug.ragCalls.

        With `outages`, calls wait for an endpoint that is down instead of failing.
        """
        self._log_calls, self._outages = log_calls, outages
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
                    gate=GateOptions.of(source_of(endpoint.name), outages, self._tasks),
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
        self,
        endpoint: str,
        context: str,
        fields: Mapping[str, str] | None = None,
        *,
        sample: str,
        columns: Columns | None = None,
    ) -> Passages:
        """Return the passages for a query, or for a context with the actor's `fields`.

        `sample` is the id used in log lines; `columns` are values that templates may name.
        Raises RetrievalFailed.
        """
        asked = self._endpoints[endpoint]
        query = asked.query(context, fields or {}, columns or {})
        status = "remembered" if asked.remembers(query) else "asked"
        started = time.monotonic()
        try:
            passages = await asked.ask(query)
        except RetrievalFailed as failure:
            self._log(endpoint, sample, started, f"{failure.cause}: {failure.detail}")
            raise
        self._log(endpoint, sample, started, f"{status}, {len(passages)} passages")
        return passages

    async def call_once(self, endpoint: str, query: Query) -> Passages:
        """Make one call without cache, batching or retries. Raises CallFailed."""
        asked = self._endpoints[endpoint]
        return await asked.call_once(query, asked.spec.timeout_seconds)

    async def warm_up(
        self, endpoint: str, limit_seconds: float, columns: Columns | None = None
    ) -> WarmUp:
        """Ask until the first answer arrives, then once more, and return both durations.

        `columns`: those of any sample, for templates that name some. A cold service is slow to
        answer at first, so the first answer may take the whole limit.
        Raises TrainerError with the endpoint's name, URL, status and the start of its body: at
        the limit, unless calls wait for an endpoint that is down.
        """
        asked = self._endpoints[endpoint]
        fields: dict[str, str] = {}
        if asked.spec.role is EndpointRole.ACTOR:
            fields = dict.fromkeys(self._actor_fields, WARM_UP_TEXT)
        query = asked.query(WARM_UP_TEXT, fields, columns or {})
        started = time.monotonic()
        try:
            await self._ask_until_answered(asked, query, limit_seconds)
            answered = time.monotonic()
            await asked.call_once(query, asked.spec.timeout_seconds)
        except CallFailed as failure:
            raise TrainerError(
                ExitCode.RETRIEVAL_UNAVAILABLE,
                f"{source_of(endpoint)} ({asked.service.shown_url}) gave no usable answer for "
                f"{time.monotonic() - started:.0f} s: {failure.cause}: {failure.detail}; "
                "check that the service runs, its URL and its headers",
            ) from failure
        return WarmUp(answered - started, time.monotonic() - answered)

    def summaries(self) -> dict[str, CallSummary]:
        """Return each endpoint's latencies (seconds) and failures so far."""
        return {
            name: endpoint.service.statistics.summary()
            for name, endpoint in self._endpoints.items()
        }

    async def _ask_until_answered(
        self, asked: "_Endpoint", query: Query, limit_seconds: float
    ) -> None:
        outages, source = self._outages, source_of(asked.spec.name)
        deadline = time.monotonic() + limit_seconds
        while True:
            left = limit_seconds if outages else max(deadline - time.monotonic(), 0.0)
            try:
                await asked.call_once(query, left)
                break
            except CallFailed as failure:
                is_late = time.monotonic() + WARM_UP_PAUSE_SECONDS > deadline
                if not failure.transient or (is_late and not outages):
                    raise
                if outages:
                    outages.mark_down(source, str(failure))
            await asyncio.sleep(WARM_UP_PAUSE_SECONDS)
        if outages:
            outages.mark_up(source)

    def _log(self, endpoint: str, sample: str, started: float, status: str) -> None:
        if self._log_calls:
            seconds = time.monotonic() - started
            logger.info("rag call %s sample %s %.3f s %s", endpoint, sample, seconds, status)


class _Endpoint:
    """One endpoint: batches if its protocol supports it, caches answers if the job allows it."""

    def __init__(
        self,
        spec: RetrievalEndpoint,
        service: JsonService,
        tasks: BackgroundTasks,
        cached_answers: int,
    ) -> None:
        self.spec = spec
        self.service = service
        self._named = column_names(spec)
        self._batcher: MicroBatcher[Query, Passages] = MicroBatcher(
            self._ask_batch, tasks, window_seconds=BATCH_WINDOW_SECONDS, max_size=BATCH_QUERIES
        )
        self._answers: SharedCalls[Query, Passages] = SharedCalls(tasks, cached_answers)

    def query(self, context: str, fields: Mapping[str, str], columns: Columns) -> Query:
        """Keep only what the templates name, so that equal requests share an answer."""
        named = {name: columns[name] for name in self._named & columns.keys()}
        return Query.of(context, fields, named)

    def remembers(self, query: Query) -> bool:
        return query in self._answers

    async def ask(self, query: Query) -> Passages:
        if not self.spec.cache:
            return await self._ask_anew(query)
        return await self._answers.get(query, lambda: self._ask_anew(query))

    async def call_once(self, query: Query, timeout_seconds: float) -> Passages:
        answer = await self.service.post_once(request_for(self.spec, [query]), timeout_seconds)
        [passages] = self.service.parse(answer, lambda each: parse_response(self.spec, each, 1))
        return passages

    async def _ask_anew(self, query: Query) -> Passages:
        match self.spec.protocol:
            case EndpointProtocol.SEARCH_R1:
                return await self._batcher.submit(query)
            case EndpointProtocol.RAG_CHAT | EndpointProtocol.HTTP:
                [passages] = await self._post([query])
                return passages
            case _:
                assert_never(self.spec.protocol)

    async def _ask_batch(self, queries: Sequence[Query]) -> list[Passages | BaseException]:
        if len(queries) > 1:
            try:
                return [*await self._post(queries, ONE_TRY)]
            except RetrievalFailed as failure:
                # One bad query must not fail the others in its batch.
                logger.debug("asking %d queries one by one: %s", len(queries), failure)
        each = await asyncio.gather(
            *(self._post([query]) for query in queries), return_exceptions=True
        )
        return [outcome if isinstance(outcome, BaseException) else outcome[0] for outcome in each]

    async def _post(
        self, queries: Sequence[Query], retry: RetryPolicy | None = None
    ) -> list[Passages]:
        try:
            return await self.service.post(
                request_for(self.spec, queries),
                lambda answer: parse_response(self.spec, answer, len(queries)),
                retry,
            )
        except CallFailed as failure:
            raise RetrievalFailed(
                self.spec.name, failure.cause, failure.detail, transient=failure.transient
            ) from failure
