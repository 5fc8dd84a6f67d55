"""Rules about the length of the run and of sequences."""

import math
from collections.abc import Iterator

from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_api.spec.training import MAX_STEPS
from raggrpo_operator.core.spec.resolve import PASSAGE_SHARE
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation

from .rule_input import RuleInput, warning


def run_has_one_target(given: RuleInput) -> Iterator[Violation]:
    """Require exactly one target, since success means reaching it."""
    training = given.job.spec.training
    if not training.total_steps and not training.epochs:
        message = "neither totalSteps nor epochs is given"
        remedy = "training.totalSteps: 400, or training.epochs: 1"
        yield Violation("spec.training.totalSteps", Reason.NO_TARGET, message, remedy)
    if training.total_steps and training.epochs:
        message = f"both totalSteps {training.total_steps} and epochs {training.epochs} are given"
        yield Violation("spec.training.epochs", Reason.TWO_TARGETS, message, "keep one of the two")


def steps_can_be_counted(given: RuleInput) -> Iterator[Violation]:
    """Reject epochs that make more steps than totalSteps may have."""
    epochs, rows = given.spec.training.epochs, given.facts.rows
    steps = math.ceil(epochs * rows / given.spec.data.train_batch_size)
    if steps > MAX_STEPS and not given.job.spec.training.total_steps:
        message = f"{epochs} epochs of {rows} rows are {steps} steps, more than {MAX_STEPS}"
        remedy = f"training.totalSteps: {MAX_STEPS} or less instead, or fewer epochs"
        yield Violation("spec.training.epochs", Reason.TOO_MANY_STEPS, message, remedy)


def batch_fits_data(given: RuleInput) -> Iterator[Violation]:
    """Reject a batch that repeats a prompt: both would be sampled with the same seeds."""
    data = given.spec.data
    rows = given.facts.rows or data.max_samples
    if rows and rows < data.train_batch_size:
        yield Violation(
            "spec.data.trainBatchSize",
            Reason.BATCH_LARGER_THAN_DATA,
            f"a batch of {data.train_batch_size} prompts from {rows} rows "
            f"(data.maxSamples is {data.max_samples})",
            f"data.trainBatchSize: {rows} or less, or more data",
        )


def data_may_repeat(given: RuleInput) -> Iterator[Violation]:
    """Warn when the steps need more prompts than the data has."""
    steps, rows = given.job.spec.training.total_steps, given.facts.rows
    prompts = steps * given.spec.data.train_batch_size
    if rows and prompts > rows:
        yield warning(
            "spec.training.totalSteps",
            Reason.DATA_REPEATS,
            f"{steps} steps use {prompts} prompts; the data has {rows} and is read "
            f"{math.ceil(prompts / rows)} times",
            "fewer steps or more data, if that is not meant",
        )


def engine_step_holds_a_sequence(given: RuleInput) -> Iterator[Violation]:
    """Require engine steps of at least one sequence's tokens, or prefill would starve."""
    longest, tokens = given.spec.data.max_sequence_length, given.spec.rollout.max_num_batched_tokens
    if tokens < longest:
        path = "spec.rollout.maxNumBatchedTokens"
        message = f"{tokens} is less than maxPromptLength + maxResponseLength = {longest}"
        remedy = f"rollout.maxNumBatchedTokens: {longest} or more, or 0 to have it sized"
        yield Violation(path, Reason.BATCHED_TOKENS_TOO_FEW, message, remedy)


def sequence_fits_context(given: RuleInput) -> Iterator[Violation]:
    """Require the longest sequence to fit into the model's context."""
    longest, context = given.spec.data.max_sequence_length, given.facts.context_length
    if context and longest > context:
        yield Violation(
            "spec.data.maxPromptLength",
            Reason.CONTEXT_TOO_SHORT,
            f"maxPromptLength + maxResponseLength = {longest} exceeds the model's {context} tokens",
            f"lower the two to {context} together",
        )


def passages_leave_room(given: RuleInput) -> Iterator[Violation]:
    """Require room for the question beside untruncated passages."""
    spec = given.spec
    if spec.retrieval.mode is not RetrievalMode.PROMPT:
        return
    passages, tokens = _top_k(given), spec.retrieval.max_passage_tokens
    if passages * tokens >= spec.data.max_prompt_length:
        yield Violation(
            "spec.data.maxPromptLength",
            Reason.PASSAGES_DO_NOT_FIT,
            f"{passages} passages × {tokens} tokens leave no room to the question "
            f"in {spec.data.max_prompt_length} tokens",
            f"data.maxPromptLength: {_with_room(passages * tokens)} or more, a lower topK or "
            "retrieval.maxPassageTokens, or data.allowTruncation: true",
            Severity.WARNING if spec.data.allow_truncation else Severity.ERROR,
        )


def searches_leave_room(given: RuleInput) -> Iterator[Violation]:
    """Require room for the answer beside search results, which are part of the completion."""
    spec = given.spec
    if spec.retrieval.mode is not RetrievalMode.SEARCH:
        return
    turns, passages = spec.retrieval.max_turns, _top_k(given)
    tokens = spec.retrieval.max_passage_tokens
    if turns * passages * tokens >= spec.data.max_response_length:
        yield Violation(
            "spec.data.maxResponseLength",
            Reason.SEARCHES_DO_NOT_FIT,
            f"{turns} searches × {passages} passages × {tokens} tokens leave no room to the "
            f"answer in {spec.data.max_response_length} tokens",
            f"data.maxResponseLength: {_with_room(turns * passages * tokens)} or more, or a lower "
            "topK, retrieval.maxTurns or retrieval.maxPassageTokens",
        )


def _with_room(passages: int) -> int:
    """Return the length in which this many passage tokens take the share sizing gives them."""
    return math.ceil(passages / PASSAGE_SHARE)


def _top_k(given: RuleInput) -> int:
    return max((endpoint.top_k for endpoint in given.spec.retrieval.endpoints), default=0)
