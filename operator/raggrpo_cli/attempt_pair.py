"""Selection of the two attempts that `diff` compares, and the text of their differences."""

from collections.abc import Mapping, Sequence

from raggrpo_operator.core.text.config_diff import AttemptConfig, AttemptName, differences, pair

from .job_file import fail

HELP = "Job {}, or {}@3 for its attempt 3 (default: the newest)."


def select_attempts(
    selected: Sequence[AttemptName], newest: Mapping[str, int]
) -> tuple[AttemptName, AttemptName]:
    """Return the two attempts selected by one or two names, or exit with an error."""
    try:
        return pair(selected[0], selected[1] if len(selected) > 1 else None, newest)
    except ValueError as error:
        fail(str(error))


def diff_text(name_a: AttemptName, a: AttemptConfig, name_b: AttemptName, b: AttemptConfig) -> str:
    """Return the differences between two configurations as text."""
    lines = list(differences(a, b)) or ["no differences"]
    return "\n".join([f"{name_a} → {name_b}", *lines])
