"""`python -m …retrieval.rag_test SECONDS MAX_IN_FLIGHT`: test endpoints with and without load.

Reads the configuration from RAGGRPO_CONFIG and writes the result to standard output as JSON.
"""

import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import count

from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    RetrievalEndpoint,
    RetrievalMode,
)
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.rag_test import (
    AS_CONFIGURED,
    EndpointTest,
    LoadLevel,
    RagTest,
    StepTest,
    Variant,
)
from raggrpo_trainer.call_failures import CallFailed
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.call_statistics import CallStatistics
from raggrpo_trainer.job_config import endpoint_headers, read_config
from raggrpo_trainer.sample_failures import RetrievalFailed

from .client import RetrievalClient
from .passage import Query

MIN_THROUGHPUT_GAIN = 1.1
"""Throughput ratio below which more concurrent calls only add latency."""
FAILURE_DELAY_SECONDS = 0.1
"""Delay after a failed call, which keeps the load on a failing service low."""
EXIT_INTERRUPTED = 130


async def rag_test(
    config: TrainerConfig, env: Mapping[str, str], *, seconds: float, max_in_flight: int
) -> RagTest:
    """Test the endpoints one after another with queries from the job's data.

    `seconds` is the duration of each load level. Raises TrainerError for unreadable data and
    missing secrets.
    """
    headers = endpoint_headers(config.retrieval, env)
    prompts = read_prompts(config.data.train_files, config.data, config.retrieval)
    tests = [_Test(config, endpoint, headers, prompts) for endpoint in config.retrieval.external]
    return RagTest(endpoints=[await test.run(seconds, max_in_flight) for test in tests])


def variants(
    endpoint: RetrievalEndpoint, query: Query
) -> Iterator[tuple[str, Query, RetrievalEndpoint]]:
    """Yield (name, query, endpoint) variants, each with at most one setting changed. Pure."""
    yield AS_CONFIGURED, query, endpoint
    if endpoint.top_k > 1:
        yield "topK 1", query, endpoint.model_copy(update={"top_k": 1})
    if endpoint.protocol is EndpointProtocol.RAG_CHAT and endpoint.score_threshold:
        without_threshold = endpoint.model_copy(update={"score_threshold": 0.0})
        yield "scoreThreshold 0", query, without_threshold
    if query.fields:
        yield "context only", Query(query.context, columns=query.columns), endpoint


def saturation(levels: Sequence[LoadLevel]) -> int:
    """Return the number of calls in flight that saturates throughput, or 0 if none does. Pure."""
    for number, level in enumerate(levels[:-1]):
        if all(
            each.per_second < MIN_THROUGHPUT_GAIN * level.per_second
            for each in levels[number + 1 :]
        ):
            return level.in_flight
    return 0


class _Test:
    """The test of one endpoint, with the queries that the job would send to it."""

    def __init__(
        self,
        config: TrainerConfig,
        endpoint: RetrievalEndpoint,
        headers: Mapping[str, Mapping[str, str]],
        prompts: Sequence[Prompt],
    ) -> None:
        self._config, self._endpoint = config, endpoint
        self._headers = headers
        self._prompts = prompts

    async def run(self, seconds: float, max_in_flight: int) -> EndpointTest:
        name, url = self._endpoint.name, self._endpoint.display_url
        first = await self._call_once("first", self._query(0), self._endpoint)
        if first.failure:
            return EndpointTest(name=name, url=url, failure=first.failure)
        levels: list[LoadLevel] = []
        in_flight = 1
        numbers = count(1)
        while in_flight <= max_in_flight:
            levels.append(await self._level(in_flight, seconds, numbers))
            if sum(levels[-1].failures.values()) > levels[-1].answered:
                break  # more load would only show the same failure
            in_flight *= 2
        return EndpointTest(
            name=name,
            url=url,
            first_seconds=first.seconds,
            variants=[
                await self._call_once(*variant)
                for variant in variants(self._endpoint, self._query(0))
            ],
            levels=levels,
            saturates_at=saturation(levels),
            step=await self._step(),
        )

    async def _call_once(self, name: str, query: Query, endpoint: RetrievalEndpoint) -> Variant:
        async with self._client(endpoint) as client:
            started = time.monotonic()
            try:
                passages = await client.call_once(endpoint.name, query)
            except CallFailed as failure:
                return Variant(name=name, failure=str(failure))
            return Variant(name=name, passages=len(passages), seconds=time.monotonic() - started)

    async def _level(self, in_flight: int, seconds: float, numbers: Iterator[int]) -> LoadLevel:
        statistics = CallStatistics()
        endpoint = self._endpoint.model_copy(update={"max_concurrency": in_flight})

        async def call_until(client: RetrievalClient, end: float) -> None:
            while (started := time.monotonic()) < end:
                try:
                    await client.call_once(endpoint.name, self._query(next(numbers)))
                except CallFailed as failure:
                    statistics.failures[failure.cause] += 1
                    await asyncio.sleep(FAILURE_DELAY_SECONDS)
                else:
                    statistics.record(time.monotonic() - started)

        async with self._client(endpoint) as client:
            start = time.monotonic()
            callers = (call_until(client, start + seconds) for _ in range(in_flight))
            await asyncio.gather(*callers)
            duration = time.monotonic() - start
        summary = statistics.summary()
        p50, p95, p99 = (
            value if summary.answered else None for value in (summary.p50, summary.p95, summary.p99)
        )
        return LoadLevel(
            in_flight=in_flight,
            answered=summary.answered,
            per_second=summary.answered / duration,
            p50=p50,
            p95=p95,
            p99=p99,
            failures={str(cause): count for cause, count in summary.failures.items()},
        )

    async def _step(self) -> StepTest:
        """Send the queries of one step with the job's batching, retries and cache."""
        size = self._config.data.train_batch_size
        failures: Counter[str] = Counter()
        in_reward = self._config.retrieval.mode is RetrievalMode.REWARD
        samples = self._config.rollout.n if in_reward else 1
        queries = [self._query(i // samples, i) for i in range(size * samples)]
        async with self._client(self._endpoint) as client:
            started = time.monotonic()
            calls = (
                client.retrieve(
                    self._endpoint.name,
                    q.context,
                    dict(q.fields),
                    sample=str(i),
                    columns={name: json.loads(text) for name, text in q.columns},
                )
                for i, q in enumerate(queries)
            )
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, RetrievalFailed):
                    failures[str(outcome.cause)] += 1
                elif isinstance(outcome, BaseException):
                    raise outcome
            seconds = time.monotonic() - started
        return StepTest(questions=len(queries), seconds=seconds, failures=dict(failures))

    def _client(self, endpoint: RetrievalEndpoint) -> RetrievalClient:
        spec = self._config.retrieval.model_copy(update={"endpoints": [endpoint]})
        return RetrievalClient(spec, self._headers)

    def _query(self, number: int, sample: int | None = None) -> Query:
        """Return the query of a prompt; the fields of an actor differ between samples."""
        prompt = self._prompts[number % len(self._prompts)]
        spec = self._config.retrieval
        context = prompt.context or prompt.query
        if spec.mode is not RetrievalMode.REWARD:
            return Query.of(prompt.query, {}, {**prompt.columns, "context": prompt.context})
        if self._endpoint.role is not EndpointRole.ACTOR:
            return Query.of(context, {}, prompt.columns)
        text = f"{prompt.query} {number if sample is None else sample}"
        return Query.of(context, dict.fromkeys(spec.actor_output.fields, text), prompt.columns)


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run the test, write the result and return the exit code."""
    seconds = float(arguments[0])
    in_flight = int(arguments[1])
    try:
        config = read_config(env)
        result = asyncio.run(rag_test(config, env, seconds=seconds, max_in_flight=in_flight))
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    sys.stdout.write(result.model_dump_json(by_alias=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
