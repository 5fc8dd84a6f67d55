"""`kubectl raggrpo top`: show what the running jobs use and how fast they are."""

from collections.abc import Iterator

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import Phase
from raggrpo_cli.terminal import show
from raggrpo_operator.core.spec.quantity import format_size
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import AllNamespaces, Context, Kubeconfig, Namespace, run_in_cluster
from .job_table import job_table, list_jobs

PHASES_WITHOUT_PODS = frozenset({Phase.SUCCEEDED, Phase.FAILED, Phase.INVALID, Phase.SUSPENDED})
WIDTHS = {
    "STAGE": 17,
    "GPUS": 4,
    "CPU": 6,
    "MEMORY": 8,
    "RANK-MEM": 9,
    "S/STEP": 8,
    "TOKENS/S": 8,
    "TFLOPS": 8,
}
"""Widths of the columns by heading."""


def top(
    namespace: Namespace = "",
    all_namespaces: AllNamespaces = False,
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show requested resources, stage and throughput of the jobs that have pods."""

    async def text(client: UserClient) -> str:
        jobs = await list_jobs(client, namespace, all_namespaces=all_namespaces)
        running = [job for job in jobs if job.status.phase not in PHASES_WITHOUT_PODS]
        if not running:
            return "no jobs with pods"
        return job_table(running, _cells, WIDTHS, all_namespaces=all_namespaces)

    show(run_in_cluster(kubeconfig, context, text))


def _cells(job: RagGrpoJob) -> Iterator[str]:
    status = job.status
    metrics = {each.name: each for each in status.progress.metrics}
    yield status.progress.stage or status.phase
    yield str(status.sizing.gpus)
    yield status.sizing.cpu or "-"
    yield status.sizing.memory or "-"
    used = metrics.get("rank_memory_bytes")
    yield format_size(used.size) if used and used.size else "-"
    yield f"{status.progress.seconds_per_step:g}" if status.progress.seconds_per_step else "-"
    for name in ("tokens_per_second", "train_tflops"):
        yield metrics[name].value if name in metrics else "-"
