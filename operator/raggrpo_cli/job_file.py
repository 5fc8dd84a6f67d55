"""Reads a job file for a command; every mistake becomes lines on standard error and exit code 2."""

from pathlib import Path
from typing import Any, NoReturn

import typer
import yaml

from raggrpo_api.exit_codes import ExitCode
from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.parse import parse_job
from raggrpo_operator.core.resolve import Resolved, resolve
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.violation import Severity, Violation

MAX_BYTES = 1 << 20


def refuse(message: str, code: int = ExitCode.CONFIG_ERROR) -> NoReturn:
    """End the command with a message and an exit code."""
    typer.echo(message, err=True)
    raise typer.Exit(code)


def read_yaml(path: Path) -> Any:
    """Return the one document of a YAML file."""
    if path.is_dir():
        refuse(f"{path} is a folder: name a job file, such as {path / 'job.yaml'}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        refuse(f"{path}: no such file; samples are in crds/samples/")
    except (OSError, UnicodeDecodeError) as error:
        refuse(f"{path} cannot be read: {error}")
    if len(text) > MAX_BYTES:
        refuse(f"{path} has {len(text)} characters: a job file has at most {MAX_BYTES}")
    try:
        documents = [d for d in yaml.safe_load_all(text) if d is not None]
    except (yaml.YAMLError, RecursionError) as error:
        refuse(f"{path} is not YAML: {' '.join(str(error).split())}")
    if len(documents) != 1:
        what = "is empty" if not documents else f"holds {len(documents)} documents"
        refuse(f"{path} {what}: exactly one RagGrpoJob is expected")
    return documents[0]


def parsed(raw: Any) -> RagGrpoJob:
    """Return the job, or refuse it with every mistake of form."""
    job = parse_job(raw)
    if isinstance(job, RagGrpoJob):
        return job
    refuse_all(job)


def accepted(job: RagGrpoJob) -> Resolved:
    """Return the resolved job, or refuse it with every broken rule; warnings are printed."""
    resolved = resolve(job)
    found = violations(job, resolved, None)
    for violation in found:
        if violation.severity is Severity.WARNING:
            typer.echo(f"warning: {violation.line()}", err=True)
    wrong = [v for v in found if v.severity is Severity.ERROR]
    if wrong:
        refuse_all(wrong)
    return resolved


def refuse_all(found: "list[Violation] | tuple[Violation, ...]") -> NoReturn:
    """End the command with one line per problem."""
    problems = "problem" if len(found) == 1 else "problems"
    lines = "\n".join(f"  {violation.line()}" for violation in found)
    refuse(f"{len(found)} {problems} in the job file:\n{lines}")
