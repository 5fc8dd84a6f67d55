"""Connects a command to a cluster and reads jobs; prints an error as one line and exits."""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from typing import Annotated, NoReturn, TypeVar

import typer

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.errors import AccessDenied, NotFound, OperatorError
from raggrpo_operator.kube.client import DEPLOYMENTS, JOBS, Manifest
from raggrpo_operator.kube.user_client import KubeconfigError, UserClient, connect_as_user

INTERRUPTED = 130
OPERATOR_LABELS = "app.kubernetes.io/name=raggrpo-operator"
IMAGE_VARIABLE = "RAGGRPO_TRAINER_IMAGE"

Namespace = Annotated[
    str,
    typer.Option("--namespace", "-n", help="Namespace (default: that of the kubeconfig context)."),
]
Context = Annotated[
    str, typer.Option("--context", help="Kubeconfig context (default: the current context).")
]
Kubeconfig = Annotated[
    str, typer.Option("--kubeconfig", help="Kubeconfig file (default: as for kubectl).")
]
JobName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the job.")]
AllNamespaces = Annotated[
    bool, typer.Option("--all-namespaces", "-A", help="Jobs of all namespaces.")
]
Image = Annotated[
    str, typer.Option("--image", help="Image of a temporary pod (default: that of the job).")
]
Result = TypeVar("Result")


def run_in_cluster(
    kubeconfig: str, context: str, work: Callable[[UserClient], Awaitable[Result]]
) -> Result:
    """Return the result of `work`, called with a connected client, or exit with an error."""
    try:
        return asyncio.run(_connected(kubeconfig, context, work))
    except KubeconfigError as error:
        fail(str(error))
    except AccessDenied as error:
        fail(f"permission denied: {error}; ask a cluster administrator for access", FAILED)
    except OperatorError as error:
        fail(str(error), FAILED)
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise typer.Exit(INTERRUPTED) from None


async def get_job(client: UserClient, namespace: str, name: str) -> RagGrpoJob:
    """Return a job in the cluster, or exit with an error."""
    namespace = namespace or client.namespace
    try:
        return parse_cluster_job(await client.get(JOBS, namespace, name))
    except NotFound:
        await require_installed(client)
        fail(
            f"job {name} does not exist in namespace {namespace}: `kubectl raggrpo status -n "
            f"{namespace}` lists the jobs there, and `kubectl get rgj -A` lists all jobs"
        )


def parse_cluster_job(raw: Manifest) -> RagGrpoJob:
    """Return the parsed job, or exit with an error."""
    job = parse_job(raw)
    if isinstance(job, RagGrpoJob):
        return job
    name = raw["metadata"]["name"]
    fail(
        f"job {name} was written by another version of raggrpo: {job[0].line()}; "
        "install the same version as the operator"
    )


async def require_installed(client: UserClient) -> None:
    """Exit with an error if the cluster does not serve RagGrpoJobs."""
    try:
        await client.get_raw(f"/apis/{names.API_VERSION}")
    except NotFound:
        fail_not_installed(client)


def fail_not_installed(client: UserClient) -> NoReturn:
    """Exit with the error that the CRD is not installed."""
    fail(
        f"the cluster at {client.host} does not serve {names.KIND}: install the operator "
        "(helm upgrade --install raggrpo-operator helm/raggrpo-operator) or specify another "
        "--context"
    )


async def default_image(client: UserClient) -> str:
    """Return the image that the operator uses for jobs without `spec.image`.

    Raises:
        OperatorError: The caller may not read Deployments, or the operator has no Deployment.

    """
    for deployment in await client.find(DEPLOYMENTS, "", labels=OPERATOR_LABELS):
        for variable in deployment["spec"]["template"]["spec"]["containers"][0].get("env", []):
            if variable["name"] == IMAGE_VARIABLE and variable.get("value"):
                return str(variable["value"])
    raise NotFound(f"no Deployment with the label {OPERATOR_LABELS}")


async def _connected(
    kubeconfig: str, context: str, work: Callable[[UserClient], Awaitable[Result]]
) -> Result:
    task = asyncio.current_task()
    assert task is not None
    # SIGTERM cancels the task, as Ctrl-C does, so that created pods are deleted.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    client = await connect_as_user(kubeconfig, context)
    try:
        return await work(client)
    finally:
        await client.close()
