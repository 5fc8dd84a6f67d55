"""`kubectl raggrpo suspend|resume|retry NAME`: change a job in the cluster."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from raggrpo_api import names
from raggrpo_api.fields.base import format_time
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.conditions import ConditionType
from raggrpo_cli.job_file import fail
from raggrpo_cli.terminal import show
from raggrpo_operator.core.state.conditions import has_ended, has_push_failed, is_true
from raggrpo_operator.kube.client import JOBS
from raggrpo_operator.kube.user_client import UserClient

from .cluster_job import Context, JobName, Kubeconfig, Namespace, get_job, run_in_cluster

Changes = Mapping[str, Any]
"""Body of a merge patch."""


def suspend(
    name: JobName, namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Save a checkpoint and delete the job's pods; `resume` continues from there."""

    def changes(job: RagGrpoJob) -> Changes:
        if has_ended(job.status):
            fail(f"job {name} is {job.status.phase}: it has no pods to suspend")
        return {"spec": {"suspend": True}}

    _patch(name, namespace, context, kubeconfig, changes)
    show(f"job {name} is being suspended")


def resume(
    name: JobName, namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Continue a suspended job from its newest checkpoint."""

    def changes(job: RagGrpoJob) -> Changes:
        if not job.spec.suspend:
            fail(f"job {name} is not suspended, it is {job.status.phase}")
        return {"spec": {"suspend": False}}

    _patch(name, namespace, context, kubeconfig, changes)
    show(f"job {name} resumes")


def retry(
    name: JobName, namespace: Namespace = "", context: Context = "", kubeconfig: Kubeconfig = ""
) -> None:
    """Reopen a failed job, with a new restart budget, or repeat a failed push."""

    def changes(job: RagGrpoJob) -> Changes:
        if not (is_true(job.status, ConditionType.FAILED) or has_push_failed(job.status)):
            fail(f"job {name} has not failed, it is {job.status.phase}")
        return {
            "metadata": {"annotations": {names.ANNOTATION_RETRY: format_time(datetime.now(UTC))}}
        }

    _patch(name, namespace, context, kubeconfig, changes)
    show(f"job {name} is being retried")


def _patch(
    name: str,
    namespace: str,
    context: str,
    kubeconfig: str,
    changes: Callable[[RagGrpoJob], Changes],
) -> None:
    """Apply the changes, which depend on the current job, as a merge patch."""

    async def patch(client: UserClient) -> None:
        job = await get_job(client, namespace, name)
        await client.merge_patch(JOBS, job.metadata.namespace, name, changes(job))

    run_in_cluster(kubeconfig, context, patch)
