"""Rules about groups, batches and how batches divide."""

from collections.abc import Iterator

from raggrpo_api.memory.arithmetic import num_ranks
from raggrpo_api.spec.training import RowLayout
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning


def group_size_equals_n(given: RuleInput) -> Iterator[Violation]:
    """Require all completions of a prompt to form one group."""
    n, group = given.spec.rollout.n, given.spec.algorithm.group_size
    if n != group:
        message = f"rollout.n is {n} and algorithm.groupSize is {group}"
        remedy = "give one of the two, or make them equal"
        yield Violation("spec.rollout.n", Reason.GROUP_SIZE_MISMATCH, message, remedy)


def group_has_a_baseline(given: RuleInput) -> Iterator[Violation]:
    """Reject a group of one, which has no advantage."""
    if given.spec.rollout.n < 2:
        message = "a group of one completion has no advantage to learn from"
        yield Violation("spec.rollout.n", Reason.GROUP_TOO_SMALL, message, "rollout.n: 2 or more")


def batch_feeds_all_ranks(given: RuleInput) -> Iterator[Violation]:
    """Require a row for every rank; rows are packed by tokens, so uneven division only warns."""
    ranks, training = num_ranks(given.spec.resources), given.spec.training
    rows = training.mini_batch_prompts
    unit = "prompts"
    if training.row_layout is RowLayout.PADDED:
        rows, unit = rows * given.spec.rollout.n, "completions"
    if rows < ranks:
        path = "spec.training.miniBatchPrompts"
        message = f"{rows} {unit} per update leave {ranks - rows} of {ranks} ranks without work"
        remedy = f"at least {ranks} {unit} per update, or fewer ranks in resources"
        yield Violation(path, Reason.BATCH_SMALLER_THAN_WORLD, message, remedy)
    elif ranks and rows % ranks:
        path = "spec.training.miniBatchPrompts"
        message = f"{rows} {unit} per update do not divide evenly over {ranks} ranks"
        remedy = f"a multiple of {ranks} keeps all ranks busy"
        yield warning(path, Reason.BATCH_UNEVEN_OVER_RANKS, message, remedy)


def mini_batch_divides_batch(given: RuleInput) -> Iterator[Violation]:
    """Require a whole number of mini-batches per batch, both counted in prompts."""
    batch, mini = given.spec.data.train_batch_size, given.spec.training.mini_batch_prompts
    if batch % mini:
        divisors = [size for size in range(1, batch + 1) if batch % size == 0]
        nearest = min(divisors, key=lambda size: abs(size - mini))
        path = "spec.training.miniBatchPrompts"
        message = f"{mini} prompts do not divide data.trainBatchSize {batch}"
        remedy = f"training.miniBatchPrompts: {nearest}, or 0 for one update per batch"
        yield Violation(path, Reason.MINI_BATCH_NOT_DIVISOR, message, remedy)


def micro_batch_holds_a_row(given: RuleInput) -> Iterator[Violation]:
    """Require a token budget for at least one completion, preferably for a whole group."""
    data, budget = given.spec.data, given.spec.training.tokens_per_micro_batch
    single = data.max_sequence_length
    group = data.max_prompt_length + given.spec.rollout.n * data.max_response_length
    path = "spec.training.tokensPerMicroBatch"
    if budget < single:
        message = f"{budget} tokens cannot hold one prompt and completion of {single} tokens"
        remedy = f"training.tokensPerMicroBatch: {single} or more"
        yield Violation(path, Reason.MICRO_BATCH_TOO_SMALL, message, remedy)
    elif given.spec.training.row_layout is RowLayout.SHARED_PREFIX and budget < group:
        yield warning(
            path,
            Reason.GROUP_EXCEEDS_MICRO_BATCH,
            f"the longest group has {group} tokens, more than the budget of {budget}: it is split, "
            "and its prompt computed more than once",
            f"training.tokensPerMicroBatch: {group}",
        )
