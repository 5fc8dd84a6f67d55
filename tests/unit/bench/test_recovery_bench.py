import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from bench.recovery.peer_rayjob import TOKEN, rayjob
from bench.recovery.recovery_phases import (
    DRIVER_KILLED,
    FAULTS,
    HEAD_DELETED,
    OURS,
    RAYJOB,
    Fault,
    Recovery,
    has_recovered,
    parsed,
    recovery,
    retained_share,
    summary,
    table,
)
from raggrpo_api import names
from raggrpo_api.trainer.history import Record, history_file
from raggrpo_api.trainer.sealed_config import seal
from raggrpo_trainer.job_config import read_config
from raggrpo_trainer.progress.metric_sinks import JsonLines
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.builders.operator.manifests import all_manifests, make_clustered_job
from support.builders.trainer.reports import make_step

KILLED = Fault(at=100.0, epoch=1, noticed=103.0, submitted=104.0)
START = ((110.0, "start"), (115.0, "StartingRollout"), (130.0, "WarmingRetrieval"))
RECOVERY = Recovery(
    seconds=35.0,
    phases={
        "noticed": 3.0,
        "submitted": 1.0,
        "driver": 6.0,
        "loaded": 5.0,
        "engines": 15.0,
        "step": 5.0,
    },
    repeated=2,
    new_step_seconds=45.0,
    drivers=1,
)


def history(
    folder: Path,
    epoch: int,
    steps: Mapping[int, float],
    events: Sequence[tuple[float, str]] = (),
    step_seconds: float = 4.0,
) -> list[Record]:
    """Return the records of an attempt, written by the trainer's sink; times in Unix seconds."""
    file = history_file(folder, epoch)
    lines = JsonLines(file, {"epoch": epoch, "attempt": 1})
    for seconds, what in events:
        event = {"event": "start"} if what == "start" else {"event": "stage", "stage": what}
        lines.write_event(at(seconds), {**event, "step": 0})
    for step, seconds in steps.items():
        lines.write_step(at(seconds), make_step(step, step_seconds=step_seconds), {})
    return parsed(file.read_text())


def at(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")


def interrupted(folder: Path) -> list[Record]:
    """Return the history of an attempt killed after step 6 and of one resumed from step 4."""
    first = history(folder, 1, {step: 60.0 + 6 * step for step in range(1, 7)}, START)
    return first + history(folder, 2, {5: 135.0, 6: 140.0, 7: 145.0, 8: 150.0}, START)


def test_recovery_is_split_into_phases_and_counts_repeated_steps(tmp_path: Path) -> None:
    assert recovery(interrupted(tmp_path), KILLED) == RECOVERY


@pytest.mark.parametrize("noticed", [None, 120.0])
def test_missing_or_late_failure_report_is_omitted_from_phases(
    tmp_path: Path, noticed: float | None
) -> None:
    result = recovery(interrupted(tmp_path), replace(KILLED, noticed=noticed))
    assert "noticed" not in result.phases
    assert result.phases["submitted"] == 4.0
    assert sum(result.phases.values()) == result.seconds


def test_drivers_without_completed_step_are_counted(tmp_path: Path) -> None:
    first = history(tmp_path, 1, {1: 90.0, 2: 95.0})
    failed = history(tmp_path, 2, {}, [(101.0, "start")])
    result = recovery(first + failed + history(tmp_path, 3, {3: 135.0}, START), KILLED)
    assert (result.drivers, result.repeated) == (2, 0)
    assert result.phases["driver"] == 6.0
    assert result.new_step_seconds == result.seconds == 35.0


@pytest.mark.parametrize(
    ("steps", "recovered"), [({}, False), ({2: 120.0}, False), ({3: 1.0}, True)]
)
def test_job_has_recovered_after_new_step(
    tmp_path: Path, steps: Mapping[int, float], recovered: bool
) -> None:
    records = history(tmp_path, 1, {1: 90.0, 2: 95.0}) + history(tmp_path, 2, steps, START)
    assert has_recovered(records, 1) is recovered


def test_incomplete_last_history_line_is_ignored() -> None:
    assert parsed('{"step": 1}\n{"step"') == [{"step": 1}]


def test_uninterrupted_steps_are_retained(tmp_path: Path) -> None:
    assert retained_share(history(tmp_path, 1, {step: 4.0 * step for step in range(1, 6)})) == 1.0


def test_repeated_step_is_retained_once(tmp_path: Path) -> None:
    first = history(tmp_path, 1, {1: 4.0, 2: 8.0, 3: 12.0})
    second = history(tmp_path, 2, {3: 36.0, 4: 40.0}, START)
    assert retained_share(first + second) == 16.0 / 40.0


def test_recovery_table_shows_spread_phases_and_missing_recoveries() -> None:
    slower = replace(RECOVERY, seconds=70.0, phases={"submitted": 60.0, "step": 10.0})
    turns = [
        {
            OURS: {DRIVER_KILLED: replace(RECOVERY, seconds=s), HEAD_DELETED: RECOVERY},
            RAYJOB: {DRIVER_KILLED: slower, HEAD_DELETED: None},
        }
        for s in (28.0, 35.0, 42.0)
    ]
    result = summary(turns, {OURS: 0.5, RAYJOB: None})
    assert json.loads(json.dumps(result)) == result
    _, *lines = table(result, 600)
    assert [" ".join(line.split()) for line in lines] == [
        "RagGrpoJob, driver killed 28.0 – 35.0 – 42.0 3.0 1.0 6.0 5.0 15.0 5.0 45.0 2.0",
        "RagGrpoJob, head deleted 35.0 – 35.0 – 35.0 3.0 1.0 6.0 5.0 15.0 5.0 45.0 2.0",
        "RayJob, driver killed 70.0 – 70.0 – 70.0 – 60.0 – – – 10.0 45.0 2.0",
        "RayJob, head deleted did not recover within 600 s: 3 of 3",
        "RagGrpoJob / RayJob, driver killed: 0.40 – 0.50 – 0.60",
        "effective training time ratio, RagGrpoJob: 0.50",
        "effective training time ratio, RayJob: –",
    ]


def test_faults_after_failed_recovery_are_omitted_from_summary() -> None:
    turn = {OURS: {DRIVER_KILLED: RECOVERY, HEAD_DELETED: RECOVERY}, RAYJOB: {DRIVER_KILLED: None}}
    result = summary([turn], {})
    assert result["cases"][f"{RAYJOB}, {DRIVER_KILLED}"] == [None]
    assert f"{RAYJOB}, {HEAD_DELETED}" not in result["cases"]
    assert result["ratios"] == {fault: [] for fault in FAULTS}


def test_comparison_rayjob_matches_attempt_except_checkpoint_folder() -> None:
    job = make_clustered_job(make_job({"resources": {"device": "CPU"}}), KNOWN_TINY)
    ours = all_manifests(job)
    spec = ours["raycluster"]["spec"]
    config = json.loads(ours["configmap"]["data"][names.CONFIG_FILE])

    theirs = rayjob("twin", spec, config, "/mnt/runs/twin")["spec"]

    environment = json.loads(theirs["runtimeEnvYAML"])["env_vars"]
    expected = read_config(seal(json.dumps(config))).model_dump()
    expected["checkpoint"]["path"] = "/mnt/runs/twin"
    expected["monitoring"]["log_dir"] = "/mnt/runs/twin/logs"
    assert read_config(environment).model_dump() == expected
    assert theirs["rayClusterSpec"]["authOptions"] == {"mode": "token", "secretName": TOKEN}
    assert pods_of(theirs["rayClusterSpec"]) == pods_of(spec)
    assert "raggrpo.io" not in json.dumps(theirs["rayClusterSpec"])
    assert "raggrpo.io" in json.dumps(spec), "the original was changed"


def pods_of(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    return [{**group, "template": group["template"]["spec"]} for group in groups]
