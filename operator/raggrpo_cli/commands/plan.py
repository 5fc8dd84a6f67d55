"""`raggrpo plan JOB.yaml`: show resolved values with their origins, sizing and violations."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import typer
from pydantic_core import to_jsonable_python

from raggrpo_api.fields.change_class import OPTIMIZATION
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_api.trainer.resume import Change, changes, resume_values
from raggrpo_cli.job_file import JobFile, Sets, load_job
from raggrpo_cli.manifests_text import Manifests, manifests_text
from raggrpo_cli.recorded_job import DirOption, default_folder, job_to_start_from, load_state
from raggrpo_cli.terminal import AsJson, show
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.core.spec.violation import errors
from raggrpo_operator.core.text.plan import render_plan
from raggrpo_operator.core.text.step_work import step_work
from raggrpo_operator.local_runtime.job_folder import STATE
from raggrpo_operator.local_runtime.spec_changes import changes_since_last_run

PATHS = frozenset({"model.path", "data.trainFiles"})


def plan(
    job_file: JobFile,
    dir: DirOption = None,  # noqa: A002
    set_: Sets = None,
    as_json: AsJson = False,
    manifests: Manifests = False,
) -> None:
    """Show the resolved job: values with origins, sizing, warnings; or manifests.

    If the job has a job folder, the plan shows its segments and the changes since its last run.
    """
    job = load_job(job_file, set_)
    folder = dir or default_folder(job.metadata.name)
    job, pending, start = _with_changes(job, folder)
    resolved = resolve(job)
    all_violations = violations(job, resolved)
    sizing = size(resolved.spec)
    if as_json:
        config = trainer_config(job, resolved)
        output = {
            "config": config.model_dump(mode="json", by_alias=True),
            "origins": dict(resolved.origins),
            "work": asdict(step_work(resolved.spec, resolved.spec.rollout.n)),
            "sizing": to_jsonable_python(sizing, by_alias=True),
            "problems": [v.line() for v in all_violations],
        }
        show(json.dumps(output, indent=1))
    elif manifests and not errors(all_violations):
        show(manifests_text(job, resolved), nl=False)
    else:
        show(
            render_plan(job, resolved, sizing, all_violations, pending=pending, start=start),
            nl=False,
        )
    if errors(all_violations):
        raise typer.Exit(ExitCode.CONFIG_ERROR)


def _with_changes(
    job: RagGrpoJob, folder: Path
) -> tuple[RagGrpoJob, list[Change], CheckpointRef | None]:
    """Return the job with the status in its folder, its pending changes, and where it starts.

    Paths are omitted from the changes, because the plan does not apply `--mount`.
    """
    if (other := job_to_start_from(job, folder)) is not None:
        changed = changes(resume_values(other.resolved.spec), resume_values(resolve(job).spec))
        return job, [c for c in changed if c.path not in PATHS], other.status.checkpoint
    if not os.path.exists(folder / STATE):  # unlike `Path.exists`, False for any invalid path
        return job, [], None
    state = load_state(folder)
    changed = changes_since_last_run(state, job) if state.status.attempt else []
    pending = [change for change in changed if change.change_class is OPTIMIZATION]
    return job.model_copy(update={"status": state.status}), pending, None
