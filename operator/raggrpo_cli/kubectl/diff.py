"""`kubectl raggrpo diff A[@N] [B[@M]]`: show differences between two attempts' configurations."""

from typing import Annotated

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_cli.attempt_pair import HELP, diff_text, select_attempts
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_cli.terminal import show
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.config_diff import (
    AttemptConfig,
    AttemptName,
    attempt_config,
    attempt_name,
)
from raggrpo_operator.kube.user_client import UserClient

from .attempt_records import record_labels, recorded_config
from .cluster_job import Context, Kubeconfig, Namespace, get_job, run_in_cluster


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=HELP.format("NAME", "NAME"))],
    second: Annotated[
        str, typer.Argument(metavar="[B]", help="Default: the attempt before A.")
    ] = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show the differences between the configurations of two attempts."""
    selected = [attempt_name(text) for text in (first, second) if text]

    async def read(client: UserClient) -> str:
        jobs = {name: await get_job(client, namespace, name) for name, _ in selected}
        newest = {name: job.status.attempt for name, job in jobs.items()}
        earlier, later = select_attempts(selected, newest)
        a = await _config(client, jobs[earlier.job], earlier)
        b = await _config(client, jobs[later.job], later)
        return diff_text(earlier, a, later, b)

    show(run_in_cluster(kubeconfig, context, read))


async def _config(client: UserClient, job: RagGrpoJob, name: AttemptName) -> AttemptConfig:
    config = await recorded_config(client, job.metadata, name.number)
    if config is not None:
        try:
            return attempt_config(config, resolve(job, job.status.preflight.known_facts))
        except ValueError as error:
            fail(f"the configuration of {name} cannot be read: {error}", FAILED)
    labels = record_labels(job.metadata, name.number)
    fail(
        f"the ConfigMap of {name} (labels {labels}) does not exist; the operator deletes the "
        "ConfigMaps of old attempts",
        FAILED,
    )
