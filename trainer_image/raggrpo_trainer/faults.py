"""`RAGGRPO_FAULT`: which faults a drill strikes, and when; parsed here, struck by `drill` (B29).

Entries are separated by `,` or `;`:  name@key=value[@key=value...]

    kill-driver@step=7            SIGKILL at the beginning of step 7; also kill-rank, kill-engine
    kill-rank@save=10:shards      SIGKILL while step 10 is saved, at a phase: shards, complete,
                                  retention
    pause@save=10:complete:20     the save stands still for 20 s at that phase
    hang-driver@step=4            the driver's event loop blocks for ever
    freeze@step=4                 the driver stops itself (SIGSTOP)
    nan@step=6                    the step's advantages are not numbers
    exit0@step=5                  exit code 0 before the target
    slow-step@step=9:3            step 9 takes 3 s longer
    wrong-resume                  starts from step 0 in spite of a checkpoint

`@attempt=2` chooses the attempt (default 1; 0: every one). Each fault strikes once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from raggrpo_api.names import ENV_FAULT

NAMES = (
    "kill-driver",
    "kill-rank",
    "kill-engine",
    "pause",
    "hang-driver",
    "freeze",
    "nan",
    "exit0",
    "slow-step",
    "wrong-resume",
)


@dataclass(slots=True)
class _Fault:
    name: str
    attempt: int = 1
    step: int | None = None
    save: int | None = None
    phase: str = ""
    argument: str = ""
    struck: bool = False


@dataclass(slots=True)
class Faults:
    """The faults of one attempt."""

    _faults: list[_Fault] = field(default_factory=list)

    @classmethod
    def from_env(cls, env: Mapping[str, str], attempt: int) -> Self:
        """Parse RAGGRPO_FAULT. Raises ValueError for what is not understood."""
        entries = env.get(ENV_FAULT, "").replace(";", ",").split(",")
        found = [_parse(entry.strip()) for entry in entries if entry.strip()]
        return cls([fault for fault in found if fault.attempt in (0, attempt)])

    def due(
        self, name: str, *, step: int | None = None, save: int | None = None, phase: str = ""
    ) -> str:
        """Return the fault's argument (or its name) the first time it is due here, else ""."""
        for fault in self._faults:
            here = (fault.name, fault.step, fault.save, fault.phase) == (name, step, save, phase)
            if here and not fault.struck:
                fault.struck = True
                return fault.argument or name
        return ""


def _parse(entry: str) -> _Fault:
    name, *parts = entry.split("@")
    if name not in NAMES:
        raise ValueError(f"{ENV_FAULT}: unknown fault {name!r}; known are {', '.join(NAMES)}")
    fault = _Fault(name)
    for part in parts:
        key, _, value = part.partition("=")
        values = value.split(":")
        match key:
            case "attempt":
                fault.attempt = int(value)
            case "step":
                fault.step, fault.argument = int(values[0]), ":".join(values[1:])
            case "save":
                fault.save, fault.phase = int(values[0]), values[1] if len(values) > 1 else "shards"
                fault.argument = ":".join(values[2:])
            case _:
                raise ValueError(f"{ENV_FAULT}: {part!r}: keys are attempt, step and save")
    return fault
