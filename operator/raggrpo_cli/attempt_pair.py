"""Which two attempts `diff` compares, and what it prints about them."""

from collections.abc import Mapping, Sequence
from typing import Any

from raggrpo_operator.core.text.config_diff import AttemptName, differences, pair

from .job_file import fail

HELP = "Job {}, or {}@3 for its attempt 3; default: the newest."


def select_attempts(
    named: Sequence[AttemptName], newest: Mapping[str, int]
) -> tuple[AttemptName, AttemptName]:
    """Return which attempts one or two names choose, or end the command with those there are."""
    try:
        return pair(named[0], named[1] if len(named) > 1 else None, newest)
    except ValueError as error:
        fail(str(error))


def diff_text(of_a: AttemptName, a: dict[str, Any], of_b: AttemptName, b: dict[str, Any]) -> str:
    """Return what the command prints about two configurations."""
    found = list(differences(a, b))
    return "\n".join([f"{of_a} → {of_b}", *(found or ["nothing differs"])])
