"""Staging: which sources to download, its progress and its result; and the result of a push.

    python -m raggrpo_staging --request FILE --progress FILE --result FILE

The process writes `StagingProgress` while it runs and `StagingResult` before it exits.
"""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from raggrpo_api.fields.base import AbsolutePath, ApiModel, Duration
from raggrpo_api.fields.source import SourceUrl
from raggrpo_api.fields.text import Message, ShortText

PUSH_FIELD: Final = "spec.output.push"
"""Field of the progress of a push."""
UPLOADING: Final = "Uploading"
"""Verb of the progress of a push."""
MAX_SOURCES: Final = 8
"""Maximum sources of a request, so that their result fits into MAX_PREFLIGHT_BYTES."""
GB: Final = 10**9

Bytes = Annotated[int, Field(ge=0, le=10**15)]


class SourceRole(StrEnum):
    """Use of a source, which determines the files that are needed."""

    MODEL = "Model"
    """Configuration, tokenizer and weights in safetensors."""
    DATA = "Data"
    """Data files: Parquet or JSON."""


class StagingReason(StrEnum):
    """Why a source could not be staged, or a folder not pushed."""

    TOKEN_MISSING = "TokenMissing"
    """The server requires credentials, and there are none."""
    ACCESS_DENIED = "AccessDenied"
    """The server rejected the credentials."""
    GATED_MODEL = "GatedModel"
    """The repository is gated; its owner has not granted access to the account of the token."""
    NOT_FOUND = "NotFound"
    """The repository, bucket, image, file, configuration or split does not exist."""
    UNKNOWN_REVISION = "UnknownRevision"
    """The repository exists, but has no such revision, tag or digest."""
    CONTENT_CHANGED = "ContentChanged"
    """The source no longer has the revision that the job recorded."""
    CHECKSUM_MISMATCH = "ChecksumMismatch"
    """The downloaded content differs from its checksum."""
    UNSUITABLE_CONTENT = "UnsuitableContent"
    """The source has no files for its role, or files that must not be extracted."""
    DISK_FULL = "DiskFull"
    """The folder has less free space than the source needs."""
    FOLDER_NOT_WRITABLE = "FolderNotWritable"
    """The folder cannot be written to."""
    RATE_LIMITED = "RateLimited"
    """The server still limits the rate of requests after all retries."""
    UNREACHABLE = "Unreachable"
    """The server cannot be reached, or fails, after all retries."""
    TLS_FAILURE = "TlsFailure"
    """The certificate of the server is not trusted."""
    EXPORT_FAILED = "ExportFailed"
    """The model to push cannot be exported from its checkpoint."""
    LOCK_LOST = "LockLost"
    """The process was suspended for so long that another one took over the source."""


TRANSIENT_REASONS: Final = frozenset(
    {StagingReason.RATE_LIMITED, StagingReason.UNREACHABLE, StagingReason.LOCK_LOST}
)
"""Reasons after which the same request may succeed later."""
CREDENTIAL_REASONS: Final = frozenset(
    {StagingReason.TOKEN_MISSING, StagingReason.ACCESS_DENIED, StagingReason.GATED_MODEL}
)
"""Reasons that other credentials may remedy."""


class SourceRequest(ApiModel):
    """A source to stage."""

    field: Annotated[ShortText, Field(min_length=1)]
    """Field of the job for messages and results, such as `spec.model.source`; unique."""
    url: SourceUrl
    role: SourceRole
    revision: ShortText = ""
    """Revision recorded by an earlier staging, which is staged again; empty: the newest one."""


class StagingRequest(ApiModel):
    """Sources to stage into a folder, which several jobs may share."""

    folder: AbsolutePath
    sources: Annotated[list[SourceRequest], Field(min_length=1, max_length=MAX_SOURCES)]
    use_hub_cache: bool = False
    """Whether hf:// sources are stored in the hub's own cache (HF_HOME) instead of the folder."""


class StagedSource(ApiModel):
    """A source with all of its files in a folder."""

    field: ShortText
    path: Message
    """File or folder."""
    revision: ShortText
    """Pinned revision: commit, digest of an image, checksum or entity tag."""
    digest: ShortText
    """SHA-256 of the content: of the lines `SHA-256 of file, two spaces, path`, sorted by path."""
    bytes: Bytes
    """Total size of the files."""
    seconds: Duration = 0.0
    """Time spent on the source; 0 if it was staged before."""


class StagingFailure(ApiModel):
    """Why a source is not staged."""

    field: ShortText
    reason: StagingReason
    message: Message
    """Field, problem and remedy."""


class StagingResult(ApiModel):
    """Result of a request: every source is in one of both lists."""

    staged: Annotated[list[StagedSource], Field(max_length=MAX_SOURCES)] = []
    failures: Annotated[list[StagingFailure], Field(max_length=MAX_SOURCES)] = []


class StagingProgress(ApiModel):
    """Progress of a request or a push."""

    bytes_done: Bytes = 0
    """Bytes of all sources on disk, or uploaded bytes."""
    bytes_total: Bytes = 0
    """Bytes of all sources whose size is known, or to upload; 0: none is known yet."""
    seconds_left: Duration = 0.0
    """Estimated remaining time; 0: unknown."""
    field: ShortText = ""
    """Field of the source in progress."""
    message: ShortText = ""
    """Reason for waiting, or ""."""


class PushResult(ApiModel):
    """Result of a push."""

    url: Message
    """Location of the pushed folder."""
    revision: ShortText = ""
    """Commit or digest, if the target has one."""
    bytes: Bytes = 0
    """Total size of the files."""


class PushOutcome(ApiModel):
    """Outcome of the push of a job's results."""

    pushed: PushResult | None = None
    """None if the push failed."""
    reason: StagingReason | None = None
    """Why the push failed, or None."""
    message: Message = ""
    """Problem and remedy."""


def pushed_text(pushed: PushResult) -> str:
    """Return one line such as `hf://org/name, revision 0123abc, 15.20 GB`."""
    revision = f", revision {pushed.revision}" if pushed.revision else ""
    return f"{pushed.url}{revision}, {pushed.bytes / GB:.2f} GB"


def progress_text(progress: StagingProgress, verb: str = "Staging") -> str:
    """Return one line such as `Staging 3.1 of 15.2 GB, 40 s left`."""
    if progress.message:
        return f"{progress.message} ({progress.field})"
    if not progress.bytes_total:
        return f"{verb} {progress.field}"
    done, total = progress.bytes_done / GB, progress.bytes_total / GB
    left = f", {progress.seconds_left:.0f} s left" if progress.seconds_left else ""
    return f"{verb} {done:.1f} of {total:.1f} GB{left}"
