"""Query the retrieval endpoints of a job for many samples concurrently.

A failed call affects only its sample and raises RetrievalFailed. Records latencies and failure
causes; must not end the run.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self, assert_never

from raggrpo_api.limits import MAX_PASSAGES_CHARACTERS
from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    RetrievalEndpoint,
    RetrievalSpec,
)
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
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
from raggrpo_trainer.sample_failures import CallRecorder, RetrievalFailed, source_of

from .micro_batch import MicroBatcher
from .passage import Columns, Passage, Query
from .protocols import column_names, parse_response, request_for

logger = logging.getLogger(__name__)

BATCH_QUERIES = 64
BATCH_WINDOW_SECONDS = 0.005
CACHED_QUERIES = 10_000
"""Number of cached results per endpoint; 30 MiB with three passages of 1 KiB each."""
WARM_UP_RETRY_SECONDS = 1.0
WARM_UP_TEXT = "warm-up"

Passages = tuple[Passage, ...]
"""The result of one query, best passage first."""


def _memory(query: Query, passages: Passages) -> int:
    """Return the approximate memory of a cached result in bytes."""
    pairs = (text for pair in (*query.fields, *query.columns) for text in pair)
    texts = (text for each in passages for text in (each.id, each.text))
    return sum(map(sys.getsizeof, (query.context, *pairs, *texts)))


@dataclass(frozen=True)
class WarmUp:
    """Seconds until the first response, including retries, and seconds of the next call."""

    first_seconds: float
    next_seconds: float


class RetrievalClient:
    """All endpoints of a job over one connection pool; an async context manager.

    Equal queries to an endpoint share one call and then its cached result. Callers that wait for
    the same call share its failure, too. `cache: false` disables sharing for an endpoint.
    """

    def __init__(
        self,
        spec: RetrievalSpec,
        headers: Mapping[str, Mapping[str, str]],
        *,
        log_calls: bool = False,
        retry: RetryPolicy = RetryPolicy(),
        cached_queries: int = CACHED_QUERIES,
        outages: OutageListener | None = None,
    ) -> None:
        """`headers` maps endpoint names to headers with resolved secrets.

        `log_calls` is the value of debug.ragCalls. With `outages`, calls wait while an endpoint is
        down instead of failing.
        """
        self._log_calls = log_calls
        self._outages = outages
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
                cached_queries,
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
        calls: CallRecorder | None = None,
    ) -> Passages:
        """Return the passages for a query, or for a context with the actor's `fields`.

        `sample` is the sample's name in log lines; `columns` are values that templates may name.
        `calls` records the call, even if its result is cached. Raises RetrievalFailed.
        """
        target = self._endpoints[endpoint]
        query = target.query(context, fields or {}, columns or {})
        status = "cached" if target.has_cached(query) else "called"
        started = time.monotonic()
        try:
            passages = await target.retrieve(query)
        except RetrievalFailed as failure:
            if calls is not None:
                calls.record_failure(sample, failure)
            self._log(endpoint, sample, started, f"{failure.cause}: {failure.detail}")
            raise
        if calls is not None:
            calls.record_success(source_of(endpoint))
        self._log(endpoint, sample, started, f"{status}, {len(passages)} passages")
        return passages

    async def call_once(self, endpoint: str, query: Query) -> Passages:
        """Make one call without cache, batching or retries. Raises CallFailed."""
        target = self._endpoints[endpoint]
        return await target.call_once(query, target.spec.timeout_seconds)

    async def warm_up(
        self, endpoint: str, limit_seconds: float, columns: Columns | None = None
    ) -> WarmUp:
        """Call until the first response arrives, then once more, and return both durations.

        `columns` are the columns of any sample, for templates that name them. The first response of
        a cold service may take up to `limit_seconds`. Raises TrainerError (RetrievalUnavailable)
        when the limit is exceeded, or after a failure that is not transient. With `outages`, waits
        without a limit for an endpoint that is down.
        """
        target = self._endpoints[endpoint]
        fields: dict[str, str] = {}
        if target.spec.role is EndpointRole.ACTOR:
            fields = dict.fromkeys(self._actor_fields, WARM_UP_TEXT)
        query = target.query(WARM_UP_TEXT, fields, columns or {})
        started = time.monotonic()
        try:
            await self._call_until_success(target, query, limit_seconds)
            first_response = time.monotonic()
            await target.call_once(query, target.spec.timeout_seconds)
        except CallFailed as failure:
            raise TrainerError(
                ExitCode.RETRIEVAL_UNAVAILABLE,
                f"{source_of(endpoint)} ({target.service.display_url}) sent no usable response for "
                f"{time.monotonic() - started:.0f} s: {failure.cause}: {failure.detail}; "
                "check that the service is running and that its url and headers are correct",
            ) from failure
        return WarmUp(first_response - started, time.monotonic() - first_response)

    def surplus(self, endpoint: str) -> str:
        """Return the warning about responses with more passages than `topK`, or ""."""
        return self._endpoints[endpoint].surplus

    def summaries(self) -> dict[str, CallSummary]:
        """Return the latencies (seconds) and failures of each endpoint so far."""
        return {
            name: endpoint.service.statistics.summary()
            for name, endpoint in self._endpoints.items()
        }

    async def _call_until_success(
        self, target: "_Endpoint", query: Query, limit_seconds: float
    ) -> None:
        outages = self._outages
        source = source_of(target.spec.name)
        deadline = time.monotonic() + limit_seconds
        while True:
            timeout = limit_seconds if outages else max(deadline - time.monotonic(), 0.0)
            try:
                await target.call_once(query, timeout)
                break
            except CallFailed as failure:
                is_timed_out = time.monotonic() + WARM_UP_RETRY_SECONDS > deadline
                if not failure.transient or (is_timed_out and not outages):
                    raise
                if outages:
                    outages.mark_down(source, str(failure))
            await asyncio.sleep(WARM_UP_RETRY_SECONDS)
        if outages:
            outages.mark_up(source)

    def _log(self, endpoint: str, sample: str, started: float, status: str) -> None:
        if self._log_calls:
            seconds = time.monotonic() - started
            logger.info(
                "retrieval from endpoint %s for sample %s took %.3f s: %s",
                endpoint,
                sample,
                seconds,
                status,
            )


class _Endpoint:
    """One endpoint; batches queries for Search-R1, caches results unless `cache` is false."""

    def __init__(
        self,
        spec: RetrievalEndpoint,
        service: JsonService,
        tasks: BackgroundTasks,
        cached_queries: int,
    ) -> None:
        self.spec = spec
        self.service = service
        self._columns = column_names(spec)
        self.surplus = ""
        """Warning about a response with more passages than requested, or ""."""
        self._batcher: MicroBatcher[Query, Passages] = MicroBatcher(
            self._call_batch, tasks, window_seconds=BATCH_WINDOW_SECONDS, max_size=BATCH_QUERIES
        )
        self._cache: SharedCalls[Query, Passages] = SharedCalls(tasks, cached_queries, _memory)

    def query(self, context: str, fields: Mapping[str, str], columns: Columns) -> Query:
        """Return a query with only the columns that templates name, to avoid cache misses."""
        named = {name: columns[name] for name in self._columns & columns.keys()}
        return Query.of(context, fields, named)

    def has_cached(self, query: Query) -> bool:
        return query in self._cache

    async def retrieve(self, query: Query) -> Passages:
        if not self.spec.cache:
            return await self._call(query)
        return await self._cache.get(query, lambda: self._call(query))

    async def call_once(self, query: Query, timeout_seconds: float) -> Passages:
        request = request_for(self.spec, [query])
        [passages] = await self.service.post_once(
            request, lambda response: self._parse(response, 1), timeout_seconds
        )
        return passages

    async def _call(self, query: Query) -> Passages:
        match self.spec.protocol:
            case EndpointProtocol.SEARCH_R1:
                return await self._batcher.submit(query)
            case EndpointProtocol.RAG_CHAT | EndpointProtocol.HTTP:
                [passages] = await self._post([query])
                return passages
            case _:
                assert_never(self.spec.protocol)

    async def _call_batch(self, queries: Sequence[Query]) -> list[Passages | BaseException]:
        if len(queries) > 1:
            try:
                return [*await self._post(queries, ONE_TRY)]
            except RetrievalFailed as failure:
                # One bad query must not fail the others in its batch.
                logger.debug(
                    "a batch of %d queries failed; sending the queries one by one: %s",
                    len(queries),
                    failure,
                )
        outcomes = await asyncio.gather(
            *(self._post([query]) for query in queries), return_exceptions=True
        )
        return [each if isinstance(each, BaseException) else each[0] for each in outcomes]

    async def _post(
        self, queries: Sequence[Query], retry: RetryPolicy | None = None
    ) -> list[Passages]:
        try:
            return await self.service.post(
                request_for(self.spec, queries),
                lambda response: self._parse(response, len(queries)),
                retry,
            )
        except CallFailed as failure:
            raise RetrievalFailed(
                self.spec.name, failure.cause, failure.detail, transient=failure.transient
            ) from failure

    def _parse(self, response: Any, num_queries: int) -> list[Passages]:
        """Return at most `topK` passages for each query; warn once about a surplus.

        Raises CallFailed (BadJson) if those of a query exceed MAX_PASSAGES_CHARACTERS.
        """
        results = parse_response(self.spec, response, num_queries)
        top_k, received = self.spec.top_k, max(map(len, results), default=0)
        if received > top_k and not self.surplus:
            self.surplus = (
                f"{source_of(self.spec.name)} ignores topK: it returned {received} passages for a "
                f"query (topK {top_k}); the first {top_k} are used"
            )
            logger.warning("%s", self.surplus)
        used = [passages[:top_k] for passages in results]
        for size in (sum(map(_characters, passages)) for passages in used):
            if size > MAX_PASSAGES_CHARACTERS:
                raise CallFailed(
                    FailureCause.BAD_JSON,
                    f"the passages of a query have {size:,} characters, limit "
                    f"{MAX_PASSAGES_CHARACTERS:,}; return shorter passages or decrease topK",
                )
        return used


def _characters(passage: Passage) -> int:
    """Return the characters of a passage; without an id, the text is the id."""
    return sum(map(len, {passage.id, passage.text}))
