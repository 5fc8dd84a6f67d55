"""Parse `RAGGRPO_FAULT`, which lists the faults that `drill` injects and when they are due.

Entries are separated by `,` or `;`:  name[@when=number[:more]][@attempt=number]

    kill-driver@step=7            SIGKILL at the start of step 7; also kill-rank, kill-engine
    kill-rank@save=10:shards      SIGKILL during the save of step 10, at a phase: shards (default),
                                  complete (all but the marker), retention (older ones still exist)
    pause@save=10:complete:20     the save pauses for 20 s at that phase
    corrupt-checkpoint@save=10:retention   truncate a shard of the newest complete checkpoint
    hang-driver@step=4            the driver's event loop blocks forever
    hang-rank@step=4              the rank blocks in a call that never returns; also hang-engine
    use-memory@step=4:2           a rank allocates 2 GiB, to simulate a leak or exceed its limit
    freeze@step=4                 the driver stops itself (SIGSTOP)
    nan@step=6                    the step's advantages are NaN
    oom@step=6                    a rank raises the error of a GPU that is out of memory
    exit0@step=5                  the driver exits with code 0 before the target step
    slow-step@step=9:3            step 9 takes 3 s longer
    wrong-resume                  the attempt starts from step 0 despite a checkpoint

`@attempt=2` selects the attempt (default 1; 0 for all). A fault is injected once per attempt.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from raggrpo_api.names import ENV_FAULT

STEP, SAVE, START = "step", "save", ""
TRIGGERS = {
    "kill-driver": {STEP, SAVE},
    "kill-rank": {STEP, SAVE},
    "kill-engine": {STEP, SAVE},
    "pause": {SAVE},
    "corrupt-checkpoint": {SAVE},
    "hang-driver": {STEP},
    "hang-rank": {STEP},
    "hang-engine": {STEP},
    "use-memory": {STEP},
    "freeze": {STEP},
    "nan": {STEP},
    "oom": {STEP},
    "exit0": {STEP},
    "slow-step": {STEP},
    "wrong-resume": {START},
}
"""Accepted triggers by fault name."""
PHASES = ("shards", "complete", "retention")

_ENTRY = re.compile(
    r"(?P<name>[\w-]+)(@(?P<when>step|save)=(?P<number>\d+)(:(?P<more>[\w.:]+))?)?"
    r"(@attempt=(?P<attempt>\d+))?"
)


@dataclass(frozen=True, slots=True)
class _Moment:
    """A fault and when it is due: at a step, or at a phase of a save."""

    name: str
    step: int | None
    save: int | None
    phase: str


class Faults:
    """The faults of one attempt that have not been injected yet."""

    def __init__(self, arguments: Mapping[_Moment, str]) -> None:
        self._arguments = dict(arguments)

    @classmethod
    def from_env(cls, env: Mapping[str, str], attempt: int) -> Self:
        """Parse RAGGRPO_FAULT. Raises ValueError with the invalid entry and the expected format."""
        entries = re.split("[,;]", env.get(ENV_FAULT, ""))
        parsed = [_parse(entry.strip()) for entry in entries if entry.strip()]
        return cls({moment: text for moment, text, of in parsed if of in (0, attempt)})

    def take_due(
        self, name: str, *, step: int | None = None, save: int | None = None, phase: str = ""
    ) -> str:
        """If a fault is due, remove it and return its argument or name; otherwise return ""."""
        argument = self._arguments.pop(_Moment(name, step, save, phase), None)
        return "" if argument is None else argument or name


def _parse(entry: str) -> tuple[_Moment, str, int]:
    """Return moment, argument and attempt of one entry."""
    match = _ENTRY.fullmatch(entry)
    if match is None:
        raise _error(
            entry, "expected name@step=7, name@save=10:phase or name, optionally with @attempt=2"
        )
    name = match["name"]
    when = match["when"] or START
    more = match["more"] or ""
    if name not in TRIGGERS:
        raise _error(entry, f"unknown fault; choose from {', '.join(TRIGGERS)}")
    if when not in TRIGGERS[name]:
        expected = " or ".join(
            f"@{key}=" if key else "no trigger" for key in sorted(TRIGGERS[name])
        )
        raise _error(entry, f"{name} must have {expected}")
    number = int(match["number"]) if when else None
    attempt = int(match["attempt"] or 1)
    if when != SAVE:
        return _Moment(name, number, None, ""), more, attempt
    phase, _, argument = more.partition(":")
    if (phase or PHASES[0]) not in PHASES:
        raise _error(entry, f"unknown phase; choose from {', '.join(PHASES)}")
    return _Moment(name, None, number, phase or PHASES[0]), argument, attempt


def _error(entry: str, remedy: str) -> ValueError:
    return ValueError(f"{ENV_FAULT}: {entry!r}: {remedy}")
