"""Output of the preflight checks, which two commands print."""

import json

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import Check, CheckState, PreflightResult
from raggrpo_cli.terminal import show
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Severity, Violation

SIGNS = {
    CheckState.PASSED: "ok",
    CheckState.WARNED: "warning",
    CheckState.FAILED: "FAILED",
    CheckState.NOT_EVALUATED: "-",
}


def show_result(job: RagGrpoJob, result: PreflightResult, *, as_json: bool, in_pods: bool) -> None:
    """Print the checks and the violations found with their facts; exit with an error if any failed.

    The exit code is that of the result, or that of an invalid job if only a rule failed.
    """
    new_violations = _fact_violations(job, result, in_pods=in_pods)
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


def _fact_violations(
    job: RagGrpoJob, result: PreflightResult, *, in_pods: bool
) -> tuple[Violation, ...]:
    """Return the violations that can be found only with the facts about model and data."""
    without_facts = violations(job, resolve(job), in_pods=in_pods)
    with_facts = violations(job, resolve(job, result.facts), result.facts, in_pods=in_pods)
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
