"""Reads a job file for a command; mistakes are listed on standard error, with exit code 2."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_cli.terminal import show
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec import yaml_text
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import Resolved, resolve
from raggrpo_operator.core.spec.violation import Severity, Violation
from raggrpo_operator.local_runtime.mounts import apply_mounts, machine_problems, read_mounts
from raggrpo_operator.local_runtime.overrides import InvalidOptions, apply_options
from raggrpo_operator.local_runtime.secret_values import missing_secrets

MAX_BYTES = 1 << 20
FAILED = 1
"""Exit code of what may work another time; what the caller can fix is CONFIG_ERROR."""

JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job, a YAML file.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="Change a field: --set resources.device=CPU."),
]
Endpoints = Annotated[
    list[str] | None,
    typer.Option("--endpoint", metavar="NAME=URL", help="Use this retrieval service instead."),
]
Mounts = Annotated[
    list[str] | None,
    typer.Option("--mount", metavar="CLAIM=DIR", help="Let a folder stand in for a claim."),
]


def fail(message: str, code: int = ExitCode.CONFIG_ERROR) -> NoReturn:
    """End the command with a message and an exit code."""
    show(message, err=True)
    raise typer.Exit(code)


def load_job(path: Path, sets: Sequence[str] | None = None) -> RagGrpoJob:
    """Return the job in a file as a cluster would see it, or exit listing every mistake."""
    return _job(path, sets, None)


def load_local_job(
    path: Path,
    sets: Sequence[str] | None,
    endpoints: Sequence[str] | None,
    mounts: Sequence[str] | None,
) -> tuple[RagGrpoJob, Resolved]:
    """Return the job in a file, adapted to this machine, or exit listing every mistake."""
    job = _job(path, sets, endpoints)
    try:
        job = apply_mounts(job, read_mounts(mounts or [], _absolute), os.path.isdir)
    except InvalidOptions as error:
        _refuse_options(error.problems)
    resolved = resolve_valid_job(job, in_pods=False)
    unfit = machine_problems(resolved.spec, len(glob.glob("/dev/nvidia[0-9]*")))
    if unfit := [*unfit, *missing_secrets(resolved.spec, os.environ)]:
        _refuse_options(unfit)
    return job, resolved


def resolve_valid_job(job: RagGrpoJob, *, in_pods: bool = True) -> Resolved:
    """Return the resolved job, or exit listing every broken rule; print warnings."""
    resolved = resolve(job)
    found = violations(job, resolved, in_pods=in_pods)
    for violation in found:
        if violation.severity is Severity.WARNING:
            show(f"warning: {violation.line()}", err=True)
    if wrong := [v for v in found if v.severity is Severity.ERROR]:
        _refuse_all(wrong)
    return resolved


def parse_or_exit(raw: Any) -> RagGrpoJob:
    """Return the parsed job, or exit listing every mistake in its form."""
    job = parse_job(raw)
    if isinstance(job, RagGrpoJob):
        return job
    _refuse_all(job)


def _job(path: Path, sets: Sequence[str] | None, endpoints: Sequence[str] | None) -> RagGrpoJob:
    raw = _read(path)
    if not sets and not endpoints:
        return parse_or_exit(raw)
    try:
        return parse_or_exit(apply_options(raw, sets or [], endpoints or []))
    except InvalidOptions as error:
        _refuse_options(error.problems)
    except RecursionError:
        fail(f"{path} contains itself through a YAML alias: write the values out")


def _read(path: Path) -> object:
    """Return the single document in a YAML file, or exit."""
    if path.is_dir():
        fail(f"{path} is a folder: name a job file, such as {path / 'job.yaml'}")
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        fail(f"{path}: no such file; samples are in crds/samples/")
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{path} cannot be read: {error}")
    if len(text) > MAX_BYTES:
        fail(f"{path} has {len(text)} characters: a job file has at most {MAX_BYTES}")
    try:
        raw = yaml_text.read_yaml(text)
    except RecursionError:
        fail(f"{path} is nested too deeply")
    if isinstance(raw, Violation):
        fail(f"{path} {raw.line()}")
    if raw is None:
        fail(f"{path} is empty: it should hold one RagGrpoJob; samples are in crds/samples/")
    return raw


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def _refuse_options(problems: Sequence[str]) -> NoReturn:
    fail("\n".join(problems))


def _refuse_all(found: Sequence[Violation]) -> NoReturn:
    """End the command with one line per problem."""
    problems = "problem" if len(found) == 1 else "problems"
    lines = "\n".join(f"  {violation.line()}" for violation in found)
    fail(f"{len(found)} {problems} in the job file:\n{lines}")
