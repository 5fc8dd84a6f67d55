"""`kubectl raggrpo plan`: show the resolved values of a job in the cluster or in a file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from pydantic import ValidationError

from raggrpo_api.fields.change_class import OPTIMIZATION
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_api.trainer.resume import Change, changes, resume_values
from raggrpo_cli.job_file import fail, load_job
from raggrpo_cli.manifests_text import Manifests, manifests_text
from raggrpo_cli.terminal import show
from raggrpo_operator.core.lifecycle.before_attempt.start_from import unresolved_job
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import errors
from raggrpo_operator.core.text.plan import render_plan
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.kube.user_client import UserClient

from .attempt_records import recorded_config
from .cluster_job import Context, Kubeconfig, Namespace, default_image, get_job, run_in_cluster


def plan(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Job in the cluster.")] = "",
    file: Annotated[
        Path | None, typer.Option("--filename", "-f", metavar="JOB.yaml", help="Job file.")
    ] = None,
    namespace: Namespace = "",
    context: Context = "",
    kubeconfig: Kubeconfig = "",
    manifests: Manifests = False,
) -> None:
    """Show the resolved job: values with origins, sizing, warnings, image; or manifests."""
    if bool(name) == (file is not None):
        fail("specify one job: NAME in the cluster, or -f JOB.yaml")
    file_job = load_job(file) if file is not None else None

    async def read(client: UserClient) -> tuple[RagGrpoJob, Pending, str, str]:
        job = file_job or await get_job(client, namespace, name)
        other = unresolved_job(job)
        if other:
            pending = _start_changes(job, await get_job(client, namespace, other))
        else:
            pending = Pending(await _changes_since_last_attempt(client, job))
        return job, pending, *await _image(client, job)

    job, pending, image, remark = run_in_cluster(kubeconfig, context, read)
    facts = job.status.preflight.known_facts
    resolved = resolve(job, facts)
    all_violations = violations(job, resolved, facts)
    if manifests and not errors(all_violations):
        show(manifests_text(job, resolved, image, facts), nl=False)
    else:
        sizing = size(resolved.spec, facts)
        text = render_plan(
            job,
            resolved,
            sizing,
            all_violations,
            facts,
            pending=pending.changes,
            start=pending.start,
        )
        show(text, nl=False)
        show(f"\nImage: {image}{remark}")
    if errors(all_violations):
        raise typer.Exit(ExitCode.CONFIG_ERROR)


class Pending(NamedTuple):
    """Changes that the next attempt applies."""

    changes: Sequence[Change]
    start: CheckpointRef | None = None
    """Newest checkpoint of the job that a new job starts from."""


def _start_changes(job: RagGrpoJob, source: RagGrpoJob) -> Pending:
    """Return the values in which a job differs from the job that it starts from."""
    changed = changes(_values(source), _values(job))
    return Pending(changed, source.status.checkpoint)


async def _changes_since_last_attempt(client: UserClient, job: RagGrpoJob) -> list[Change]:
    """Return the changed values since the last attempt, or [] if it cannot be read or is running.

    Values that another release has recorded are not compared.
    """
    attempts = job.status.attempts
    if not attempts or attempts[0].cause is None:
        return []
    try:
        config = await recorded_config(client, job.metadata, attempts[0].number)
        old = resume_values(TrainerConfig.model_validate(config))
    except (OperatorError, ValidationError):
        return []
    return [each for each in changes(old, _values(job)) if each.change_class is OPTIMIZATION]


def _values(job: RagGrpoJob) -> dict[str, Any]:
    return resume_values(resolve(job, job.status.preflight.known_facts).spec)


async def _image(client: UserClient, job: RagGrpoJob) -> tuple[str, str]:
    """Return the image with a remark on its origin, or "" with the error if it cannot be read."""
    if job.spec.image:
        return job.spec.image, ""
    try:
        return await default_image(client), " (default of the operator)"
    except OperatorError as error:
        return "", f"default of the operator, which cannot be read ({error})"
