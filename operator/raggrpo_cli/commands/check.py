"""`raggrpo check JOB.yaml`: run the preflight checks on this machine."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckState, PreflightResult
from raggrpo_cli.job_file import JobFile, Sets, fail
from raggrpo_cli.local_job import Endpoints, Mounts, load_local_job
from raggrpo_cli.recorded_job import DirOption, default_folder, with_start_path
from raggrpo_cli.terminal import show
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.core.spec.violation import Severity, Violation
from raggrpo_operator.local_runtime.secret_values import trainer_env

SIGNS = {
    CheckState.PASSED: "ok",
    CheckState.WARNED: "warning",
    CheckState.FAILED: "FAILED",
    CheckState.NOT_EVALUATED: "-",
}


def check(
    job_file: JobFile,
    dir: DirOption = None,  # noqa: A002
    mount: Mounts = None,
    endpoint: Endpoints = None,
    set_: Sets = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check paths, model, data, endpoints and the checkpoint folder before a run."""
    job, resolved, *_ = load_local_job(job_file, dir, sets=set_, endpoints=endpoint, mounts=mount)
    job = with_start_path(job, dir or default_folder(job.metadata.name))
    config = trainer_config(job, resolve(job))
    result = _preflight(config, trainer_env(resolved.spec, os.environ))
    new_violations = _fact_violations(job, result)
    if as_json:
        output = result.model_dump(mode="json", by_alias=True)
        show(json.dumps(output | {"problems": [v.line() for v in new_violations]}, indent=1))
    else:
        show("\n".join([*map(_line, result.checks), *_facts(result), *_rules(new_violations)]))
    # An unavailable service is a failure here, but `raggrpo run` waits for the service.
    if result.exit_code == ExitCode.RETRIEVAL_UNAVAILABLE:
        raise typer.Exit(ExitCode.PREFLIGHT_FAILED)
    if result.exit_code:
        raise typer.Exit(result.exit_code)
    if any(violation.severity is Severity.ERROR for violation in new_violations):
        raise typer.Exit(ExitCode.CONFIG_ERROR)


def _preflight(config: TrainerConfig, env: Mapping[str, str]) -> PreflightResult:
    """Run the checks in a separate process, as in a cluster, and write only temporary files."""
    from raggrpo_operator.local_runtime.preflight_run import PreflightRun
    from raggrpo_operator.local_runtime.processes import Processes

    processes = Processes()
    with tempfile.TemporaryDirectory(prefix="raggrpo-check-") as folder:
        output, log_file = Path(folder) / "result.json", Path(folder) / "log"
        try:
            run = PreflightRun(processes, config, "", output=output, log_file=log_file, env=env)
            run.wait()
            observed = run.observe()
        finally:
            processes.terminate_all()
    if observed.result is None:
        fail(observed.problem, ExitCode.PREFLIGHT_FAILED)
    return observed.result


def _fact_violations(job: RagGrpoJob, result: PreflightResult) -> tuple[Violation, ...]:
    """Return the violations that can be found only with the facts about model and data."""
    without_facts = violations(job, resolve(job), in_pods=False)
    with_facts = violations(job, resolve(job, result.facts), result.facts, in_pods=False)
    return tuple(violation for violation in with_facts if violation not in without_facts)


def _line(check: Check) -> str:
    return f"{SIGNS[check.state]:<7} {check.id:<20} {check.evidence}".rstrip()


def _facts(result: PreflightResult) -> list[str]:
    facts = result.facts
    if not facts.parameters:
        return []
    return [
        f"facts   {facts.parameters:,} parameters, {facts.layers} layers, context "
        f"{facts.context_length}, {facts.rows:,} rows"
    ]


def _rules(new_violations: tuple[Violation, ...]) -> list[str]:
    signs = {Severity.ERROR: "FAILED", Severity.WARNING: "warning"}
    return [f"{signs[violation.severity]:<7} {violation.line()}" for violation in new_violations]
