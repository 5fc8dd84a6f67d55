"""`raggrpo run JOB.yaml`: run a job on this machine."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from raggrpo_api.names import EXPORT_DIR
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_cli.job_file import FAILED, JobFile, Sets, fail
from raggrpo_cli.local_job import Endpoints, Mounts, load_local_job
from raggrpo_cli.recorded_job import (
    DirOption,
    RecordedJob,
    default_folder,
    load_recorded_job,
    with_start_path,
)
from raggrpo_cli.terminal import show
from raggrpo_operator.core.state.conditions import get_condition, not_learning_reason
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.local_runtime.job_folder import REPORT, SUMMARY, JobFolder

SUSPENDED = 130
"""Exit code for a suspended job; shells use this code for a command interrupted by Ctrl-C."""
EXIT_CODES: Mapping[str, int] = {
    Cause.CONFIG_ERROR: ExitCode.CONFIG_ERROR,
    Cause.DATA_ERROR: ExitCode.DATA_ERROR,
    Cause.PREFLIGHT_FAILED: ExitCode.PREFLIGHT_FAILED,
    Cause.REWARD_CODE_ERROR: ExitCode.REWARD_CODE_ERROR,
    Cause.AGENT_ERROR: ExitCode.AGENT_ERROR,
    Cause.ENDPOINT_DOWN: ExitCode.RETRIEVAL_UNAVAILABLE,
    Cause.VOLUME_FULL: ExitCode.VOLUME_FULL,
    Cause.CHECKPOINT_INCOMPATIBLE: ExitCode.CHECKPOINT_INCOMPATIBLE,
    Cause.CHECKPOINT_PATH_IN_USE: ExitCode.CHECKPOINT_PATH_IN_USE,
}
"""Exit codes for the causes that the user must fix; other causes exit with FAILED."""


def run(
    job_file: JobFile,
    dir: DirOption = None,  # noqa: A002
    mount: Mounts = None,
    endpoint: Endpoints = None,
    set_: Sets = None,
) -> None:
    """Run or resume a job on this machine; Ctrl-C saves and suspends it."""
    from raggrpo_operator.local_runtime.supervise import Interrupted, prepare, supervise
    from raggrpo_operator.reporting.progress_display import ProgressDisplay

    local = load_local_job(job_file, dir, sets=set_, endpoints=endpoint, mounts=mount)
    job = local.job
    folder = JobFolder((dir or default_folder(job.metadata.name)).absolute())
    job = with_start_path(job, folder.path)
    try:
        folder.acquire()
        job, state = prepare(folder, job)
        state.mounts, state.endpoints = local.mounts, local.endpoints
        before = state.status
        with ProgressDisplay(job.metadata.name) as display:
            log_dir = Path(local.resolved.spec.monitoring.log_dir)
            supervise(folder, job, state, log_dir, display.show)
    except OperatorError as error:
        fail(str(error), FAILED if error.retryable else ExitCode.CONFIG_ERROR)
    except Interrupted:
        show("interrupted: exited without saving", err=True)
    finally:
        folder.release()
    recorded = load_recorded_job(folder.path)
    if recorded.status.phase is Phase.SUCCEEDED and recorded.status.attempt == before.attempt:
        show("\n".join(_completion(recorded)))
        return
    show("\n".join(_result(recorded)))
    raise typer.Exit(exit_code(recorded.status, suspended_by_spec=job.spec.suspend))


def exit_code(status: JobStatus, *, suspended_by_spec: bool) -> int:
    """Return the exit code of the command for the final status of a job."""
    match status.phase:
        case Phase.SUCCEEDED:
            return ExitCode.DONE
        case Phase.INVALID:
            return ExitCode.CONFIG_ERROR
        case Phase.FAILED:
            return EXIT_CODES.get(get_condition(status, ConditionType.FAILED).reason, FAILED)
        case Phase.SUSPENDED if suspended_by_spec:
            return ExitCode.DONE
        case _:
            return SUSPENDED


def _completion(recorded: RecordedJob) -> Iterator[str]:
    progress = recorded.status.progress
    spec = recorded.resolved.spec
    yield (
        f"job {recorded.job.metadata.name} is {_complete(recorded.status)} "
        f"(step {progress.step} of {progress.total_steps}). To continue training, increase "
        "spec.training.totalSteps. To start again, remove the folders:"
    )
    yield f"  rm -r {recorded.folder} {spec.checkpoint.path}"
    yield "or specify another --dir and spec.checkpoint.path."
    yield from _problem(recorded.status)
    yield from _push(recorded.status)
    yield from _paths(recorded)


def _result(recorded: RecordedJob) -> Iterator[str]:
    """Write the summary and the report; yield the lines to print."""
    from raggrpo_operator.reporting.report import write_report
    from raggrpo_operator.reporting.summary import write_summary

    status = recorded.status
    name = recorded.job.metadata.name
    summary = write_summary(recorded.folder, status, recorded.log_dir)
    write_report(recorded.folder, recorded.log_dir, status, name=name, resolved=recorded.resolved)
    yield f"job {name}: {_outcome(status)}"
    yield from _problem(status)
    yield from _push(status)
    yield from _figures(summary)
    yield from _paths(recorded)


def _outcome(status: JobStatus) -> str:
    step = f"step {status.progress.step} of {status.progress.total_steps}"
    total = status.restarts.total
    restarts = f", {total} restart{'s' if total > 1 else ''}" if total else ""
    match status.phase:
        case Phase.SUCCEEDED:
            return f"{_complete(status)}, {step}{restarts}"
        case Phase.FAILED:
            failed = get_condition(status, ConditionType.FAILED)
            return f"failed ({failed.reason}){restarts}: {failed.message}"
        case Phase.INVALID:
            return f"invalid: {get_condition(status, ConditionType.ACCEPTED).message}"
        case _:
            newest = status.checkpoint
            saved = f"checkpoint at step {newest.step}" if newest else "no checkpoint"
            return f"suspended, {saved}; run the same command to resume"


def _complete(status: JobStatus) -> str:
    reason = not_learning_reason(status)
    return f"complete, but its last steps learned nothing ({reason})" if reason else "complete"


def _problem(status: JobStatus) -> Iterator[str]:
    learning = get_condition(status, ConditionType.NOT_LEARNING)
    is_cause = get_condition(status, ConditionType.FAILED).reason == Cause.NOT_LEARNING
    if learning.status == "True" and not is_cause:  # the outcome has the message of the cause
        yield f"  not learning  {learning.message}"


def _push(status: JobStatus) -> Iterator[str]:
    pushed = get_condition(status, ConditionType.RESULT_PUSHED)
    if pushed.status == "False":
        yield f"  not pushed    {pushed.reason}: {pushed.message}; to try again, repeat the command"
    elif pushed.status == "True":
        yield f"  pushed        {pushed.message}"
    elif pushed.reason != ConditionReason.NOT_EVALUATED:
        yield "  not pushed    interrupted; to continue, repeat the command"


def _figures(summary: Mapping[str, Any]) -> Iterator[str]:
    if summary["rewardFirst"] is not None:
        yield (
            f"  mean reward   {summary['rewardFirst']:.3f} in the first 10 steps, "
            f"{summary['rewardLast']:.3f} in the last 10"
        )
    values = {
        "before": summary["exactMatchBefore"],
        "after": summary["exactMatchAfter"],
        "with other prompts' passages": summary["exactMatchControl"],
    }
    clauses = [f"{value:.1%} {when}" for when, value in values.items() if value is not None]
    if clauses:
        yield f"  exact match   {', '.join(clauses)} (held-out)"


def _paths(recorded: RecordedJob) -> Iterator[str]:
    export = Path(recorded.resolved.spec.checkpoint.path) / EXPORT_DIR
    paths = {
        "report": recorded.folder / REPORT,
        "summary": recorded.folder / SUMMARY,
        "model": export,
        "logs": recorded.log_dir,
    }
    for label, path in paths.items():
        if path.exists():
            yield f"  {label:<13} {path}"
