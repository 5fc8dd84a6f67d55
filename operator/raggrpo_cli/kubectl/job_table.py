"""Lists of jobs in a cluster as tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from raggrpo_api.fields.text import one_line
from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.errors import NotFound
from raggrpo_operator.kube.client import JOBS
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import fail_not_installed, parse_cluster_job

MAX_CELL = 100
NAMESPACE_WIDTH, NAME_WIDTH = 20, 44


async def list_jobs(
    client: UserClient, namespace: str, *, all_namespaces: bool
) -> list[RagGrpoJob]:
    """Return the jobs of a namespace (default: that of the context) or of all namespaces."""
    where = "" if all_namespaces else namespace or client.namespace
    try:
        return [parse_cluster_job(raw) for raw in await client.list_all(JOBS, where)]
    except NotFound:
        fail_not_installed(client)


def job_table(
    jobs: Iterable[RagGrpoJob],
    cells: Callable[[RagGrpoJob], Iterable[str]],
    widths: Mapping[str, int],
    *,
    all_namespaces: bool,
) -> str:
    """Return a heading and a row per job as text.

    `widths` are the widths of the columns after the job's name, by heading; `cells` returns their
    content. Only a name or a step can be wider than its column.
    """
    columns = {"NAMESPACE": NAMESPACE_WIDTH, "NAME": NAME_WIDTH, **widths}
    rows = [[*columns]]
    rows += [[job.metadata.namespace, job.metadata.name, *cells(job)] for job in jobs]
    first = 0 if all_namespaces else 1
    all_widths = [*columns.values()][first:]
    return "\n".join(_line(row[first:], all_widths) for row in rows)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    texts = (one_line(cell, MAX_CELL) for cell in cells)
    return " ".join(f"{text:<{width}}" for text, width in zip(texts, widths, strict=True)).rstrip()
