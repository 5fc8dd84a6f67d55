"""Adapts a job to this machine with the options of local commands, or exits with its problems."""

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.spec.claims import named_volumes
from raggrpo_operator.core.spec.resolve import Resolved
from raggrpo_operator.local_runtime.mounts import apply_mounts, machine_problems, read_mounts
from raggrpo_operator.local_runtime.overrides import InvalidOptions
from raggrpo_operator.local_runtime.secret_values import missing_secrets

from .job_file import fail, job_with_options, read_job_file, resolve_valid_job
from .recorded_job import default_folder, load_state
from .terminal import show

Endpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--endpoint",
        metavar="NAME=URL",
        help="Override the URL of a retrieval endpoint.",
    ),
]
Mounts = Annotated[
    list[str] | None,
    typer.Option(
        "--mount",
        metavar="CLAIM=DIR",
        help="Replace a PersistentVolumeClaim with a local folder.",
    ),
]


VOLUMES_DIR = "volumes"
"""Folder below the job folder for the volumes with a claimTemplate."""


class LocalJob(NamedTuple):
    """A job adapted to this machine, with the options that adapted it."""

    job: RagGrpoJob
    resolved: Resolved
    mounts: list[str]
    """`--mount` options, each as CLAIM=DIR with an absolute folder."""
    endpoints: list[str]
    """`--endpoint` options, each as NAME=URL."""


def load_local_job(
    path: Path,
    folder: Path | None,
    *,
    sets: Sequence[str] | None,
    endpoints: Sequence[str] | None,
    mounts: Sequence[str] | None,
) -> LocalJob:
    """Return the job in a file, adapted to this machine, or exit with a list of all problems.

    Mounts and endpoints that are not specified are those of the last run in the job folder.
    """
    raw = read_job_file(path)
    job = job_with_options(path, raw, sets or [], endpoints or [])
    job_folder = folder or default_folder(job.metadata.name)
    state = load_state(job_folder)
    names = [endpoint.name for endpoint in job.spec.retrieval.endpoints]
    volumes = named_volumes(job)
    claims = [volume.claim_name for volume in volumes]
    all_endpoints = _completed("--endpoint", endpoints or [], state.endpoints, names)
    all_mounts = _completed("--mount", mounts or [], state.mounts, claims)
    job = job_with_options(path, raw, sets or [], all_endpoints)
    try:
        folders = read_mounts(all_mounts, _absolute)
        own = {
            volume.claim_name: _absolute(str(job_folder / VOLUMES_DIR / volume.name))
            for volume in volumes
            if volume.claim_template is not None and volume.claim_name not in folders
        }
        job = apply_mounts(job, own | folders, lambda at: at in own.values() or os.path.isdir(at))
    except InvalidOptions as error:
        fail(str(error))
    resolved = resolve_valid_job(job, in_pods=False)
    num_gpus = len(glob.glob("/dev/nvidia[0-9]*"))
    problems = machine_problems(resolved.spec, num_gpus)
    problems += missing_secrets(resolved.spec, os.environ)
    if problems:
        fail("\n".join(problems))
    absolute = [f"{claim}={place}" for claim, place in folders.items()]
    return LocalJob(job, resolved, absolute, all_endpoints)


def _completed(
    option: str, specified: Sequence[str], recorded: Sequence[str], names: Sequence[str]
) -> list[str]:
    """Return the specified options and, for other `names` of the job, those of the last run."""
    known = {text.partition("=")[0] for text in specified}
    added = [each for each in recorded if each.partition("=")[0] in {*names} - known]
    for each in added:
        show(f"using {option} {each} of the last run", err=True)
    return [*specified, *added]


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))
