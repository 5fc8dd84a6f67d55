"""`kubectl raggrpo diff A[@N] [B[@M]]`: how the configurations of two attempts differ."""

import json
from typing import Annotated, Any

import typer

from raggrpo_api import names
from raggrpo_cli.job_file import FAILED, refuse
from raggrpo_cli.terminal import show
from raggrpo_cli.two_attempts import HELP, chosen, report
from raggrpo_operator.core.text.config_diff import AttemptName, attempt_name
from raggrpo_operator.errors import NotFound
from raggrpo_operator.kube.client import CONFIG_MAPS
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import Context, Kubeconfig, Namespace, in_cluster, the_job


def diff(
    first: Annotated[str, typer.Argument(metavar="A", help=HELP.format("NAME", "NAME"))],
    second: Annotated[str, typer.Argument(metavar="[B]", help="Default: the one before A.")] = "",
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
) -> None:
    """Show where the configurations of two attempts differ."""
    named = [attempt_name(text) for text in (first, second) if text]

    async def read(client: UserClient) -> str:
        jobs = {job: await the_job(client, namespace, job) for job, _ in named}
        newest = {job: found.status.attempt for job, found in jobs.items()}
        earlier, later = chosen(named, newest)
        where = namespace or client.namespace
        a, b = await _config(client, where, earlier), await _config(client, where, later)
        return report(earlier, a, later, b)

    show(in_cluster(kubeconfig, context, read))


async def _config(client: UserClient, namespace: str, name: AttemptName) -> dict[str, Any]:
    record = names.config_map_name(name.job, name.number)
    try:
        found = await client.get(CONFIG_MAPS, namespace, record)
    except NotFound:
        refuse(
            f"the record of {name} is no longer there (ConfigMap {record}): those of a job's "
            "newest attempts are kept",
            FAILED,
        )
    config: dict[str, Any] = json.loads(found["data"][names.CONFIG_FILE])
    return config
