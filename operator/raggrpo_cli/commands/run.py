"""`raggrpo run JOB.yaml`: the whole job on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.status import Phase
from raggrpo_cli.job_file import accepted, parsed, read_yaml, refuse
from raggrpo_operator.errors import RuntimeTrouble
from raggrpo_operator.local_runtime.job_folder import JobFolder
from raggrpo_operator.local_runtime.progress_display import ProgressDisplay
from raggrpo_operator.local_runtime.summary import write_summary
from raggrpo_operator.local_runtime.supervise import Interrupted, prepare, supervise

SUSPENDED = 130


def run(
    job_file: Annotated[Path, typer.Argument(help="The job, a YAML file.")],
    dir: Annotated[Path | None, typer.Option("--dir", help="Job folder.")] = None,  # noqa: A002
) -> None:
    """Run a job on this machine, or continue it; Ctrl-C saves and suspends."""
    job = parsed(read_yaml(job_file))
    resolved = accepted(job)
    folder = JobFolder(dir or Path("raggrpo-jobs") / job.metadata.name)
    try:
        folder.acquire()
        job, state = prepare(folder, job)
        with ProgressDisplay(job.metadata.name) as display:
            status = supervise(folder, job, state, display.show)
    except RuntimeTrouble as trouble:
        refuse(str(trouble))
    except Interrupted:
        refuse("ended at once; run the same command again to continue", SUSPENDED)
    finally:
        folder.release()
    log_dir = Path(resolved.spec.monitoring.log_dir)
    summary = write_summary(folder.path, status, log_dir)
    typer.echo(f"phase {status.phase}")
    typer.echo(str(summary))
    if status.phase is not Phase.SUCCEEDED:
        raise typer.Exit(1)
