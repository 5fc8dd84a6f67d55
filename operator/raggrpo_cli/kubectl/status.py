"""`kubectl raggrpo status [NAME]`: show the status of a job, or a list of all jobs."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Annotated

import typer

from raggrpo_api.fields.text import one_line
from raggrpo_api.job import RagGrpoJob
from raggrpo_cli.recorded_job import Sizing
from raggrpo_cli.terminal import show
from raggrpo_operator.core.state.conditions import parse_timestamp
from raggrpo_operator.core.text.status_text import labeled, render_status, reward
from raggrpo_operator.errors import NotFound
from raggrpo_operator.kube.client import JOBS
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import (
    Context,
    Kubeconfig,
    Namespace,
    fail_not_installed,
    get_job,
    parse_cluster_job,
    run_in_cluster,
)

WIDTH = 100
WIDTHS = (44, 12, 13, 5, 8, 8, 4)
HEADINGS = ("NAME", "PHASE", "STEP", "%", "REWARD", "RESTARTS", "AGE")
MINUTE, HOUR, DAY = 60, 3600, 86_400


def status(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Job (default: list all jobs).")
    ] = "",
    sizing: Sizing = False,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show phase, step, attempts and conditions of a job, or list all jobs."""

    async def text(client: UserClient) -> str:
        if name:
            return job_text(await get_job(client, namespace, name), with_sizing=sizing)
        listed = namespace or client.namespace
        jobs = await _jobs(client, listed)
        return table(jobs, datetime.now(UTC)) if jobs else f"no jobs in namespace {listed}"

    show(run_in_cluster(kubeconfig, context, text))


def job_text(job: RagGrpoJob, *, with_sizing: bool = False) -> str:
    """Return the status of a job as text."""
    name = f"{job.metadata.namespace}/{job.metadata.name}"
    heading = labeled("job", f"{name}, preset {job.spec.preset}", WIDTH)
    text = render_status(job.status, WIDTH, with_sizing=with_sizing)
    return "\n".join([*heading, text.rstrip()])


def table(jobs: Sequence[RagGrpoJob], now: datetime) -> str:
    """Return a table with a heading and one line per job; a line usually fits in WIDTH."""
    return "\n".join(_row(cells) for cells in (HEADINGS, *(_cells(job, now) for job in jobs)))


async def _jobs(client: UserClient, namespace: str) -> list[RagGrpoJob]:
    try:
        return [parse_cluster_job(raw) for raw in await client.list_all(JOBS, namespace)]
    except NotFound:
        fail_not_installed(client)


def _cells(job: RagGrpoJob, now: datetime) -> Iterator[str]:
    job_status = job.status
    yield job.metadata.name
    yield job_status.phase
    yield job_status.progress.step_of_total or "-"
    yield str(job_status.progress.progress_percentage)
    yield reward(job_status) or "-"
    yield str(job_status.restarts.total)
    yield _age((now - parse_timestamp(job.metadata.creation_timestamp)).total_seconds())


def _row(cells: Iterable[str]) -> str:
    """Return the cells as one row; only a name or a step can be wider than its column."""
    texts = (one_line(cell, WIDTH) for cell in cells)
    return " ".join(f"{cell:<{width}}" for cell, width in zip(texts, WIDTHS, strict=True)).rstrip()


def _age(seconds: float) -> str:
    """Return an age in its largest unit, as kubectl does."""
    for unit, length in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
