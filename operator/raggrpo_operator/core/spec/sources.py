"""Models and data that a job downloads: the request, and the paths of the staged files. Pure."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import EnvVar
from raggrpo_api.status.job_status import StagingStatus
from raggrpo_api.trainer.config import content_hash
from raggrpo_api.trainer.staging import (
    CREDENTIAL_REASONS,
    SourceRequest,
    SourceRole,
    StagedSource,
    StagingRequest,
)

from .path_fields import volume_of

MODEL, TRAIN, VALIDATION = "spec.model.source", "spec.data.sources", "spec.data.validationSources"
STAGING_DIR = "staged"


def source_urls(spec: JobSpec) -> dict[str, str]:
    """Return the URL of each source by its field."""
    urls = {MODEL: spec.model.source} if spec.model.source else {}
    for field, sources in ((TRAIN, spec.data.sources), (VALIDATION, spec.data.validation_sources)):
        urls |= {f"{field}[{number}]": url for number, url in enumerate(sources)}
    return urls


def staging_folder(spec: JobSpec) -> str:
    """Return the folder of the staged files: by default, on the volume of the checkpoints."""
    if spec.staging.path:
        return spec.staging.path
    volume = volume_of(spec.checkpoint.path, spec.volumes)
    root = volume.mount_path if volume else str(PurePosixPath(spec.checkpoint.path).parent)
    return str(PurePosixPath(root) / STAGING_DIR)


def staging_request(
    spec: JobSpec, staged: StagingStatus, *, use_hub_cache: bool
) -> StagingRequest | None:
    """Return the request for all sources, or None if there are none.

    A source that was staged before, is requested in the same revision.
    """
    urls = source_urls(spec)
    if not urls:
        return None
    revisions = {
        url: source.revision for url, source in zip(staged.urls, staged.sources, strict=False)
    }
    sources = [
        SourceRequest(
            field=field,
            url=url,
            role=SourceRole.MODEL if field == MODEL else SourceRole.DATA,
            revision=revisions.get(url, ""),
        )
        for field, url in urls.items()
    ]
    folder = staging_folder(spec)
    return StagingRequest(folder=folder, sources=sources, use_hub_cache=use_hub_cache)


def with_variables(spec: JobSpec, reason: str, message: str) -> str:
    """Return the message of a failed transfer, with the origin of the credentials it names.

    The process that transfers files does not know which Secrets its variables come from.
    """
    if reason not in CREDENTIAL_REASONS:
        return message
    origins = [
        f"{variable.name} is from {_origin(variable, number)}"
        for number, variable in enumerate(spec.env)
        if variable.name in re.findall(r"[A-Z][A-Z0-9_]+", message)
    ]
    return "; ".join([message, *origins])


def _origin(variable: EnvVar, number: int) -> str:
    field = f"spec.env[{number}]"
    if (ref := variable.secret_key_ref) is None:
        return field
    return f"Secret {ref.name}, key {ref.key} ({field})"


def request_hash(spec: JobSpec) -> str:
    """Return the hash of the sources and their folder; staging is repeated if it changes."""
    return content_hash({"folder": staging_folder(spec), "urls": source_urls(spec)})


def staging_status(spec: JobSpec, staged: Sequence[StagedSource]) -> StagingStatus:
    """Return the status after all sources were staged, in the order of their fields."""
    by_field = {each.field: each for each in staged}
    urls = source_urls(spec)
    return StagingStatus(
        request_hash=request_hash(spec),
        urls=list(urls.values()),
        sources=[by_field[field] for field in urls],
    )


def staged_paths(job: RagGrpoJob, spec: JobSpec) -> Mapping[str, Any]:
    """Return the values of the path fields that sources replace, by path below `spec`.

    Until the sources are staged, all paths are the staging folder.
    """
    if not source_urls(spec):
        return {}
    staging = job.status.staging
    is_current = staging.request_hash == request_hash(spec)
    paths = {each.field: each.path for each in staging.sources} if is_current else {}
    folder = staging_folder(spec)
    values: dict[str, Any] = {}
    if spec.model.source:
        values["model.path"] = paths.get(MODEL, folder)
    for field, target, sources in (
        (TRAIN, "data.trainFiles", spec.data.sources),
        (VALIDATION, "data.validationFiles", spec.data.validation_sources),
    ):
        if sources:
            fields = (f"{field}[{number}]" for number in range(len(sources)))
            values[target] = [paths.get(each, folder) for each in fields]
    return values
