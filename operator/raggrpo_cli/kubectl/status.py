"""`kubectl raggrpo status [NAME]`: show the status of a job, or a list of all jobs."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.job_status import sparse_status
from raggrpo_cli.job_file import fail
from raggrpo_cli.recorded_job import Sizing
from raggrpo_cli.terminal import show
from raggrpo_operator.core.state.conditions import parse_timestamp
from raggrpo_operator.core.text.status_text import labeled, render_status, reward
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import AllNamespaces, Context, Kubeconfig, Namespace, get_job, run_in_cluster
from .job_table import job_table, list_jobs

WIDTH = 100
WIDTHS = {"PHASE": 12, "STEP": 13, "%": 5, "REWARD": 8, "RESTARTS": 8, "AGE": 4}
"""Widths of the columns by heading."""
MINUTE, HOUR, DAY = 60, 3600, 86_400


class Output(StrEnum):
    """Formats of `--output`."""

    JSON = "json"
    YAML = "yaml"


def status(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="Job (default: list all jobs).")
    ] = "",
    sizing: Sizing = False,
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    output: Annotated[
        Output | None, typer.Option("--output", "-o", help="Print the jobs as JSON or YAML.")
    ] = None,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show phase, step, attempts and conditions of a job, or list all jobs."""
    if name and all_namespaces:
        fail("specify either NAME or --all-namespaces")

    async def text(client: UserClient) -> str:
        if name:
            job = await get_job(client, namespace, name)
            return (
                serialized(job_manifest(job), output)
                if output
                else job_text(job, with_sizing=sizing)
            )
        jobs = await list_jobs(client, namespace, all_namespaces=all_namespaces)
        if output:
            items = [job_manifest(job) for job in jobs]
            return serialized({"apiVersion": "v1", "kind": "List", "items": items}, output)
        if not jobs:
            where = namespace or client.namespace
            return "no jobs" if all_namespaces else f"no jobs in namespace {where}"
        return job_list(jobs, datetime.now(UTC), all_namespaces=all_namespaces)

    show(run_in_cluster(kubeconfig, context, text))


def job_manifest(job: RagGrpoJob) -> dict[str, Any]:
    """Return the job as an object of the API server."""
    return job.manifest() | {"status": sparse_status(job.status)}


def serialized(value: Any, output: Output) -> str:
    """Return a value as JSON or YAML."""
    if output is Output.JSON:
        return json.dumps(value, indent=2)
    return str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True)).rstrip()


def job_text(job: RagGrpoJob, *, with_sizing: bool = False) -> str:
    """Return the status of a job as text."""
    name = f"{job.metadata.namespace}/{job.metadata.name}"
    heading = labeled("job", f"{name}, preset {job.spec.preset}", WIDTH)
    text = render_status(job.status, WIDTH, with_sizing=with_sizing)
    return "\n".join([*heading, text.rstrip()])


def job_list(jobs: Sequence[RagGrpoJob], now: datetime, *, all_namespaces: bool = False) -> str:
    """Return a table with a heading and one line per job; a line usually fits in WIDTH."""
    return job_table(jobs, lambda job: _cells(job, now), WIDTHS, all_namespaces=all_namespaces)


def _cells(job: RagGrpoJob, now: datetime) -> Iterator[str]:
    job_status = job.status
    yield job_status.phase
    yield job_status.progress.step_of_total or "-"
    yield str(job_status.progress.progress_percentage)
    yield reward(job_status) or "-"
    yield str(job_status.restarts.total)
    yield _age((now - parse_timestamp(job.metadata.creation_timestamp)).total_seconds())


def _age(seconds: float) -> str:
    """Return an age in its largest unit, as kubectl does."""
    for unit, length in (("d", DAY), ("h", HOUR), ("m", MINUTE)):
        if seconds >= length:
            return f"{seconds // length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"
