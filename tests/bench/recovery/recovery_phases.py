"""What the histories of interrupted jobs tell: seconds of a recovery by phase, and kept time. Pure.

All times are seconds since 1970 on the clock of the one machine that everything runs on.
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
DRIVER_KILLED, WORKER_KILLED, HEAD_DELETED = STRIKES = (
    "driver killed",
    "worker killed",
    "head deleted",
)
PHASES = ("noticed", "submitted", "driver", "loaded", "engines", "step")
"""Noticed: the operator wrote that the attempt is over; submitted: Ray's head took the next one;
driver: its process holds the checkpoint folder and is connected to Ray; loaded: ranks hold model
and checkpoint; engines: the rollout engines answer; step: the first step is done."""


@dataclass(frozen=True, slots=True)
class Strike:
    """What was done to an attempt, and what was seen from outside of what followed."""

    at: float
    epoch: int
    """The fencing epoch of the attempt that was struck."""
    noticed: float | None
    """When its operator's status first told of an end; none: it never did."""
    submitted: float
    """When the head that runs now took the newest submission."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One recovery. The first step is the first one that any later attempt finished."""

    seconds: float
    """From the strike to the end of the first step, new or repeated."""
    phases: dict[str, float]
    """Seconds of each phase; one that was not seen is missing, and its time is in the next."""
    repeated: int
    """Steps that were done before and had to be done again."""
    new_step_seconds: float
    """From the strike to the end of the first step that nobody had done before."""
    drivers: int
    """Processes that claimed the checkpoint folder until one finished a step."""


Turn = Mapping[str, Mapping[str, Recovery | None]]
"""By side and strike; none: not within the limit. A job that was lost is not struck again."""


def parsed(text: str) -> list[Record]:
    """Return the records of history files; a line that is just being written counts as none."""
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
    """Return when each stage first began, and what else happened first."""
    events = [each for each in records if "event" in each]
    return {each.get("stage") or each["event"]: moment(each) for each in reversed(events)}


def last_step(steps: Iterable[Record]) -> int:
    return max((each["step"] for each in steps), default=0)


def has_recovered(records: Sequence[Record], epoch: int) -> bool:
    """Tell whether attempts after this epoch have got beyond what was done before."""
    before, later = _split(records, epoch)
    return last_step(later) > last_step(before)


def recovery(records: Sequence[Record], strike: Strike) -> Recovery:
    """Split a recovery that has happened, as `has_recovered` tells, into its phases."""
    before, later = _split(records, strike.epoch)
    first, done = later[0], last_step(before)
    events = [each for each in records if each["epoch"] == first["epoch"]]
    stages = stages_of(events)
    # An operator that told of an end only after the submission had no part in it.
    took_part = strike.noticed is not None and strike.noticed <= strike.submitted
    ends = {
        "noticed": strike.noticed if took_part else None,
        "submitted": strike.submitted,
        "driver": stages.get("start"),
        "loaded": stages.get(Stage.STARTING_ROLLOUT),
        "engines": stages.get(Stage.WARMING_RETRIEVAL),
        "step": moment(first),
    }
    phases, previous = {}, strike.at
    for name, end in ends.items():
        if end is not None:
            phases[name], previous = round(end - previous, 3), end
    new = next(each for each in later if each["step"] > done)
    return Recovery(
        seconds=round(moment(first) - strike.at, 3),
        phases=phases,
        repeated=max(0, done - first["step"] + 1),
        new_step_seconds=round(moment(new) - strike.at, 3),
        drivers=first["epoch"] - strike.epoch,
    )


def kept_share(records: Sequence[Record]) -> float:
    """Return the effective training time ratio: seconds of kept steps by seconds on the clock.

    A step that was done several times is kept once, as it was done last. The clock runs from the
    beginning of the first step to the end of the last.
    """
    steps = steps_of(records)
    kept = {each["step"]: each["step_seconds"] for each in steps}
    lasted = moment(steps[-1]) - moment(steps[0]) + steps[0]["step_seconds"]
    return float(sum(kept.values()) / lasted)


def summary(turns: Sequence[Turn], ettr: Mapping[str, float | None]) -> dict[str, Any]:
    cases: dict[str, list[dict[str, Any] | None]] = {}
    ratios: dict[str, list[float]] = {strike: [] for strike in STRIKES}
    for turn in turns:
        for side, strikes in turn.items():
            for strike, found in strikes.items():
                runs = cases.setdefault(f"{side}, {strike}", [])
                runs.append(asdict(found) if found else None)
        for strike, among in ratios.items():
            ours, theirs = turn[OURS].get(strike), turn.get(RAYJOB, {}).get(strike)
            among += [ours.seconds / theirs.seconds] if ours and theirs else []
    return {"bench": "recovery", "cases": cases, "ratios": ratios, "ettr": dict(ettr)}


def table(result: Mapping[str, Any], limit_seconds: float) -> Iterator[str]:
    """Yield the lines of the report; a phase's figure is its median."""
    phases = "".join(f"{name:>10}" for name in PHASES)
    yield f"{'':<26}{'s to the first step':>21}{phases}{'new step':>10}{'repeated':>10}"
    for name, runs in result["cases"].items():
        found = [run for run in runs if run]
        if lost := len(runs) - len(found):
            yield f"{name:<26}  did not recover within {limit_seconds:.0f} s: {lost} of {len(runs)}"
        if found:
            each = [[run["phases"][p] for run in found if p in run["phases"]] for p in PHASES]
            each += [[run[what] for run in found] for what in ("new_step_seconds", "repeated")]
            told = "".join(f"{statistics.median(s):>10.1f}" if s else f"{'–':>10}" for s in each)
            yield f"{name:<26}{spread([run['seconds'] for run in found], 1):>21}{told}"
    for strike, ratios in result["ratios"].items():
        if ratios:
            yield f"{OURS} / {RAYJOB}, {strike}: {spread(ratios, 2)}"
    for side, ratio in result["ettr"].items():
        yield f"effective training time ratio, {side}: {'–' if ratio is None else f'{ratio:.2f}'}"


def spread(values: Sequence[float], digits: int) -> str:
    three = (min(values), statistics.median(values), max(values))
    return " – ".join(f"{value:.{digits}f}" for value in three)


def moment(record: Record) -> float:
    return datetime.fromisoformat(record["time"]).timestamp()


def _split(records: Iterable[Record], epoch: int) -> tuple[list[Record], list[Record]]:
    """Return the steps of attempts up to this epoch, and those that later ones trained.

    The record of a step that the ranks finished without a driver is made up for: it lacks a sync.
    """
    steps = steps_of(records)
    later = [each for each in steps if each["epoch"] > epoch and "sync" in each["seconds"]]
    return [each for each in steps if each["epoch"] <= epoch], later
