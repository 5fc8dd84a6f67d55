"""Recovery time by phase and effective training time ratio, from job histories. Pure.

All times are Unix times in seconds of a single machine.
"""

import json
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from raggrpo_api.trainer.history import Record
from raggrpo_api.trainer.progress import Stage

OURS, RAYJOB = "RagGrpoJob", "RayJob"
DRIVER_KILLED, WORKER_KILLED, HEAD_DELETED = FAULTS = (
    "driver killed",
    "worker killed",
    "head deleted",
)
PHASES = ("noticed", "submitted", "driver", "loaded", "engines", "step")
"""End of each phase. noticed: the status reports the end of the attempt; submitted: the Ray head
has the next one; driver: it has claimed the checkpoint folder and connected to Ray; loaded: ranks
have loaded model and checkpoint; engines: the engines respond; step: the first step is done."""


@dataclass(frozen=True, slots=True)
class Fault:
    """An injected fault and what was observed from outside afterwards."""

    at: float
    epoch: int
    """Fencing epoch of the attempt with the fault."""
    noticed: float | None
    """Time at which the status first reported the end of the attempt, or None."""
    submitted: float
    """Time at which the current head accepted the newest submission."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery. The first step is the first one finished by any later attempt."""

    seconds: float
    """From the fault to the end of the first step, new or repeated."""
    phases: dict[str, float]
    """Seconds per phase; the time of an unobserved phase is included in the next one."""
    repeated: int
    """Number of repeated steps."""
    new_step_seconds: float
    """From the fault to the end of the first new step."""
    drivers: int
    """Number of drivers that claimed the checkpoint folder until one finished a step."""


Turn = Mapping[str, Mapping[str, Recovery | None]]
"""Recoveries by job kind and fault; None after a timeout, and later faults are missing then."""


def parsed(text: str) -> list[Record]:
    """Return the records of history files, without an incomplete last line."""
    records = []
    for line in text.splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def steps_of(records: Iterable[Record]) -> list[Record]:
    return sorted((each for each in records if "event" not in each), key=moment)


def stages_of(records: Sequence[Record]) -> dict[str, float]:
    """Return the first time of each stage and event."""
    events = [each for each in records if "event" in each]
    return {each.get("stage") or each["event"]: moment(each) for each in reversed(events)}


def last_step(steps: Iterable[Record]) -> int:
    return max((each["step"] for each in steps), default=0)


def has_recovered(records: Sequence[Record], epoch: int) -> bool:
    """Return whether attempts after this epoch have trained a new step."""
    before, later = _split(records, epoch)
    return last_step(later) > last_step(before)


def recovery(records: Sequence[Record], fault: Fault) -> Recovery:
    """Split a recovery (see `has_recovered`) into its phases."""
    before, later = _split(records, fault.epoch)
    first, done = later[0], last_step(before)
    events = [each for each in records if each["epoch"] == first["epoch"]]
    stages = stages_of(events)
    # A report after the submission did not contribute to the recovery.
    took_part = fault.noticed is not None and fault.noticed <= fault.submitted
    ends = {
        "noticed": fault.noticed if took_part else None,
        "submitted": fault.submitted,
        "driver": stages.get("start"),
        "loaded": stages.get(Stage.STARTING_ROLLOUT),
        "engines": stages.get(Stage.WARMING_RETRIEVAL),
        "step": moment(first),
    }
    phases, previous = {}, fault.at
    for name, end in ends.items():
        if end is not None:
            phases[name], previous = round(end - previous, 3), end
    new = next(each for each in later if each["step"] > done)
    return Recovery(
        seconds=round(moment(first) - fault.at, 3),
        phases=phases,
        repeated=max(0, done - first["step"] + 1),
        new_step_seconds=round(moment(new) - fault.at, 3),
        drivers=first["epoch"] - fault.epoch,
    )


def retained_share(records: Sequence[Record]) -> float:
    """Return the effective training time ratio: time of retained steps by elapsed time.

    Of a repeated step the last run is retained. The elapsed time runs from the start of the first
    step to the end of the last.
    """
    steps = steps_of(records)
    retained = {each["step"]: each["step_seconds"] for each in steps}
    elapsed = moment(steps[-1]) - moment(steps[0]) + steps[0]["step_seconds"]
    return float(sum(retained.values()) / elapsed)


def summary(turns: Sequence[Turn], ettr: Mapping[str, float | None]) -> dict[str, Any]:
    cases: dict[str, list[dict[str, Any] | None]] = {}
    ratios: dict[str, list[float]] = {fault: [] for fault in FAULTS}
    for turn in turns:
        for side, faults in turn.items():
            for fault, result in faults.items():
                runs = cases.setdefault(f"{side}, {fault}", [])
                runs.append(asdict(result) if result else None)
        for fault, among in ratios.items():
            ours, theirs = turn[OURS].get(fault), turn.get(RAYJOB, {}).get(fault)
            among += [ours.seconds / theirs.seconds] if ours and theirs else []
    return {"bench": "recovery", "cases": cases, "ratios": ratios, "ettr": dict(ettr)}


def table(result: Mapping[str, Any], limit_seconds: float) -> Iterator[str]:
    """Yield the lines of the report, with the median of each phase."""
    phases = "".join(f"{name:>10}" for name in PHASES)
    yield f"{'':<26}{'s to the first step':>21}{phases}{'new step':>10}{'repeated':>10}"
    for name, runs in result["cases"].items():
        recovered = [run for run in runs if run]
        if lost := len(runs) - len(recovered):
            yield f"{name:<26}  did not recover within {limit_seconds:.0f} s: {lost} of {len(runs)}"
        if recovered:
            each = [[run["phases"][p] for run in recovered if p in run["phases"]] for p in PHASES]
            each += [[run[what] for run in recovered] for what in ("new_step_seconds", "repeated")]
            medians = "".join(f"{statistics.median(s):>10.1f}" if s else f"{'–':>10}" for s in each)
            yield f"{name:<26}{spread([run['seconds'] for run in recovered], 1):>21}{medians}"
    for fault, ratios in result["ratios"].items():
        if ratios:
            yield f"{OURS} / {RAYJOB}, {fault}: {spread(ratios, 2)}"
    for side, ratio in result["ettr"].items():
        yield f"effective training time ratio, {side}: {'–' if ratio is None else f'{ratio:.2f}'}"


def spread(values: Sequence[float], digits: int) -> str:
    three = (min(values), statistics.median(values), max(values))
    return " – ".join(f"{value:.{digits}f}" for value in three)


def moment(record: Record) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def _split(records: Iterable[Record], epoch: int) -> tuple[list[Record], list[Record]]:
    """Return the steps of attempts up to this epoch and those of later attempts.

    Steps that ranks finished without a driver are excluded; their records lack a weight sync.
    """
    steps = steps_of(records)
    later = [each for each in steps if each["epoch"] > epoch and "sync" in each["seconds"]]
    return [each for each in steps if each["epoch"] <= epoch], later
