"""Adapts a cluster job to this machine: folders replace volumes. Does not access files."""

import difflib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, TypeVar

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.memory.arithmetic import num_ranks
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Device, Volume
from raggrpo_operator.core.spec.claims import named_volumes, with_default_volumes
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.path_fields import is_path, path_fields
from raggrpo_operator.core.spec.world import num_engines

from .overrides import InvalidOptions, option_problems

Model = TypeVar("Model", bound=ApiModel)


def apply_mounts(
    job: RagGrpoJob, mounts: Mapping[str, str], exists: Callable[[str], bool]
) -> RagGrpoJob:
    """Return the job with each path on a volume moved to the folder that replaces the volume.

    `mounts` maps claims to absolute folders. A volume needs no folder if its mount path exists on
    this machine. Raises InvalidOptions with the flags to use.
    """
    volumes = named_volumes(job)
    claims = {volume.claim_name: volume for volume in volumes}
    problems = [
        _unknown_claim(claim, folder, volumes)
        for claim, folder in mounts.items()
        if claim not in claims
    ]
    problems += [
        f"--mount {claim}={folder}: the folder does not exist; create it with `mkdir -p {folder}`"
        for claim, folder in mounts.items()
        if claim in claims and not exists(folder)
    ]
    used = {_volume_of(path, volumes) for _, path in _job_paths(job)}
    problems += [
        f"--mount {volume.claim_name}=/path/to/folder  # required: it replaces volume "
        f"{volume.name} at {volume.mount_path}"
        for volume in volumes
        if volume.name in used and volume.claim_name not in mounts and not exists(volume.mount_path)
    ]
    if problems:
        raise InvalidOptions(problems)
    places = {v.mount_path: mounts.get(v.claim_name, v.mount_path) for v in volumes}
    if not mounts:
        return job
    moved = job.model_copy(update={"spec": _moved(with_default_volumes(job.spec), places)})
    parsed = parse_job(moved.manifest())
    if not isinstance(parsed, RagGrpoJob):  # the folder's path is invalid in a job
        raise InvalidOptions([f"--mount: {violation.line()}" for violation in parsed])
    return moved


def machine_problems(spec: JobSpec, num_gpus: int) -> list[str]:
    """Return the requirements of a job that this machine does not meet, with the flags to use."""
    problems = []
    if spec.resources.nodes > 1:
        problems.append(
            f"spec.resources.nodes is {spec.resources.nodes}, but this is one machine: "
            "--set resources.nodes=1"
        )
    if spec.resources.device is Device.CPU:
        return problems
    disaggregated = spec.resources.rollout_gpus
    needed = num_ranks(spec.resources) + disaggregated
    if num_gpus == 0:
        problems.append(
            "spec.resources.device is GPU, but this machine has no GPU: --set resources.device=CPU"
        )
    elif num_gpus < needed:
        problems.append(
            f"the job needs {needed} GPUs ({num_engines(spec)} engines), but this machine has "
            f"{num_gpus}: --set resources.gpusPerNode={max(1, num_gpus - disaggregated)}"
        )
    return problems


def read_mounts(options: Sequence[str], absolute: Callable[[str], str]) -> dict[str, str]:
    """Return absolute folders by claim from `--mount CLAIM=DIR` options. Raises InvalidOptions."""
    mounts: dict[str, str] = {}

    def add(text: str) -> str:
        claim, _, folder = text.partition("=")
        if not claim or not folder:
            return f"--mount {text}: expected --mount CLAIM=DIR"
        if claim in mounts:
            return f"--mount {text}: claim {claim} is specified twice"
        mounts[claim] = absolute(folder)
        return ""

    if problems := option_problems(options, add):
        raise InvalidOptions(problems)
    return mounts


def _unknown_claim(claim: str, folder: str, volumes: Sequence[Volume]) -> str:
    known = [volume.claim_name for volume in volumes]
    near = difflib.get_close_matches(claim, known, n=1) or known[:1]
    if not near:
        return f"--mount {claim}={folder}: the job has no volumes; omit the option"
    volume = next(v for v in volumes if v.claim_name == near[0])
    return (
        f"--mount {claim}={folder}: no volume uses claim {claim} (claims: {', '.join(known)}); "
        f"--mount {near[0]}={folder}  # replaces volume {volume.name} at {volume.mount_path}"
    )


def _job_paths(job: RagGrpoJob) -> list[tuple[str, str]]:
    fields = path_fields(job.spec)
    return [(field, path) for field, path in fields if not field.startswith("spec.volumes")]


def _volume_of(path: str, volumes: Sequence[Volume]) -> str | None:
    """Return the name of the innermost volume that contains the path, or None."""
    containing = [v for v in volumes if PurePosixPath(path).is_relative_to(v.mount_path)]
    innermost = max(containing, key=lambda v: len(PurePosixPath(v.mount_path).parts), default=None)
    return innermost.name if innermost is not None else None


def _moved(model: Model, places: Mapping[str, str]) -> Model:
    """Return the model with paths on volumes moved; unset fields remain unset."""
    changes: dict[str, Any] = {}
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        new = _moved_value(value, is_path(field.annotation, field.metadata), places)
        if new != value:
            changes[name] = new
    return model.model_copy(update=changes) if changes else model


def _moved_value(value: Any, is_path_field: bool, places: Mapping[str, str]) -> Any:
    if isinstance(value, ApiModel):
        return _moved(value, places)
    if isinstance(value, list):
        return [_moved_value(item, is_path_field, places) for item in value]
    return _moved_path(value, places) if is_path_field and value else value


def _moved_path(path: str, places: Mapping[str, str]) -> str:
    containing = [place for place in places if PurePosixPath(path).is_relative_to(place)]
    if not containing:
        return path
    place = max(containing, key=lambda mount_path: len(PurePosixPath(mount_path).parts))
    return str(PurePosixPath(places[place]) / PurePosixPath(path).relative_to(place))
