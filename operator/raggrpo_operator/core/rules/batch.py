"""Rules on group size, batch size and their division over ranks."""

from collections.abc import Iterator

from raggrpo_api.memory.arithmetic import num_ranks
from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import RowLayout
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import ON_CPU, PADDED, specified, value_or
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

_RANKS = (
    f"({ON_CPU} ? {value_or('resources.ranks', '1')} : {value_or('resources.gpusPerNode', '1')})"
    f" * {value_or('resources.nodes', '1')}"
)
_MINI_BATCH = value_or("training.miniBatchPrompts", "0")
_PROMPTS = f"({_MINI_BATCH} > 0 ? {_MINI_BATCH} : self.data.trainBatchSize)"


@spec_rule(
    "spec",
    field="rollout.n",
    reason=Reason.GROUP_SIZE_MISMATCH,
    message="rollout.n differs from algorithm.groupSize",
    values=lambda spec: f"{spec.rollout.n}, {spec.algorithm.group_size}",
    remedy="specify only one of the two, or make them equal",
    if_specified=("rollout.n", "algorithm.groupSize"),
    cel="self.rollout.n == self.algorithm.groupSize",
)
def group_size_equals_n(spec: JobSpec) -> bool:
    """Require all completions of a prompt to form one group."""
    return spec.rollout.n == spec.algorithm.group_size


@spec_rule(
    "spec.rollout",
    field="n",
    reason=Reason.GROUP_TOO_SMALL,
    message="the advantage in a group of one completion is always 0",
    remedy="set rollout.n: 2 or more",
    if_specified=("n",),
    cel="self.n >= 2",
    as_specified=True,
)
def n_is_at_least_two(rollout: RolloutSpec) -> bool:
    """Reject a group of one completion, whose advantage is always 0."""
    return rollout.n >= 2


@spec_rule(
    "spec.algorithm",
    field="groupSize",
    reason=Reason.GROUP_TOO_SMALL,
    message="the advantage in a group of one completion is always 0",
    remedy="set algorithm.groupSize: 2 or more",
    if_specified=("groupSize",),
    cel="self.groupSize >= 2",
    as_specified=True,
)
def group_size_is_at_least_two(algorithm: AlgorithmSpec) -> bool:
    """Reject a group of one completion, whose advantage is always 0."""
    return algorithm.group_size >= 2


@spec_rule(
    "spec",
    field="training.miniBatchPrompts",
    reason=Reason.BATCH_SMALLER_THAN_WORLD,
    message="an update has fewer prompts than there are ranks",
    values=lambda spec: (
        f"{spec.training.mini_batch_prompts} prompts, {num_ranks(spec.resources)} ranks"
    ),
    remedy="increase data.trainBatchSize or training.miniBatchPrompts, or reduce resources.nodes "
    "or resources.gpusPerNode",
    cel=f"!({specified('data.trainBatchSize')} || {_MINI_BATCH} > 0) || {PADDED} || "
    f"{_PROMPTS} >= {_RANKS}",
)
def ranks_get_prompts(spec: JobSpec) -> bool:
    """Require a prompt per rank in each update; `ranks_get_completions` covers padded rows."""
    is_padded = spec.training.row_layout is RowLayout.PADDED
    return is_padded or spec.training.mini_batch_prompts >= num_ranks(spec.resources)


def ranks_get_completions(inputs: RuleInput) -> Iterator[Violation]:
    """Require a completion per rank in each update if rows are padded."""
    ranks, training = num_ranks(inputs.spec.resources), inputs.spec.training
    rows = training.mini_batch_prompts * inputs.spec.rollout.n
    if training.row_layout is RowLayout.PADDED and rows < ranks:
        path = "spec.training.miniBatchPrompts"
        message = f"{rows} completions per update leave some of the {ranks} ranks without work"
        remedy = f"use at least {ranks} completions per update, or request fewer ranks"
        yield Violation(path, Reason.BATCH_SMALLER_THAN_WORLD, message, remedy)


def ranks_get_equal_work(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if an update does not divide evenly over ranks.

    This is not an error, because rows are packed by tokens.
    """
    ranks, training = num_ranks(inputs.spec.resources), inputs.spec.training
    is_padded = training.row_layout is RowLayout.PADDED
    unit = "completions" if is_padded else "prompts"
    rows = training.mini_batch_prompts * (inputs.spec.rollout.n if is_padded else 1)
    if ranks and rows >= ranks and rows % ranks:
        path = "spec.training.miniBatchPrompts"
        message = f"{rows} {unit} per update do not divide evenly over {ranks} ranks"
        remedy = f"use a multiple of {ranks} {unit} per update to keep all ranks busy"
        yield warning(path, Reason.BATCH_UNEVEN_OVER_RANKS, message, remedy)


@spec_rule(
    "spec",
    field="training.miniBatchPrompts",
    reason=Reason.MINI_BATCH_NOT_DIVISOR,
    message="miniBatchPrompts does not divide data.trainBatchSize",
    values=lambda spec: f"{spec.training.mini_batch_prompts}, {spec.data.train_batch_size}",
    remedy="set training.miniBatchPrompts: 0 for one update per batch, or to a divisor of "
    "data.trainBatchSize",
    if_specified=("data.trainBatchSize", "training.miniBatchPrompts"),
    cel="self.training.miniBatchPrompts == 0 || "
    "self.data.trainBatchSize % self.training.miniBatchPrompts == 0",
)
def mini_batch_divides_batch(spec: JobSpec) -> bool:
    """Require each batch to consist of a whole number of mini-batches, both counted in prompts."""
    return spec.data.train_batch_size % spec.training.mini_batch_prompts == 0


@spec_rule(
    "spec",
    field="training.tokensPerMicroBatch",
    reason=Reason.MICRO_BATCH_TOO_SMALL,
    message="tokensPerMicroBatch is less than data.maxPromptLength + data.maxResponseLength",
    values=lambda spec: f"{spec.training.tokens_per_micro_batch}, {spec.data.max_sequence_length}",
    remedy="increase training.tokensPerMicroBatch to at least this sum",
    if_specified=(
        "data.maxPromptLength",
        "data.maxResponseLength",
        "training.tokensPerMicroBatch",
    ),
    cel="self.training.tokensPerMicroBatch >= "
    "self.data.maxPromptLength + self.data.maxResponseLength",
)
def micro_batch_holds_a_sequence(spec: JobSpec) -> bool:
    """Require a token budget that is large enough for one prompt and its completion."""
    return spec.training.tokens_per_micro_batch >= spec.data.max_sequence_length


def micro_batch_holds_a_group(inputs: RuleInput) -> Iterator[Violation]:
    """Warn if the longest group exceeds the token budget and is therefore split."""
    data, training = inputs.spec.data, inputs.spec.training
    budget = training.tokens_per_micro_batch
    group = data.max_prompt_length + inputs.spec.rollout.n * data.max_response_length
    is_shared = training.row_layout is RowLayout.SHARED_PREFIX
    if is_shared and data.max_sequence_length <= budget < group:
        yield warning(
            "spec.training.tokensPerMicroBatch",
            Reason.GROUP_EXCEEDS_MICRO_BATCH,
            f"the longest group exceeds the token budget ({group} tokens, limit {budget}): the "
            "group is split, and its prompt is computed more than once",
            f"set training.tokensPerMicroBatch: {group}",
        )
