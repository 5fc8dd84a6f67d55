"""Lists of jobs in a cluster as tables."""

from collections.abc import Iterable, Sequence

from raggrpo_api.fields.text import one_line
from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.errors import NotFound
from raggrpo_operator.kube.client import JOBS
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import fail_not_installed, parse_cluster_job

MAX_CELL = 100
NAMESPACE_WIDTH = 20


async def list_jobs(
    client: UserClient, namespace: str, *, all_namespaces: bool
) -> list[RagGrpoJob]:
    """Return the jobs of a namespace (default: that of the context) or of all namespaces."""
    where = "" if all_namespaces else namespace or client.namespace
    try:
        return [parse_cluster_job(raw) for raw in await client.list_all(JOBS, where)]
    except NotFound:
        fail_not_installed(client)


def columns(
    headings: Sequence[str], widths: Sequence[int], *, all_namespaces: bool
) -> tuple[list[str], list[int]]:
    """Return headings and widths, with a column for the namespace if requested."""
    if all_namespaces:
        return ["NAMESPACE", *headings], [NAMESPACE_WIDTH, *widths]
    return [*headings], [*widths]


def cells_of_job(job: RagGrpoJob, cells: Iterable[str], *, all_namespaces: bool) -> list[str]:
    """Return the cells of a job's row, starting with its name."""
    about = job.metadata
    return [*([about.namespace] if all_namespaces else []), about.name, *cells]


def table(rows: Iterable[Sequence[str]], widths: Sequence[int]) -> str:
    """Return rows as text; only a name or a step can be wider than its column."""
    return "\n".join(
        " ".join(
            f"{one_line(cell, MAX_CELL):<{width}}" for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    )
