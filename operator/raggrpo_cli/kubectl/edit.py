"""`kubectl raggrpo suspend|resume|retry NAME`: change a job in the cluster."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from raggrpo_api import names
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import ConditionType
from raggrpo_cli.job_file import fail
from raggrpo_cli.terminal import show
from raggrpo_operator.core.state.conditions import is_true
from raggrpo_operator.kube.client import JOBS
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import Context, JobName, Kubeconfig, Namespace, get_job, run_in_cluster


def suspend(
    name: JobName, namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Save a checkpoint and delete the job's pods; `resume` continues from there."""

    async def change(client: UserClient) -> str:
        job = await get_job(client, namespace, name)
        if _has_ended(job):
            fail(f"job {name} is {job.status.phase}: it has no pods to suspend")
        return await _patch(client, job, {"spec": {"suspend": True}}, "is being suspended")

    show(run_in_cluster(kubeconfig, context, change))


def resume(
    name: JobName, namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Continue a suspended job from its newest checkpoint."""

    async def change(client: UserClient) -> str:
        job = await get_job(client, namespace, name)
        if not job.spec.suspend:
            fail(f"job {name} is not suspended, it is {job.status.phase}")
        return await _patch(client, job, {"spec": {"suspend": False}}, "resumes")

    show(run_in_cluster(kubeconfig, context, change))


def retry(
    name: JobName, namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Reopen a failed job, with a new restart budget."""

    async def change(client: UserClient) -> str:
        job = await get_job(client, namespace, name)
        if not is_true(job.status, ConditionType.FAILED):
            fail(f"job {name} has not failed, it is {job.status.phase}")
        value = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        annotations = {names.ANNOTATION_RETRY: value}
        changes = {"metadata": {"annotations": annotations}}
        return await _patch(client, job, changes, "is being retried")

    show(run_in_cluster(kubeconfig, context, change))


async def _patch(
    client: UserClient, job: RagGrpoJob, changes: Mapping[str, Any], result: str
) -> str:
    metadata = job.metadata
    await client.merge_patch(JOBS, metadata.namespace, metadata.name, changes)
    return f"job {metadata.name} {result}"


def _has_ended(job: RagGrpoJob) -> bool:
    return is_true(job.status, ConditionType.COMPLETE) or is_true(job.status, ConditionType.FAILED)
