"""`python -m raggrpo_cli.push_results`: complete the folder of the exported model and upload it.

The job is in RAGGRPO_PUSH_JOB and RAGGRPO_PUSH_STATUS. A repeated push continues the export.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from raggrpo_api.fields.source import InvalidSource, parse_push_target
from raggrpo_api.fields.text import error_first
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.job_variables import job_from_variables
from raggrpo_api.names import BEST_DIR, EXPORT_DIR
from raggrpo_api.trainer.staging import (
    PUSH_FIELD,
    UPLOADING,
    PushOutcome,
    StagingReason,
)
from raggrpo_cli.job_file import fail
from raggrpo_cli.terminal import show
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.errors import OperatorError, PermanentError
from raggrpo_operator.reporting.model_card import name_base, write_card
from raggrpo_operator.reporting.report import write_report
from raggrpo_operator.reporting.summary import write_summary

EXPORT = (sys.executable, "-m", "raggrpo_trainer.checkpoint_export")
MAX_ERROR = 500
"""Maximum characters of an error of the export."""


class ExportFailed(Exception):
    """The model cannot be exported."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Push the results, write PushOutcome and return the exit code."""
    parser = argparse.ArgumentParser(prog="raggrpo_cli.push_results", description=__doc__)
    parser.add_argument("--progress", type=Path, help="file to write StagingProgress to")
    parser.add_argument("--result", type=Path, required=True, help="file to write PushOutcome to")
    options = parser.parse_args(arguments)
    outcome = push_results(job_from_variables(os.environ), options.progress)
    # Not replaced: Kubernetes reads the file that it mounts.
    options.result.write_text(outcome.model_dump_json(by_alias=True))
    if outcome.pushed is None:
        show(f"error: {outcome.reason}: {outcome.message}", err=True)
        return 1
    return 0


def push_results(job: RagGrpoJob, progress: Path | None = None) -> PushOutcome:
    """Upload the final and the best model with card, report and summary."""
    resolved = resolve(job, job.status.preflight.known_facts)
    folder = Path(resolved.spec.checkpoint.path) / EXPORT_DIR
    try:
        _complete_models(job, folder, resolved.spec.model.path)
        describe(folder, job, job.status.progress.step)
    except (ExportFailed, PermanentError) as error:
        return PushOutcome(reason=StagingReason.EXPORT_FAILED, message=str(error))
    except OperatorError as error:
        return PushOutcome(reason=StagingReason.FOLDER_NOT_WRITABLE, message=str(error))
    return upload(folder, job.spec.output.push or "", progress)


def upload(folder: Path, url: str, progress_file: Path | None = None) -> PushOutcome:
    """Upload a folder. Raises InvalidSource if the URL is not that of a target."""
    from raggrpo_staging.authorities import trust_authorities
    from raggrpo_staging.failures import StagingFailed
    from raggrpo_staging.progress import ProgressCounter
    from raggrpo_staging.progress_server import shown
    from raggrpo_staging.push import push

    target = parse_push_target(url)
    progress = ProgressCounter(progress_file, UPLOADING)
    progress.start(PUSH_FIELD)
    try:
        trust_authorities()
        with shown(progress):
            return PushOutcome(pushed=push(folder, target, progress))
    except StagingFailed as failure:
        return PushOutcome(reason=failure.reason, message=str(failure))


def require_target(url: str) -> None:
    """Exit with an error if the URL of `--push` is not that of a target."""
    try:
        parse_push_target(url)
    except InvalidSource as error:
        fail(f"--push {url}: {error}")


def describe(folder: Path, job: RagGrpoJob, step: int) -> None:
    """Write the model card, the report and the summary of a job to the folder of its model.

    `step` is the step after which the model was exported.
    """
    resolved = resolve(job, job.status.preflight.known_facts)
    log_dir = Path(resolved.spec.monitoring.log_dir)
    name, status = job.metadata.name, job.status
    summary = write_summary(folder, status, log_dir)
    write_report(folder, log_dir, status, name=name, resolved=resolved)
    write_card(folder, job, resolved, summary, step)
    name_base(folder, job, resolved.spec.model.path)


def _complete_models(job: RagGrpoJob, folder: Path, model: str) -> None:
    """Export the models that the trainer has not exported; complete folders are kept."""
    status = job.status
    steps = {folder: "newest"}
    if status.has_earlier_best:
        steps[folder / BEST_DIR] = "best"
    for output, step in steps.items():
        if output.is_symlink():
            raise ExportFailed(f"{output} is a link: delete it to export the model again")
        if not output.exists():
            _export(folder.parent, output, step, model)


def _export(checkpoints: Path, output: Path, step: str, model: str) -> None:
    command = [*EXPORT, str(checkpoints), str(output), "--step", step, "--model", model]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        problem = error_first(done.stderr, MAX_ERROR) or f"exit code {done.returncode}"
        if done.returncode == -signal.SIGKILL:
            problem = "it was killed, usually because memory ran out; free or request more memory"
        raise ExportFailed(f"the {step} checkpoint cannot be exported: {problem}")


if __name__ == "__main__":
    sys.exit(main())
