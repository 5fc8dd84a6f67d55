"""`python -m …retrieval.rag_test SECONDS MOST`: test RAG endpoints with and without load.

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
from raggrpo_api.trainer.rag_test import EndpointTest, LoadLevel, RagTest, StepTest, Variant
from raggrpo_trainer.call_failures import CallFailed
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.call_statistics import CallStatistics
from raggrpo_trainer.job_config import endpoint_headers, read_config
from raggrpo_trainer.sample_failures import RetrievalFailed

from .client import RetrievalClient
from .passage import Query

MORE = 1.1
"""Throughput gain below which additional concurrent calls only add latency."""
PAUSE_SECONDS = 0.1
"""After a failed call, so that a refusing service is not hammered."""
INTERRUPTED = 130


async def rag_test(
    config: TrainerConfig, env: Mapping[str, str], *, seconds: float, most: int
) -> RagTest:
    """Measure the endpoints one after another with queries from the job's data.

    `seconds` is the duration of each load level, `most` the maximum number of calls in flight.
    Raises TrainerError for unreadable data and missing secrets.
    """
    headers = endpoint_headers(config.retrieval, env)
    prompts = read_prompts(config.data.train_files, config.data, config.retrieval)
    tests = [_Test(config, endpoint, headers, prompts) for endpoint in config.retrieval.external]
    return RagTest(endpoints=[await test.run(seconds, most) for test in tests])


def variants(
    endpoint: RetrievalEndpoint, query: Query
) -> Iterator[tuple[str, Query, RetrievalEndpoint]]:
    """Yield (name, query, settings), each differing from the job's in at most one way (pure)."""
    yield "as the job asks", query, endpoint
    if endpoint.top_k > 1:
        yield "topK 1", query, endpoint.model_copy(update={"top_k": 1})
    if endpoint.protocol is EndpointProtocol.RAG_CHAT and endpoint.score_threshold:
        open_to_all = endpoint.model_copy(update={"score_threshold": 0.0})
        yield "scoreThreshold 0", query, open_to_all
    if query.fields:
        yield "context alone", Query(query.context, columns=query.columns), endpoint


def saturation(levels: Sequence[LoadLevel]) -> int:
    """Return the calls in flight at which throughput levels off, 0 if it never does (pure)."""
    for number, level in enumerate(levels[:-1]):
        if all(each.per_second < MORE * level.per_second for each in levels[number + 1 :]):
            return level.in_flight
    return 0


class _Test:
    """One endpoint and the queries the job would send it."""

    def __init__(
        self,
        config: TrainerConfig,
        endpoint: RetrievalEndpoint,
        headers: Mapping[str, Mapping[str, str]],
        prompts: Sequence[Prompt],
    ) -> None:
        self._config, self._endpoint, self._headers = config, endpoint, headers
        self._prompts = prompts

    async def run(self, seconds: float, most: int) -> EndpointTest:
        name, url = self._endpoint.name, self._endpoint.shown_url
        first = await self._one("first", self._query(0), self._endpoint)
        if first.failure:
            return EndpointTest(name=name, url=url, failure=first.failure)
        levels: list[LoadLevel] = []
        in_flight, numbers = 1, count(1)
        while in_flight <= most:
            levels.append(await self._level(in_flight, seconds, numbers))
            if sum(levels[-1].failures.values()) > levels[-1].answered:
                break  # more load would only show the same failure
            in_flight *= 2
        tried = variants(self._endpoint, self._query(0))
        return EndpointTest(
            name=name,
            url=url,
            first_seconds=first.seconds,
            variants=[await self._one(*each) for each in tried],
            levels=levels,
            saturates_at=saturation(levels),
            step=await self._step(),
        )

    async def _one(self, name: str, query: Query, endpoint: RetrievalEndpoint) -> Variant:
        async with self._client(endpoint) as client:
            began = time.monotonic()
            try:
                passages = await client.call_once(endpoint.name, query)
            except CallFailed as failure:
                return Variant(name=name, failure=str(failure))
            return Variant(name=name, passages=len(passages), seconds=time.monotonic() - began)

    async def _level(self, in_flight: int, seconds: float, numbers: Iterator[int]) -> LoadLevel:
        found = CallStatistics()
        endpoint = self._endpoint.model_copy(update={"max_concurrency": in_flight})

        async def ask_until(client: RetrievalClient, end: float) -> None:
            while (asked := time.monotonic()) < end:
                try:
                    await client.call_once(endpoint.name, self._query(next(numbers)))
                except CallFailed as failure:
                    found.failures[failure.cause] += 1
                    await asyncio.sleep(PAUSE_SECONDS)
                else:
                    found.record(time.monotonic() - asked)

        async with self._client(endpoint) as client:
            began = time.monotonic()
            callers = (ask_until(client, began + seconds) for _ in range(in_flight))
            await asyncio.gather(*callers)
            lasted = time.monotonic() - began
        summary = found.summary()
        p50, p95, p99 = (
            value if summary.answered else None for value in (summary.p50, summary.p95, summary.p99)
        )
        return LoadLevel(
            in_flight=in_flight,
            answered=summary.answered,
            per_second=summary.answered / lasted,
            p50=p50,
            p95=p95,
            p99=p99,
            failures={str(cause): number for cause, number in summary.failures.items()},
        )

    async def _step(self) -> StepTest:
        """Ask one step's queries with the job's own batching, retries and cache."""
        size, failed = self._config.data.train_batch_size, Counter[str]()
        in_reward = self._config.retrieval.mode is RetrievalMode.REWARD
        number = size * (self._config.rollout.n if in_reward else 1)
        queries = [self._query(each // (number // size), each) for each in range(number)]
        async with self._client(self._endpoint) as client:
            began = time.monotonic()
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
            for ended in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(ended, RetrievalFailed):
                    failed[str(ended.cause)] += 1
                elif isinstance(ended, BaseException):
                    raise ended
            seconds = time.monotonic() - began
        return StepTest(questions=number, seconds=seconds, failures=dict(failed))

    def _client(self, endpoint: RetrievalEndpoint) -> RetrievalClient:
        spec = self._config.retrieval.model_copy(update={"endpoints": [endpoint]})
        return RetrievalClient(spec, self._headers)

    def _query(self, number: int, sample: int | None = None) -> Query:
        """Return a prompt's query; an actor's fields differ from sample to sample."""
        prompt, spec = self._prompts[number % len(self._prompts)], self._config.retrieval
        context = prompt.context or prompt.query
        if spec.mode is not RetrievalMode.REWARD:
            return Query.of(prompt.query, {}, {**prompt.columns, "context": prompt.context})
        if self._endpoint.role is not EndpointRole.ACTOR:
            return Query.of(context, {}, prompt.columns)
        words = f"{prompt.query} {number if sample is None else sample}"
        return Query.of(context, dict.fromkeys(spec.actor_output.fields, words), prompt.columns)


def main(arguments: Sequence[str], env: Mapping[str, str] = os.environ) -> int:
    """Run the test and write the result."""
    seconds, most = float(arguments[0]), int(arguments[1])
    try:
        found = asyncio.run(rag_test(read_config(env), env, seconds=seconds, most=most))
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    sys.stdout.write(found.model_dump_json(by_alias=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
