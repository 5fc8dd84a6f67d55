"""Groups of a step's samples, and whether too many calls failed. Pure."""

from collections.abc import Sequence

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.groups import Completion, Group

from .advantage import group_advantages
from .failure_ledger import FailureLedger
from .samples import Sample


def form_groups(
    samples: Sequence[Sample], *, zero_reward: bool, normalize_by_std: bool
) -> list[Group]:
    """Return the groups with advantages.

    Failed samples are excluded, or have reward 0 if `zero_reward`. All rows of a sample have its
    advantage. Rows with the prompt of the first sample share a group; the others follow as groups
    of one row.
    """
    by_group: dict[int, list[Sample]] = {}
    for sample in samples:
        by_group.setdefault(sample.group, []).append(sample)
    groups: list[Group] = []
    for members in by_group.values():
        rewards = [0.0 if s.failure and zero_reward and s.token_ids else s.reward for s in members]
        advantages = group_advantages(rewards, normalize_by_std=normalize_by_std)
        valid = [(s, a) for s, a in zip(members, advantages, strict=True) if a is not None]
        groups += _groups_of_prompt(valid)
    return groups


def _groups_of_prompt(valid: Sequence[tuple[Sample, float]]) -> list[Group]:
    rows = [(*row, advantage) for sample, advantage in valid for row in sample.rows()]
    if not rows:
        return []
    prompt_ids = rows[0][0]
    shared = [(completion, advantage) for ids, completion, advantage in rows if ids == prompt_ids]
    forks = [row for row in rows if row[0] != prompt_ids]
    completions = tuple(completion for completion, _ in shared)
    return [
        Group(prompt_ids, completions, tuple(advantage for _, advantage in shared)),
        *(_fork(*row) for row in forks),
    ]


def _fork(prompt_ids: tuple[int, ...], completion: Completion, advantage: float) -> Group:
    return Group(prompt_ids, (completion,), (advantage,), continues=True)


def check_calls(ledger: FailureLedger, max_failure_ratio: float) -> None:
    """Raise TrainerError if more calls to a service failed than `max_failure_ratio` allows.

    Results of the wrong type are faults of the reward's code, however few there are.
    """
    if fault := ledger.user_code_failure(max_failure_ratio):
        raise TrainerError(ExitCode.REWARD_CODE_ERROR, f"{fault}; correct the function")
    if ledger.exceeds(max_failure_ratio):
        raise TrainerError(
            ExitCode.RETRIEVAL_UNAVAILABLE,
            f"too many calls of a step failed (maxFailureRatio {max_failure_ratio:g}): "
            f"{ledger.message()}",
        )
