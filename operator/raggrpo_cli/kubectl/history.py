"""`kubectl raggrpo report|compare`: read the history of jobs from their volumes."""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.limits import MAX_HISTORY_BYTES
from raggrpo_api.trainer.history import history_file, read_records
from raggrpo_cli.comparison_output import show_comparison
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_cli.terminal import show
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.comparison import Run
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kube.user_client import UserClient
from raggrpo_operator.local_runtime.job_folder import REPORT, write_atomically
from raggrpo_operator.reporting.report import render_report

from .cluster_job import Context, Image, JobName, Kubeconfig, Namespace, get_job, run_in_cluster
from .job_pods import LimitedOutput, OutputTooLong, run_with_volumes

READ = """
cd "$1" 2>/dev/null || exit 0
for file in metrics.e*.jsonl; do
    [ -f "$file" ] && [ -r "$file" ] || continue
    if [ -z "$(tail -c 1 "$file")" ]; then cat "$file"; else sed '$d' "$file"; fi
done
"""
"""$1: log folder. Prints the records of all attempts; prints none if there are none yet.

A killed attempt may leave an incomplete last line, which is omitted: the first record of the next
attempt would be appended to it.
"""


def report(
    name: JobName,
    dir: Annotated[  # noqa: A002
        Path, typer.Option("--dir", help="Folder to write report.html to.")
    ] = Path(),
    image: Image = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Write report.html (rewards, stage times, attempts) of a job and print its path."""

    async def read(client: UserClient) -> Run:
        return await _run(client, await get_job(client, namespace, name), image)

    run = run_in_cluster(kubeconfig, context, read)
    history, events = ([dict(each) for each in records] for records in (run.history, run.events))
    page = render_report(
        name, run.status, history, events, run.resolved, history_problem=run.problem
    )
    path = dir / REPORT
    try:
        write_atomically(path, page)
    except OperatorError as error:
        fail(str(error), FAILED)
    show(path.resolve())


def compare(
    first: Annotated[str, typer.Argument(metavar="A", help="Name of a job.")],
    second: Annotated[
        str, typer.Argument(metavar="[B]", help="Default: compare the last two segments of A.")
    ] = "",
    image: Image = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Compare two jobs: rewards, start-up, pace, retrieval, memory and specified values."""

    async def read(client: UserClient) -> list[Run]:
        jobs = [await get_job(client, namespace, name) for name in (first, second) if name]
        return [await _run(client, job, image) for job in jobs]

    show_comparison(run_in_cluster(kubeconfig, context, read))


async def _run(client: UserClient, job: RagGrpoJob, image: str) -> Run:
    """Return the job with its history."""
    resolved = resolve(job, job.status.preflight.known_facts)
    log_dir = resolved.spec.monitoring.log_dir
    command = ["sh", "-c", READ, "history", log_dir]
    with tempfile.TemporaryDirectory(prefix="raggrpo-history-") as folder:
        with history_file(Path(folder), 0).open("wb") as file:
            output = LimitedOutput(file.write, MAX_HISTORY_BYTES)
            with suppress(OutputTooLong):  # the reader reports that it exceeds the limit
                result = await run_with_volumes(client, job, command, image, output)
                if result.exit_code:
                    problem = result.errors.strip()
                    fail(f"the history in {log_dir} cannot be read: {problem}", FAILED)
        history = read_records(Path(folder))
    name = job.metadata.name
    return Run(name, name, resolved, job.status, history.steps, history.events, history.problem)
