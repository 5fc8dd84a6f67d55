"""Compare the configurations of two attempts. Pure."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from raggrpo_api.fields.json_values import size_problem
from raggrpo_api.secrets.detection import HIDDEN
from raggrpo_api.secrets.values import has_known_secret
from raggrpo_operator.core.spec.parse import MAX_DEPTH, MAX_VALUES
from raggrpo_operator.core.spec.resolve import Origin, Resolved

from .redacted_values import redacted_value

IDENTITY = frozenset({"attempt", "schemaDigest"})
"""Fields that differ between any two attempts and do not affect training."""
DERIVED_PLACES = ("world.", "facts.schemaDigest", "facts.rayVersion")
"""Process counts, which follow from `resources`, and facts about the image."""
AUTO = "Auto"
CHOSEN = frozenset({"training.precision", "model.attention"})
"""Fields in which an attempt replaces AUTO by its choice, which later attempts reuse."""
SERVED_URL = re.compile(r"retrieval\.endpoints\[\d+\]\.url")
"""URL of an endpoint, which an attempt fills in if the retriever is managed."""
ABSENT = "–"
"""Text shown for a value that is missing from one of the two configurations."""


class AttemptName(NamedTuple):
    """An attempt of a job, written `JOB@3`; `JOB` alone means the newest attempt."""

    job: str
    number: int = 0
    """Number of the attempt; 0 for the newest."""

    def __str__(self) -> str:
        return f"{self.job}@{self.number}"


def attempt_name(text: str) -> AttemptName:
    """Parse `JOB` or `JOB@N`; JOB may be a folder whose path contains @ signs."""
    match = re.fullmatch(r"(.+)@([0-9]{1,9})", text)
    return AttemptName(match[1], int(match[2])) if match else AttemptName(text)


def pair(
    first: AttemptName, second: AttemptName | None, newest: Mapping[str, int]
) -> tuple[AttemptName, AttemptName]:
    """Return the two attempts to compare, in the order (before, after).

    Without `second`, `first` is compared with its predecessor. `newest` maps each job to the number
    of its newest attempt. Raises ValueError if an attempt does not exist.
    """
    later = _numbered(second or first, newest)
    earlier = _numbered(first, newest) if second else AttemptName(first.job, later.number - 1)
    for job, number in (earlier, later):
        if not 1 <= number <= newest[job]:
            attempts = f"1 to {newest[job]}" if newest[job] else "none yet"
            raise ValueError(f"{job} has no attempt {number}: its attempts are {attempts}")
    return earlier, later


@dataclass(frozen=True, slots=True)
class AttemptConfig:
    """The recorded configuration of an attempt, and the job it was derived from."""

    values: Mapping[str, Any]
    resolved: Resolved

    def leaves(self) -> dict[str, Any]:
        """Return every value by path, except those of the attempt's identity."""
        rest = {key: value for key, value in self.values.items() if key not in IDENTITY}
        return dict(_leaves(rest))

    def is_derived(self, path: str, value: str) -> bool:
        """Return whether a value, as JSON text, follows from specified values or from the machine.

        The origins may be those of a later attempt: a value that differs from the resolved one may
        have been specified.
        """
        if path.startswith(DERIVED_PLACES):
            return True
        if path not in self.resolved.origins:
            return False
        origin, own = self.resolved.origins[path], self.resolved.values()[path]
        is_filled_in = not own and SERVED_URL.fullmatch(path) is not None
        if origin is Origin.COUPLED or is_filled_in:
            return True
        is_unchanged = json.dumps(own, ensure_ascii=False) == value
        return origin in (Origin.SIZED, Origin.DEFAULT) and is_unchanged

    def is_choice(self, path: str, before: str) -> bool:
        """Return whether the value of `path` may be the choice of an attempt for AUTO."""
        return (
            path in CHOSEN
            and before == json.dumps(AUTO)
            and self.resolved.values().get(path) == AUTO
        )


def attempt_config(values: object, resolved: Resolved) -> AttemptConfig:
    """Return the recorded configuration. Raises ValueError if the values are not one."""
    if not isinstance(values, dict):
        raise ValueError("it is not a JSON object")
    if problem := size_problem(values, MAX_DEPTH, MAX_VALUES):
        raise ValueError(problem)
    return AttemptConfig(values, resolved)


def differences(a: AttemptConfig, b: AttemptConfig) -> Iterator[str]:
    """Yield a line for each value that differs, such as `rollout.n: 4 → 8`.

    Values that are derived in both configurations are omitted. A mitigation is not omitted. Values
    that look like secrets are compared, but not shown.
    """
    leaves_a, leaves_b = a.leaves(), b.leaves()
    for path in {**leaves_a, **leaves_b}:
        before, after = (_json(each, path) for each in (leaves_a, leaves_b))
        if before == after or b.is_choice(path, before):
            continue
        if not (a.is_derived(path, before) and b.is_derived(path, after)):
            shown = HIDDEN if has_known_secret(path) else path
            yield f"{shown}: {_shown(leaves_a, path)} → {_shown(leaves_b, path)}"


def _numbered(name: AttemptName, newest: Mapping[str, int]) -> AttemptName:
    return AttemptName(name.job, name.number or newest[name.job])


def _json(leaves: Mapping[str, Any], path: str) -> str:
    return json.dumps(leaves[path], ensure_ascii=False) if path in leaves else ABSENT


def _shown(leaves: Mapping[str, Any], path: str) -> str:
    """Return the JSON text of a value without secrets."""
    if path not in leaves:
        return ABSENT
    return json.dumps(redacted_value(path, leaves[path], leaves), ensure_ascii=False)


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf; an empty list or object counts as a leaf."""
    if isinstance(value, dict) and value:
        for key, each in value.items():
            yield from _leaves(each, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for number, each in enumerate(value):
            yield from _leaves(each, f"{path}[{number}]")
    else:
        yield path, value
