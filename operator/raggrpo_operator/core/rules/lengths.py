"""Rules on the length of the run and of sequences."""

import math
from collections.abc import Iterator

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_api.spec.training import MAX_STEPS, TrainingSpec
from raggrpo_operator.core.spec.resolve import PASSAGE_SHARE
from raggrpo_operator.core.spec.violation import Reason, Violation
from raggrpo_operator.core.spec.world import steps_of_epochs

from .base.cel import is_one_of, value_or
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule


@spec_rule(
    "spec",
    field="training.totalSteps",
    reason=Reason.NO_TARGET,
    message="neither totalSteps nor epochs is specified",
    remedy="set training.totalSteps: 400, or training.epochs: 1",
    cel=f"{value_or('training.totalSteps', '0')} > 0 || {value_or('training.epochs', '0')} > 0",
    as_specified=True,
)
def run_has_a_target(spec: JobSpec) -> bool:
    """Require a target step, because a job succeeds by reaching it."""
    return spec.training.total_steps > 0 or spec.training.epochs > 0


@spec_rule(
    "spec.training",
    field="epochs",
    reason=Reason.TWO_TARGETS,
    message="totalSteps and epochs are both specified",
    values=lambda training: f"{training.total_steps}, {training.epochs}",
    remedy="remove one of the two",
    if_specified=("totalSteps", "epochs"),
    cel="self.totalSteps == 0 || self.epochs == 0",
    as_specified=True,
)
def run_has_one_target(training: TrainingSpec) -> bool:
    """Reject two targets, which may contradict each other."""
    return training.total_steps == 0 or training.epochs == 0


def epochs_fit_max_steps(inputs: RuleInput) -> Iterator[Violation]:
    """Reject epochs that amount to more than MAX_STEPS steps."""
    epochs, rows = inputs.spec.training.epochs, inputs.facts.rows
    steps = steps_of_epochs(epochs, rows, inputs.spec.data.train_batch_size)
    if steps > MAX_STEPS and not inputs.job.spec.training.total_steps:
        message = f"{epochs} epochs of {rows} rows take too many steps ({steps}, limit {MAX_STEPS})"
        remedy = f"reduce epochs, or specify training.totalSteps: {MAX_STEPS} or less instead"
        yield Violation("spec.training.epochs", Reason.TOO_MANY_STEPS, message, remedy)


@spec_rule(
    "spec",
    field="data.trainBatchSize",
    reason=Reason.BATCH_LARGER_THAN_DATA,
    message="trainBatchSize exceeds data.maxSamples",
    values=lambda spec: f"{spec.data.train_batch_size}, limit {spec.data.max_samples}",
    remedy="reduce data.trainBatchSize, or increase data.maxSamples",
    if_specified=("data.trainBatchSize", "data.maxSamples"),
    cel="self.data.maxSamples == 0 || self.data.maxSamples >= self.data.trainBatchSize",
)
def batch_fits_max_samples(spec: JobSpec) -> bool:
    """Reject a batch larger than maxSamples: a repeated prompt would reuse its sampling seeds."""
    return spec.data.max_samples == 0 or spec.data.max_samples >= spec.data.train_batch_size


def batch_fits_data(inputs: RuleInput) -> Iterator[Violation]:
    """Reject a batch with more prompts than the data has rows."""
    batch, rows = inputs.spec.data.train_batch_size, inputs.facts.rows
    if batch_fits_max_samples.is_met(inputs.spec) and 0 < rows < batch:
        message = f"a batch has {batch} prompts, but the data has only {rows} rows"
        remedy = f"set data.trainBatchSize: {rows} or less, or add data"
        path = "spec.data.trainBatchSize"
        yield Violation(path, Reason.BATCH_LARGER_THAN_DATA, message, remedy)


def steps_fit_data(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if the run needs more prompts than the data has rows."""
    steps, rows = inputs.job.spec.training.total_steps, inputs.facts.rows
    prompts = steps * inputs.spec.data.train_batch_size
    if rows and prompts > rows:
        yield warning(
            "spec.training.totalSteps",
            Reason.DATA_REPEATS,
            f"{steps} steps need {prompts} prompts, so the {rows} rows are read up to "
            f"{math.ceil(prompts / rows)} times",
            "reduce training.totalSteps or add data if this is unintended",
        )


@spec_rule(
    "spec",
    field="rollout.maxNumBatchedTokens",
    reason=Reason.BATCHED_TOKENS_TOO_FEW,
    message="maxNumBatchedTokens is less than data.maxPromptLength + data.maxResponseLength",
    values=lambda spec: f"{spec.rollout.max_num_batched_tokens}, {spec.data.max_sequence_length}",
    remedy="set rollout.maxNumBatchedTokens: 0 to derive it, or to at least this sum",
    if_specified=(
        "data.maxPromptLength",
        "data.maxResponseLength",
        "rollout.maxNumBatchedTokens",
    ),
    cel="self.rollout.maxNumBatchedTokens == 0 || self.rollout.maxNumBatchedTokens >= "
    "self.data.maxPromptLength + self.data.maxResponseLength",
)
def engine_step_holds_a_sequence(spec: JobSpec) -> bool:
    """Require the token budget of an engine step to hold the longest sequence.

    Otherwise the prefill of that sequence could starve.
    """
    return spec.rollout.max_num_batched_tokens >= spec.data.max_sequence_length


def sequence_fits_context(inputs: RuleInput) -> Iterator[Violation]:
    """Require the longest sequence to fit into the model's context."""
    longest, context = inputs.spec.data.max_sequence_length, inputs.facts.context_length
    if context and longest > context:
        yield Violation(
            "spec.data.maxPromptLength",
            Reason.CONTEXT_TOO_SHORT,
            f"maxPromptLength + maxResponseLength exceeds the model's context ({longest} tokens, "
            f"limit {context} tokens)",
            f"reduce their sum to {context} tokens or less",
        )


@spec_rule(
    "spec",
    field="data.maxPromptLength",
    reason=Reason.PASSAGES_DO_NOT_FIT,
    message="topK × retrieval.maxPassageTokens leaves no room for the question",
    values=lambda spec: f"{_passage_tokens(spec)} of {spec.data.max_prompt_length} tokens",
    remedy="increase data.maxPromptLength, reduce topK or retrieval.maxPassageTokens, or "
    "set data.allowTruncation: true",
    if_specified=("data.maxPromptLength", "retrieval.maxPassageTokens", "retrieval.endpoints"),
    cel=f"!{is_one_of('retrieval.mode', 'Prompt')} || "
    "(has(self.data.allowTruncation) && self.data.allowTruncation)"
    " || self.retrieval.endpoints.all(e, !has(e.topK) || "
    "e.topK * self.retrieval.maxPassageTokens < self.data.maxPromptLength)",
)
def passages_leave_room(spec: JobSpec) -> bool:
    """Require room for the question next to untruncated passages."""
    return spec.data.allow_truncation or _passages_leave_room(spec)


def truncated_passages_leave_room(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if truncation drops passages from most prompts."""
    spec = inputs.spec
    if spec.data.allow_truncation and not _passages_leave_room(spec):
        passages = _passage_tokens(spec)
        yield warning(
            "spec.data.maxPromptLength",
            Reason.PASSAGES_DO_NOT_FIT,
            "topK × retrieval.maxPassageTokens leaves no room for the question, so that passages "
            f"are dropped ({passages} of {spec.data.max_prompt_length} tokens)",
            f"set data.maxPromptLength: {math.ceil(passages / PASSAGE_SHARE)} or more, or reduce "
            "topK or retrieval.maxPassageTokens",
        )


@spec_rule(
    "spec",
    field="data.maxResponseLength",
    reason=Reason.SEARCHES_DO_NOT_FIT,
    message="maxTurns × topK × retrieval.maxPassageTokens leaves no room for the answer",
    values=lambda spec: f"{_search_tokens(spec)} of {spec.data.max_response_length} tokens",
    remedy="increase data.maxResponseLength, or reduce topK, retrieval.maxTurns or "
    "retrieval.maxPassageTokens",
    if_specified=(
        "data.maxResponseLength",
        "retrieval.maxPassageTokens",
        "retrieval.maxTurns",
        "retrieval.endpoints",
    ),
    cel=f"!{is_one_of('retrieval.mode', 'Search')} || "
    "self.retrieval.endpoints.all(e, !has(e.topK) || self.retrieval.maxTurns * e.topK * "
    "self.retrieval.maxPassageTokens < self.data.maxResponseLength)",
)
def searches_leave_room(spec: JobSpec) -> bool:
    """Require room for the answer next to search results, which are part of the completion."""
    is_search = spec.retrieval.mode is RetrievalMode.SEARCH
    return not is_search or _search_tokens(spec) < spec.data.max_response_length


def _passages_leave_room(spec: JobSpec) -> bool:
    is_prompt = spec.retrieval.mode is RetrievalMode.PROMPT
    return not is_prompt or _passage_tokens(spec) < spec.data.max_prompt_length


def _passage_tokens(spec: JobSpec) -> int:
    top_k = max((endpoint.top_k for endpoint in spec.retrieval.endpoints), default=0)
    return top_k * spec.retrieval.max_passage_tokens


def _search_tokens(spec: JobSpec) -> int:
    return spec.retrieval.max_turns * _passage_tokens(spec)
