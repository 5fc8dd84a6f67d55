"""Runs commands in pods of a job: in its head, or in a temporary pod with its volumes."""

from collections.abc import Callable, Sequence

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.sizing import PodRole
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_cli.job_file import FAILED, fail
from raggrpo_operator.core.manifests.reader_pod import READER, render_reader_pod, render_trainer_pod
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.errors import OperatorError, PermanentError
from raggrpo_operator.kube.client import PODS
from raggrpo_operator.kube.cluster_objects import is_being_deleted
from raggrpo_operator.kube.user_client import ExecResult, UserClient

from .cluster_job import default_image
from .reader import temporary_pod


class OutputTooLong(PermanentError):
    """A command in a pod printed more than expected."""


class LimitedOutput:
    """Passes the output of a command on. Raises OutputTooLong when it exceeds the limit."""

    def __init__(self, write: Callable[[bytes], object], limit: int) -> None:
        self._write = write
        self._limit = self._remaining = limit

    def __call__(self, chunk: bytes) -> None:
        """Pass on a chunk."""
        self._write(chunk)
        self._remaining -= len(chunk)
        if self._remaining < 0:
            raise OutputTooLong(f"the pod printed more than {self._limit:,} bytes")


async def run_with_volumes(
    client: UserClient,
    job: RagGrpoJob,
    command: Sequence[str],
    image: str,
    on_output: Callable[[bytes], None],
) -> ExecResult:
    """Run the command in the head, or in a temporary pod that mounts the volumes read-only."""
    namespace = job.metadata.namespace
    if head := await _running_head(client, job):
        return await client.exec_in_pod(namespace, head, names.HEAD_CONTAINER, command, on_output)
    used = await _image(client, job, image)
    async with temporary_pod(client, job, lambda name: render_reader_pod(job, name, used)) as pod:
        return await client.exec_in_pod(namespace, pod, READER, command, on_output)


async def run_in_trainer_pod(
    client: UserClient,
    job: RagGrpoJob,
    command: Sequence[str],
    image: str,
    on_output: Callable[[bytes], None],
    *,
    exports: bool = False,
) -> ExecResult:
    """Run the command in a temporary pod with the volumes and variables of the trainer.

    With `exports`, the pod has memory and time for an export.
    """
    used = await _image(client, job, image)
    config = _config(job)
    async with temporary_pod(
        client, job, lambda name: render_trainer_pod(job, name, used, config, exports=exports)
    ) as pod:
        return await client.exec_in_pod(job.metadata.namespace, pod, READER, command, on_output)


async def _image(client: UserClient, job: RagGrpoJob, image: str) -> str:
    """Return the trainer image of the job, or exit if it is unknown."""
    if image or job.spec.image:
        return image or job.spec.image
    try:
        return await default_image(client)
    except OperatorError as error:
        fail(
            f"the job has no spec.image, and the operator's default cannot be read ({error}): "
            "specify an image that has a shell with --image",
            FAILED,
        )


def _config(job: RagGrpoJob) -> TrainerConfig:
    facts = job.status.preflight.known_facts
    return trainer_config(job, resolve(job, facts), facts=facts)


async def _running_head(client: UserClient, job: RagGrpoJob) -> str:
    labels = f"{names.LABEL_JOB}={job.metadata.name},{names.LABEL_ROLE}={PodRole.HEAD}"
    for pod in await client.find(PODS, job.metadata.namespace, labels=labels):
        if pod.get("status", {}).get("phase") == "Running" and not is_being_deleted(pod):
            return str(pod["metadata"]["name"])
    return ""
