"""One step's rollouts: one coroutine per sample, retrieve ⇄ generate → reward, all overlapping.

    prompts ─▶ retrieve ─▶ compose ─▶ generate ─▶ reward ─▶ advantages ─▶ groups
                  (mode Search: generate ⇄ retrieve, several turns)

A failed call affects only its sample: it is counted by cause, the sample is excluded from the
mean of its group, and the step continues. The requests of a step enter the engine together and in
order, so that jitter of the retrieval service does not change the sampled completions.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from raggrpo_api.spec.retrieval import EndpointRole, FailurePolicy, RetrievalMode
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.data.prompt_files import Prompt
from raggrpo_trainer.data.prompts import Composer, PromptTooLong, cut_to_tokens
from raggrpo_trainer.data.sampler import sample_seed
from raggrpo_trainer.data.tokenizer import Tokenizer, completion_text, end_token_ids, token_ids
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Group
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample, is_parsed
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.sample_failures import SampleFailed

from .actor_output import parse_actor_output
from .grouping import check_calls, form_groups
from .samples import Batch, Rollouts, Sample, Sampling, make_samples
from .scoring import record_score, reward_sample
from .search_turn import NO_QUERY, SEARCH_END, search_query

log = logging.getLogger(__name__)

SEEDS_PER_SAMPLE = 64
"""Seeds reserved per sample, one for each turn of mode Search."""


class Collector:
    """Samples completions for prompts and scores them."""

    def __init__(
        self,
        config: TrainerConfig,
        tokenizer: Tokenizer,
        composer: Composer,
        pool: EnginePool,
        retrieval: RetrievalClient,
        rewards: Rewards,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` measures the stages of a step in seconds; it may pause during outages."""
        self._config, self._tokenizer, self._pool = config, tokenizer, pool
        self._composer, self._retrieval, self._rewards = composer, retrieval, rewards
        self._clock = clock
        self._end_ids = end_token_ids(tokenizer, Path(config.model.path))
        self._stop_token_ids = tuple(sorted(self._end_ids))

    async def prepare(
        self,
        step: int,
        prompts: Sequence[Prompt],
        sampling: Sampling,
        *,
        swap_passages: bool = False,
    ) -> Batch:
        """Retrieve passages and compose the prompts; may run in parallel with earlier steps.

        `swap_passages` gives each prompt the passages of another one, as a control that shows
        whether the policy uses passages.
        """
        ledger = FailureLedger()
        prompts_read = self._clock()
        passages = await asyncio.gather(*(self._passages(prompt, ledger) for prompt in prompts))
        retrieved = self._clock()
        if swap_passages:
            half = len(passages) // 2
            passages = passages[half:] + passages[:half]
        composed = await asyncio.gather(
            *(
                self._compose_group(step, samples, texts)
                for samples, texts in zip(make_samples(prompts, sampling.n), passages, strict=True)
            )
        )
        samples = tuple(sample for group in composed for sample in group)
        stage_ends = [("data", prompts_read), ("retrieve", retrieved), ("data", self._clock())]
        return Batch(step, samples, sampling, ledger, stage_ends)

    async def collect(self, batch: Batch) -> Rollouts:
        """Generate and score a prepared batch."""
        alive = [s for s in batch.samples if not s.failure]
        if self._config.retrieval.mode is RetrievalMode.SEARCH:
            generated = [asyncio.ensure_future(self._generate_with_search(batch, s)) for s in alive]
        else:
            futures = self._pool.submit([self._request(batch, s) for s in alive])
            generated = [
                asyncio.ensure_future(self._generate(s, f))
                for s, f in zip(alive, futures, strict=True)
            ]
        retrieval_ends: list[float] = []
        scored = [
            asyncio.ensure_future(self._score(batch, s, g, retrieval_ends))
            for s, g in zip(alive, generated, strict=True)
        ]
        try:
            await asyncio.gather(*generated)
            generation_end = self._clock()
            await asyncio.gather(*scored)
        finally:
            for task in (*generated, *scored):
                task.cancel()
        stage_ends = [
            *batch.stage_ends,
            ("generate", generation_end),
            ("retrieve", max(retrieval_ends, default=generation_end)),  # for the reward
            ("reward", self._clock()),
        ]
        return Rollouts(batch.samples, stage_ends, batch.ledger)

    def groups(self, rollouts: Rollouts) -> list[Group]:
        """Return the groups with advantages; `onFailure` drops failed samples or sets reward 0."""
        zero_reward = self._config.retrieval.on_failure is FailurePolicy.ZERO_REWARD
        return form_groups(
            rollouts.samples,
            zero_reward=zero_reward,
            normalize_by_std=self._config.algorithm.normalize_by_std,
        )

    def check_failures(self, rollouts: Rollouts) -> None:
        """Raise TrainerError if more calls to a service failed than `maxFailureRatio` allows."""
        check_calls(rollouts.ledger, self._config.retrieval.max_failure_ratio)

    async def _passages(
        self, prompt: Prompt, ledger: FailureLedger
    ) -> tuple[str, ...] | SampleFailed:
        retrieval = self._config.retrieval
        if retrieval.mode is not RetrievalMode.PROMPT:
            return ()
        texts: list[str] = []
        for endpoint in retrieval.endpoints:
            if endpoint.role is EndpointRole.RETRIEVER:
                try:
                    retrieved = await self._retrieval.retrieve(
                        endpoint.name,
                        prompt.query,
                        sample=str(prompt.index),
                        columns=_columns(prompt),
                        calls=ledger,
                    )
                except SampleFailed as error:
                    return error
                texts += [p.text for p in retrieved]
        return tuple(texts)

    async def _compose_group(
        self,
        step: int,
        samples: Sequence[Sample],
        passages: tuple[str, ...] | SampleFailed,
    ) -> Sequence[Sample]:
        if isinstance(passages, SampleFailed):
            for sample in samples:
                sample.failure = str(passages)
            return samples
        prompt = samples[0].prompt
        key = samples[0].index * SEEDS_PER_SAMPLE
        seed = sample_seed(self._config.training.seed, step, prompt.index, key)
        try:
            composed = await self._composer.compose(prompt, passages, seed)
        except PromptTooLong as error:
            raise TrainerError(ExitCode.DATA_ERROR, str(error)) from error
        for sample in samples:
            sample.prompt_ids = composed.token_ids
            sample.passages = composed.passages
        return samples

    def _request(self, batch: Batch, sample: Sample, turn: int = 0) -> GenerationRequest:
        config = self._config
        key = sample.index * SEEDS_PER_SAMPLE + turn
        is_search = config.retrieval.mode is RetrievalMode.SEARCH
        return GenerationRequest(
            prompt_ids=(*sample.prompt_ids, *sample.token_ids),
            max_tokens=config.data.max_response_length - len(sample.token_ids),
            temperature=batch.sampling.temperature,
            top_p=batch.sampling.top_p,
            seed=sample_seed(config.training.seed, batch.step, sample.prompt.index, key),
            stop_token_ids=self._stop_token_ids,
            stop=(SEARCH_END,) if is_search and turn < config.retrieval.max_turns else (),
        )

    async def _generate(self, sample: Sample, future: "asyncio.Future[Generation]") -> None:
        sample.append_generation(await future)

    async def _generate_with_search(self, batch: Batch, sample: Sample) -> None:
        """Generate; after a turn with a query, search and continue, at most maxTurns times."""
        retrieval = self._config.retrieval
        endpoint = next(e for e in retrieval.endpoints if e.role is EndpointRole.RETRIEVER)
        for turn in range(retrieval.max_turns + 1):
            [future] = self._pool.submit([self._request(batch, sample, turn)])
            generation = await future
            sample.append_generation(generation)
            text = self._decode(generation.token_ids)
            remaining = self._config.data.max_response_length - len(sample.token_ids)
            if SEARCH_END not in text or turn == retrieval.max_turns:
                return
            query = search_query(text)
            if query is None:
                return
            if remaining <= 1:
                sample.is_truncated = True
                return
            if not query:
                sample.append_retrieved(self._tokens(NO_QUERY)[: remaining - 1])
                continue
            try:
                retrieved = await self._retrieval.retrieve(
                    endpoint.name,
                    query,
                    sample=sample.name,
                    columns=_columns(sample.prompt),
                    calls=batch.ledger,
                )
            except SampleFailed as error:
                sample.failure = str(error)
                return
            texts = [p.text for p in retrieved]
            sample.passages += tuple(texts)
            sample.append_retrieved(self._information(texts)[: remaining - 1])

    def _information(self, passages: Sequence[str]) -> list[int]:
        """Return the token ids of a search result, each passage cut to maxPassageTokens."""
        spec = self._config.retrieval
        text = "".join(
            spec.passage_template.format(
                index=i, text=cut_to_tokens(passage, spec.max_passage_tokens, self._tokenizer)
            )
            for i, passage in enumerate(passages, 1)
        )
        return self._tokens(f"<information>{text}</information>")

    def _tokens(self, text: str) -> list[int]:
        return list(token_ids(text, self._tokenizer))

    async def _score(
        self,
        batch: Batch,
        sample: Sample,
        generated: "asyncio.Future[None]",
        retrieval_ends: list[float],
    ) -> None:
        """Score a generated sample; append the time at which its retrieval ended."""
        await generated
        if sample.failure:
            return
        sampled = [t for t, s in zip(sample.token_ids, sample.sampled, strict=True) if s]
        sample.text = self._decode(sampled)
        debug = self._config.monitoring.debug
        if debug.model_output:
            log.info("sample %s: output %r", sample.name, sample.text)
        spec = self._config.retrieval
        fields = None
        if spec.mode is RetrievalMode.REWARD:
            fields = parse_actor_output(sample.text, spec.actor_output)
        subject = reward_sample(sample, sample.text, fields)
        sample.is_parsed = is_parsed(subject, spec.mode, self._config.reward.answer_marker)
        try:
            if fields is not None:
                try:
                    retrieved = await self._retrieve_for_reward(subject, batch.ledger)
                finally:
                    retrieval_ends.append(self._clock())
                subject = replace(subject, retrieved=retrieved)
            score = await self._rewards.score(subject, batch.ledger)
        except SampleFailed as error:
            sample.failure = str(error)
            return
        record_score(sample, score, is_logged=debug.scoring)

    async def _retrieve_for_reward(
        self, subject: RewardSample, ledger: FailureLedger
    ) -> dict[str, Any]:
        """Return passages by role; only the actor endpoint gets the actor's fields."""
        endpoints = [
            e for e in self._config.retrieval.endpoints if e.role is not EndpointRole.RETRIEVER
        ]
        passages = await asyncio.gather(
            *(
                self._retrieval.retrieve(
                    e.name,
                    subject.context,
                    subject.fields if e.role is EndpointRole.ACTOR else None,
                    sample=subject.name,
                    columns=subject.columns,
                    calls=ledger,
                )
                for e in endpoints
            )
        )
        return {str(e.role): each for e, each in zip(endpoints, passages, strict=True)}

    def _decode(self, ids: Sequence[int]) -> str:
        return completion_text(ids, self._tokenizer, self._end_ids)


def _columns(prompt: Prompt) -> dict[str, Any]:
    """Return the values that a retriever's templates may name besides the query."""
    return {**prompt.columns, "context": prompt.context}
