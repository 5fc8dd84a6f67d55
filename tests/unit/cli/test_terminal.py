import json
import logging
import re
import sys
from datetime import UTC, datetime
from io import BytesIO, StringIO, TextIOWrapper
from pathlib import Path

import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner

from raggrpo_api.fields.text import printable
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType
from raggrpo_api.status.job_status import JobStatus
from raggrpo_cli import terminal
from raggrpo_cli.kubectl.status import job_list, job_text
from raggrpo_cli.trainer_process import output_of
from raggrpo_operator.kubernetes_runtime.process.json_logs import JsonFormatter
from raggrpo_operator.reporting.progress_display import ProgressDisplay
from support.builders.operator.jobs import make_job

ADVERSARIAL_TEXT = "\x1b[2J\x1b]0;title\x07\x9b31mred\u202eder\x00\x08 \r\nnext\u2066 line\ud800"
CLEAN = {"\n", "\t"}
DOORS = {"terminal.py", "crd.py"}
"""Modules that print: the terminal module, and commands that print generated text."""


def raw(text: str) -> set[str]:
    """Return the characters that a terminal would interpret."""
    return {each for each in text if not each.isprintable() and each not in CLEAN}


def make_old_status() -> JobStatus:
    """Return a stored status with adversarial texts, as written by an earlier release."""
    message = ADVERSARIAL_TEXT.replace("\ud800", "")
    condition = Condition(type=ConditionType.FAILED, status="True", reason="X", message=message)
    record = AttemptRecord(number=1, cause=Cause.HEAD_LOST, message=message, in_place=[message])
    status = JobStatus(attempt=1, conditions=[condition], attempts=[record])
    return status


def test_cli_prints_only_through_terminal_module() -> None:
    package = Path(terminal.__file__).parent
    printing = {
        path.name
        for path in package.rglob("*.py")
        if re.search(r"typer\.echo\(|\bprint\(|sys\.std(out|err)\b", path.read_text())
    }

    assert printing == DOORS


@pytest.mark.row("E12")
@pytest.mark.parametrize("err", [False, True])
def test_terminal_show_removes_control_characters(err: bool) -> None:
    app = typer.Typer()
    app.command()(lambda: terminal.show(ADVERSARIAL_TEXT, err=err))

    result = CliRunner().invoke(app)

    assert result.exit_code == 0
    assert raw(result.output) == set()
    assert "red" in result.output


@pytest.mark.parametrize("err", [False, True])
def test_log_printer_removes_control_characters(
    monkeypatch: pytest.MonkeyPatch, *, err: bool
) -> None:
    log = "a\tb\n\x1b[31mred\x1b[0m \u202e\u6f22\r\n\x00end".encode()
    output = TextIOWrapper(BytesIO())
    monkeypatch.setattr(sys, "stderr" if err else "stdout", output)
    show_part = terminal.log_printer(err=err)

    for place in range(len(log)):  # one byte each: characters are cut
        show_part(log[place : place + 1])

    written = output.buffer.getvalue()  # type: ignore[attr-defined]
    assert raw(written.decode()) == set()
    assert b"a\tb\n" in written
    assert "\u6f22".encode() in written


def test_errors_of_trainer_process_are_printed_without_control_characters(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = ADVERSARIAL_TEXT.replace("\ud800", "")
    code = f"import sys; sys.stderr.write({text!r} * 50_000); print('result')"

    assert output_of([sys.executable, "-c", code]) == b"result\n"

    printed = capfd.readouterr()
    assert printed.out == ""
    assert raw(printed.err) == set()
    assert printed.err.count("red") == 50_000


def test_exit_code_of_trainer_process_is_that_of_the_command() -> None:
    with pytest.raises(typer.Exit) as raised:
        output_of([sys.executable, "-c", "raise SystemExit(7)"])
    assert raised.value.exit_code == 7


def test_stored_status_is_printed_without_control_characters() -> None:
    job = make_job().model_copy(update={"status": make_old_status()})
    metadata = job.metadata.model_copy(update={"creation_timestamp": "2026-11-21T12:00:00Z"})
    job = job.model_copy(update={"metadata": metadata})

    assert raw(printable(job_text(job))) == set()
    lines = job_list([job], datetime(2026, 11, 21, 12, 1, tzinfo=UTC)).splitlines()
    assert len(lines) == 2


def test_progress_display_removes_control_characters() -> None:
    output = StringIO()
    with ProgressDisplay("small", Console(file=output)) as display:
        display.show(JobStatus())
        display.show(make_old_status())

    assert "red" in output.getvalue()
    assert raw(output.getvalue()) == set()


@pytest.mark.row("E12")
def test_operator_log_does_not_contain_control_or_escape_sequences() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "head says %s", (ADVERSARIAL_TEXT,), None)

    line = JsonFormatter().format(record)

    assert raw(json.loads(line)["message"]) == set()
    assert "\\u001b" not in line
