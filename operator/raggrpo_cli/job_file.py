"""Reads the job file of a command, or prints its problems to standard error and exits."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_cli.terminal import show
from raggrpo_cli.text_file import read_text_file
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec import yaml_text
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import Resolved, resolve
from raggrpo_operator.core.spec.violation import Severity, Violation
from raggrpo_operator.local_runtime.overrides import InvalidOptions, apply_options

FAILED = 1
"""Exit code for errors that may be temporary; errors of the caller exit with CONFIG_ERROR."""

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="Job file (YAML).")]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a field, such as resources.device=CPU."
    ),
]


def fail(message: str, code: int = ExitCode.CONFIG_ERROR) -> NoReturn:
    """Print an error to standard error and exit with `code`."""
    show(message, err=True)
    raise typer.Exit(code)


def load_job(path: Path, sets: Sequence[str] | None = None) -> RagGrpoJob:
    """Return the job in a file, or exit with a list of all problems."""
    return job_with_options(path, read_job_file(path), sets or [], [])


def resolve_valid_job(job: RagGrpoJob, *, in_pods: bool = True) -> Resolved:
    """Return the resolved job and print warnings, or exit with a list of violations."""
    resolved = resolve(job)
    all_violations = violations(job, resolved, in_pods=in_pods)
    for violation in all_violations:
        if violation.severity is Severity.WARNING:
            show(f"warning: {violation.line()}", err=True)
    if errors := [v for v in all_violations if v.severity is Severity.ERROR]:
        _fail_violations(errors)
    return resolved


def job_with_options(
    path: Path, raw: object, sets: Sequence[str], endpoints: Sequence[str]
) -> RagGrpoJob:
    """Return the job that `path` contains as `raw`, with options applied, or exit with an error."""
    if not sets and not endpoints:
        return parse_or_exit(raw)
    try:
        return parse_or_exit(apply_options(raw, sets, endpoints))
    except InvalidOptions as error:
        fail(str(error))
    except RecursionError:
        fail(f"{path} contains itself through a YAML alias: remove the alias")


def parse_or_exit(raw: Any) -> RagGrpoJob:
    """Return the parsed job, or exit with a list of violations."""
    job = parse_job(raw)
    if isinstance(job, RagGrpoJob):
        return job
    _fail_violations(job)


def read_job_file(path: Path) -> object:
    """Return the only document of a YAML file, or exit with an error."""
    if os.path.isdir(path):  # unlike `path.is_dir()`, False for invalid paths
        fail(f"{path} is a folder: specify a job file, such as {path / 'job.yaml'}")
    try:
        text = read_text_file(path)
    except FileNotFoundError:
        fail(f"{path}: no such file; samples are in crds/samples/")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}")
    raw = yaml_text.read_yaml(text)
    if isinstance(raw, Violation):
        fail(f"{path} {raw.line()}")
    if raw is None:
        fail(f"{path} is empty: a job file has one RagGrpoJob; samples are in crds/samples/")
    return raw


def _fail_violations(violations: Sequence[Violation]) -> NoReturn:
    """Exit with an error that has one line per violation."""
    problems = "problem" if len(violations) == 1 else "problems"
    lines = "\n".join(f"  {violation.line()}" for violation in violations)
    fail(f"{len(violations)} {problems} in the job file:\n{lines}")
