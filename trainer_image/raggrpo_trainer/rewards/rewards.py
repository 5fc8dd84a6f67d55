"""The reward of a completion: the weighted sum of the job's terms. Defines the built-in terms.

User code and services are called by `hooks` and `judge`. A failed term raises RewardFailed, which
affects only its sample.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Self, assert_never

from raggrpo_api.secrets.redaction import display_url
from raggrpo_api.spec.retrieval import EndpointProtocol, EndpointRole, RetrievalMode, RetrievalSpec
from raggrpo_api.spec.reward import RewardFunction, RewardKind, RewardSpec
from raggrpo_trainer.call_failures import CallFailed
from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.json_service import GateOptions, RetryPolicy
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.http.service_gate import OutageListener
from raggrpo_trainer.retrieval.passage import Passage
from raggrpo_trainer.sample_failures import (
    CallRecorder,
    RewardCodeFailed,
    RewardFailed,
    source_of_reward,
)
from raggrpo_trainer.tagged_text import tagged_texts

from .hooks import HttpJudge, RewardHook, python_reward
from .judge import JudgeReward
from .reward_value import MAX_REWARD
from .signatures import Sample
from .text_match import contains, exact_match, f1

BuiltIn = Literal[
    RewardKind.EXACT_MATCH,
    RewardKind.F1,
    RewardKind.CONTAINS,
    RewardKind.FORMAT,
    RewardKind.RAG_SCORE,
]


@dataclass(frozen=True, slots=True)
class RewardSample:
    """The inputs of a reward."""

    name: str
    """The sample's id in log lines."""
    prompt: str
    completion: str
    """The text that the policy generated, without inserted passages."""
    answers: tuple[str, ...] = ()
    """Accepted reference answers."""
    context: str = ""
    passages: tuple[str, ...] = ()
    """Passages in the policy's context (modes Prompt and Search)."""
    fields: Mapping[str, str] | None = None
    """The actor's fields (mode Reward); None if its output could not be parsed."""
    columns: Mapping[str, Any] = field(default_factory=dict)
    """Values of the columns that the job's templates name."""
    retrieved: Mapping[str, Sequence[Passage]] = field(default_factory=dict)
    """Passages by endpoint role (mode Reward); empty if no call was made."""

    def as_json(self) -> Sample:
        """Return the sample as passed to hooks; `answer` lists all accepted answers."""
        return {
            "name": self.name,
            "prompt": self.prompt,
            "completion": self.completion,
            "answer": list(self.answers),
            "context": self.context,
            "passages": list(self.passages),
            "fields": None if self.fields is None else dict(self.fields),
            "columns": dict(self.columns),
            "retrieved": {
                str(role): [{"id": p.id, "text": p.text, "score": p.score} for p in passages]
                for role, passages in self.retrieved.items()
            },
        }


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of a sample."""

    total: float
    """Weighted sum of the terms."""
    parts: Mapping[str, float]
    """Unweighted values of the terms, by the names from `term_names`."""
    exact_match: float | None
    """Exact match of the final answer, even if it is not a term; None without reference answers."""


def final_answer(completion: str, marker: str = "") -> str:
    """Return the rest of the line after the last `marker`, or "" if the completion has none.

    Without `marker`, return the content of the last <answer>…</answer>, or the whole completion.
    """
    if marker:
        _, separator, rest = completion.rpartition(marker)
        return rest.strip().partition("\n")[0].strip() if separator else ""
    answers = _answers(completion)
    return answers[-1] if answers else completion


def _answers(completion: str) -> list[str]:
    return [content for _, content in tagged_texts(completion, ["answer"])]


def format_score(sample: RewardSample, mode: RetrievalMode) -> float:
    """Return 1.0 if the completion has the format that `mode` requires, else 0.0.

    Mode Reward: the actor's fields could be parsed. Search: a non-blank <answer> exists. None and
    Prompt: the completion is not blank.
    """
    match mode:
        case RetrievalMode.REWARD:
            return float(sample.fields is not None)
        case RetrievalMode.SEARCH:
            return float(any(answer.strip() for answer in _answers(sample.completion)))
        case RetrievalMode.NONE | RetrievalMode.PROMPT:
            return float(bool(sample.completion.strip()))
        case _:
            assert_never(mode)


def is_parsed(sample: RewardSample, mode: RetrievalMode, marker: str) -> bool:
    """Return whether the completion has the output that the reward reads.

    This is a non-blank answer after `marker`, if it is specified and the mode is not Reward;
    otherwise the format of `format_score`.
    """
    if marker and mode is not RetrievalMode.REWARD:
        return bool(final_answer(sample.completion, marker))
    return format_score(sample, mode) > 0.0


def rag_score(
    actor: Sequence[Passage], reference: Sequence[Passage], score_threshold: float
) -> float:
    """Return the score-weighted recall of the reference's passages by the actor, 0 to 1.

    Σ score_ref[i] · [the actor returned i with a score ≥ threshold] / Σ score_ref, by passage id;
    scores are limited to 0 to MAX_REWARD. If Σ score_ref is 0, the recall is 0: the group of such a
    prompt has no variance and contributes no gradient.
    """
    retrieved = {passage.id for passage in actor if passage.score >= score_threshold}
    weights = [(passage.id, min(max(passage.score, 0.0), MAX_REWARD)) for passage in reference]
    total = sum(weight for _, weight in weights)
    recalled = sum(weight for key, weight in weights if key in retrieved)
    return recalled / total if total else 0.0


def term_names(functions: Sequence[RewardFunction]) -> list[str]:
    """Return a unique name for each term; duplicates get their index, as in `F1 [2]`."""
    names: list[str] = []
    for index, function in enumerate(functions):
        name = _kind_and_service(function)
        while name in names:
            name += f" [{index}]"
        names.append(name)
    return names


class Rewards:
    """The reward terms of a job; an async context manager that stops their processes and calls."""

    def __init__(
        self,
        spec: RewardSpec,
        retrieval: RetrievalSpec,
        retry: RetryPolicy = RetryPolicy(),
        headers: Mapping[int, Mapping[str, str]] = {},
        outages: OutageListener | None = None,
    ) -> None:
        """Import Python rewards. `headers` contains the headers of each judge by index of its term.

        Secrets in `headers` must be resolved. With `outages`, calls wait while a service is down
        instead of failing. Raises TrainerError (RewardCodeError) if a function cannot be imported.
        """
        if spec.code_from.path and spec.code_from.path not in sys.path:
            sys.path.insert(0, spec.code_from.path)
        self.empty_references = 0
        """Number of samples with RagScore 0 because the reference endpoint returned no passages."""
        self._mode = retrieval.mode
        self._marker = spec.answer_marker
        self._score_threshold = _actor_threshold(retrieval)
        self._http = HttpPool()
        self._outages = outages
        self._tasks = BackgroundTasks()
        self._hooks: list[RewardHook] = []
        self._terms = [
            self._term(name, function, retry, headers.get(index, {}))
            for index, (name, function) in enumerate(
                zip(term_names(spec.functions), spec.functions, strict=True)
            )
        ]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for hook in self._hooks:
            await hook.close()
        await self._tasks.close()
        await self._http.close()

    async def score(self, sample: RewardSample, calls: CallRecorder | None = None) -> Score:
        """Return the reward of a sample. Raises RewardFailed for the first failed term.

        `calls` records the calls of services and user code.
        """
        # Wait for all terms even if one fails, so that no call of this sample keeps running.
        outcomes = await asyncio.gather(
            *(term.value(sample) for term in self._terms), return_exceptions=True
        )
        if calls is not None:
            self._record_calls(sample.name, outcomes, calls)
        values: list[float] = []
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
            values.append(outcome)
        return Score(
            total=sum(t.weight * value for t, value in zip(self._terms, values, strict=True)),
            parts={t.name: value for t, value in zip(self._terms, values, strict=True)},
            exact_match=self.exact_match(sample),
        )

    def exact_match(self, sample: RewardSample) -> float | None:
        """Return the exact match of the final answer, or None without reference answers."""
        if not sample.answers:
            return None
        return exact_match(final_answer(sample.completion, self._marker), sample.answers)

    def _record_calls(
        self, sample: str, outcomes: Sequence[float | BaseException], calls: CallRecorder
    ) -> None:
        for term, outcome in zip(self._terms, outcomes, strict=True):
            if isinstance(outcome, RewardFailed):
                calls.record_failure(sample, outcome)
            elif term.is_call and not isinstance(outcome, BaseException):
                calls.record_success(source_of_reward(term.name))

    def _term(
        self, name: str, function: RewardFunction, retry: RetryPolicy, headers: Mapping[str, str]
    ) -> "_Term":
        hook: RewardHook
        match function.name:
            case RewardKind.PYTHON:
                hook = python_reward(function.python, function.timeout_seconds, function.signature)
            case RewardKind.JUDGE:
                assert function.judge is not None  # guaranteed by a rule
                label = f"reward {name} at {display_url(function.url)}"
                gate = GateOptions.of(label, self._outages, self._tasks)
                hook = JudgeReward(
                    self._http,
                    function.url,
                    function.judge,
                    headers,
                    function.timeout_seconds,
                    gate=gate,
                )
            case RewardKind.HTTP:
                gate = GateOptions.of(f"reward {name}", self._outages, self._tasks)
                hook = HttpJudge(self._http, function.url, function.timeout_seconds, retry, gate)
            case kind:
                return _Term(name, function.weight, partial(self._built_in, kind))
        self._hooks.append(hook)
        failed = RewardCodeFailed if function.name is RewardKind.PYTHON else RewardFailed
        value = partial(_score_with_hook, hook, name, failed)
        return _Term(name, function.weight, value, is_call=True)

    async def _built_in(self, kind: BuiltIn, sample: RewardSample) -> float:
        answer = final_answer(sample.completion, self._marker)
        match kind:
            case RewardKind.EXACT_MATCH:
                return exact_match(answer, sample.answers)
            case RewardKind.F1:
                return f1(answer, sample.answers)
            case RewardKind.CONTAINS:
                return contains(answer, sample.answers)
            case RewardKind.FORMAT:
                return format_score(sample, self._mode)
            case RewardKind.RAG_SCORE:
                return self._rag_score(sample)
            case _:
                assert_never(kind)

    def _rag_score(self, sample: RewardSample) -> float:
        if sample.fields is None:  # no retrieval call was made; the reward Format covers this case
            return 0.0
        reference = sample.retrieved[EndpointRole.REFERENCE]
        self.empty_references += not reference
        return rag_score(sample.retrieved[EndpointRole.ACTOR], reference, self._score_threshold)


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    weight: float
    value: Callable[[RewardSample], Awaitable[float]]
    is_call: bool = False
    """Whether the term calls a service or user code."""


def _kind_and_service(function: RewardFunction) -> str:
    match function.name:
        case RewardKind.PYTHON:
            return function.python
        case RewardKind.JUDGE if function.judge is not None:
            return f"Judge {function.judge.model}"
        case RewardKind.HTTP:
            return f"Http {display_url(function.url)}"
        case kind:
            return str(kind)


async def _score_with_hook(
    hook: RewardHook, name: str, failed: type[RewardFailed], sample: RewardSample
) -> float:
    try:
        return await hook.score(sample.as_json())
    except CallFailed as failure:
        raise failed(name, failure.cause, failure.detail, transient=failure.transient) from failure


def _actor_threshold(retrieval: RetrievalSpec) -> float:
    """Return the scoreThreshold of the actor endpoint; 0 for protocols other than RagChat."""
    for endpoint in retrieval.endpoints:
        if endpoint.role is EndpointRole.ACTOR and endpoint.protocol is EndpointProtocol.RAG_CHAT:
            return endpoint.score_threshold
    return 0.0
