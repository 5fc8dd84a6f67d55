"""`TrajectoryLog`: the calls of applications in each step as readable lines of JSON."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from raggrpo_trainer.gateway.trajectory import Trajectory, Turn
from raggrpo_trainer.rollout.samples import Batch, Sample

LOGGED_PROMPTS = 2
"""Number of prompts per step whose samples are all written."""
FILE_NAME = "trajectories.jsonl"


class TrajectoryLog:
    """Appends trajectories to a file in the folder of the attempt."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE_NAME

    def write(self, batch: Batch, trajectories: Mapping[str, Trajectory]) -> None:
        """Append the samples of the first prompts, and one failed sample of each cause.

        `trajectories` has the trajectory of each sample by the sample's name.
        """
        lines = [
            json.dumps(_record(batch, sample, trajectories[sample.name]), ensure_ascii=False)
            for sample in _selected(batch)
        ]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a", encoding="utf-8", errors="backslashreplace") as file:
            file.writelines(f"{line}\n" for line in lines)


def _selected(batch: Batch) -> Iterator[Sample]:
    kinds: set[str] = set()
    for sample in batch.samples:
        kind = sample.failure_kind
        if sample.group < LOGGED_PROMPTS or (kind and kind not in kinds):
            yield sample
        kinds.add(kind)


def _record(batch: Batch, sample: Sample, trajectory: Trajectory) -> dict[str, Any]:
    return {
        "step": batch.step,
        "sample": sample.name,
        "temperature": batch.sampling.temperature,
        "question": sample.prompt.query,
        "expected": sample.prompt.answer,
        "answer": sample.text,
        "passages": sample.passages,
        "reward": sample.reward,
        "parts": sample.parts,
        "failure": sample.failure,
        "notes": dict(trajectory.notes),
        "untrainedCalls": dict(trajectory.untrained_calls),
        "rows": len(trajectory.rows()),
        "calls": [_call(turn) for turn in trajectory.turns],
    }


def _call(turn: Turn) -> dict[str, Any]:
    """Return a call; of a prompt that continues a turn, only what is new."""
    parent = turn.prompt.parent
    return {
        "continues": parent is not None,
        "prompt": turn.prompt.text[0 if parent is None else len(parent.text) :],
        "completion": turn.content,
        "message": turn.message,
        "tokens": len(turn.token_ids),
    }
