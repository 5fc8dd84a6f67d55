"""`summary.json`: the results of a job, computed from its status and history."""

import json
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic_core import to_jsonable_python

from raggrpo_api.status.conditions import ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.history import Record, read_records
from raggrpo_operator.core.state.conditions import get_condition
from raggrpo_operator.core.text.figures import END_STEPS
from raggrpo_operator.local_runtime.job_folder import SUMMARY, write_atomically


def summarize(status: JobStatus, log_dir: Path) -> dict[str, Any]:
    """Return phase, outcome, attempts, rewards, held-out exact match and seconds by stage."""
    records = read_records(log_dir)
    history, events = records.steps, records.events
    validations = {e["when"]: e for e in events if e["event"] == "validation"}
    rewards = [r["reward_mean"] for r in history if r.get("reward_mean") is not None]
    return {
        "phase": status.phase,
        "notLearning": _not_learning(status),
        "step": status.progress.step,
        "totalSteps": status.progress.total_steps,
        "bestStep": status.best_step,
        "bestScore": status.best_score,
        "pushedTo": status.push.url,
        "pushedRevision": status.push.revision,
        "restarts": status.restarts.total,
        "attempts": to_jsonable_python(status.attempts, by_alias=True),
        "rewardFirst": fmean(rewards[:END_STEPS]) if rewards else None,
        "rewardLast": fmean(rewards[-END_STEPS:]) if rewards else None,
        "exactMatchBefore": _validation_value(validations, "before", "exact_match"),
        "exactMatchAfter": _validation_value(validations, "after", "exact_match"),
        "exactMatchControl": _validation_value(validations, "after", "control_exact_match"),
        "secondsPerStep": status.progress.seconds_per_step,
        "historyProblem": records.problem,
        "secondsByStage": _seconds_by_stage(history, events),
    }


def write_summary(folder: Path, status: JobStatus, log_dir: Path) -> dict[str, Any]:
    """Write summary.json and return its content."""
    summary = summarize(status, log_dir)
    write_atomically(folder / SUMMARY, json.dumps(summary, indent=1))
    return summary


def _not_learning(status: JobStatus) -> dict[str, str] | None:
    """Return reason and message of the condition NotLearning if it is True, else None."""
    condition = get_condition(status, ConditionType.NOT_LEARNING)
    if condition.status != "True":
        return None
    return {"reason": condition.reason, "message": condition.message}


def _validation_value(validations: dict[str, Record], when: str, name: str) -> float | None:
    value: float | None = validations.get(when, {}).get(name)
    return value


def _seconds_by_stage(history: list[Record], events: list[Record]) -> dict[str, float]:
    """Return total seconds by stage over all attempts; `step.<stage>` is a stage of a step."""
    seconds: dict[str, float] = {}
    for event in events:
        if event["event"] == "stage":
            seconds[event["left"]] = seconds.get(event["left"], 0.0) + event["seconds"]
    for record in history:
        for stage, amount in record.get("seconds", {}).items():
            seconds[f"step.{stage}"] = seconds.get(f"step.{stage}", 0.0) + amount
    return {stage: round(amount, 3) for stage, amount in seconds.items()}
