import os
import subprocess
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.trainer import history as records
from raggrpo_cli.kubectl import history
from raggrpo_cli.kubectl.job_pods import LimitedOutput, OutputTooLong
from raggrpo_operator.core.text.comparison import Run
from raggrpo_operator.kube.user_client import ExecResult
from support.builders.operator.jobs import make_job

CONTENT = b"""\
{"step": 1, "epoch": 10, "reward_mean": 0.5}
{"step": 2, "epoch": 10, "reward_mean": 0.6}
{"event": "resume", "epoch": 10}
{"event": "start", "epoch": 2}
{"step": 1, "epoch": 2, "reward_mean": 0.1}
{"step": 2, "ep"""
Output = Callable[[bytes], None]


async def read(monkeypatch: pytest.MonkeyPatch, send: Callable[[Output], object]) -> Run:
    """Return the run that is read from a pod that sends its history with `send`."""

    async def run_with_volumes(*_: Any) -> ExecResult:
        send(_[-1])
        return ExecResult(0, "")

    monkeypatch.setattr(history, "run_with_volumes", run_with_volumes)
    client: Any = None
    return await history._run(client, make_job(), "image")


async def test_records_of_several_attempts_are_read_as_on_the_volume(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = await read(monkeypatch, lambda output: output(CONTENT))

    assert [r["reward_mean"] for r in run.history] == [0.5, 0.6]
    assert [r["event"] for r in run.events] == ["start", "resume"]
    assert run.problem == ""


def test_incomplete_last_lines_are_not_continued(tmp_path: Path) -> None:
    """The next attempt's first record follows the incomplete line of a killed one."""
    (tmp_path / "metrics.e1.jsonl").write_bytes(b'{"step": 1}\n{"st')
    (tmp_path / "metrics.e2.jsonl").write_bytes(b'{"step": 2}\n')
    (tmp_path / "metrics.e3.jsonl").write_bytes(b"")
    os.mkfifo(tmp_path / "metrics.e4.jsonl")
    (tmp_path / "metrics.e5.jsonl").write_bytes(b'{"step": 3}\n{')
    command = ["sh", "-c", history.READ, "history", str(tmp_path)]

    done = subprocess.run(command, capture_output=True, check=True, timeout=60)

    assert done.stdout == b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'


async def test_missing_history_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    run = await read(monkeypatch, lambda output: None)

    assert (run.history, run.events, run.problem) == ([], [], "")


async def test_reading_stops_when_history_exceeds_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = 0

    def send(output: Output) -> None:
        nonlocal sent
        for line in repeat(b'{"step":1}'.ljust(299) + b"\n", 1000):
            sent += len(line)
            output(line)

    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", 1000)
    monkeypatch.setattr(records, "MAX_HISTORY_BYTES", 1000)
    run = await read(monkeypatch, send)

    assert sent == 1200
    assert len(run.history) == 1
    assert "has more than 1,000 bytes" in run.problem


def test_output_of_pod_is_limited() -> None:
    received: list[bytes] = []
    output = LimitedOutput(received.append, 10)

    output(b"x" * 10)
    with pytest.raises(OutputTooLong, match="the pod printed more than 10 bytes"):
        output(b"x")
