"""Objects in S3 and Google Cloud Storage, with fsspec's clients and their environment variables."""

import base64
import hashlib
import inspect
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property, partial
from typing import Any

from raggrpo_api.fields.source import BucketSource, Scheme
from raggrpo_api.foreign_bodies import UNEXPECTED, unsuitable_body
from raggrpo_api.limits import MAX_LISTING_SECONDS
from raggrpo_api.trainer.staging import SourceRole, StagingReason

from .failures import (
    TOKEN_REMEDY,
    StagingFailed,
    body_failure,
    causes,
    connection_failure,
    detail,
    status_failure,
    unexpected_failure,
)
from .remote import Checksum, Remote, RemoteFile, Snapshot
from .selection import require_few, role_files, single_file

_MD5 = re.compile("[0-9a-f]{32}")
_NO_CREDENTIALS = ("NoCredentialsError", "DefaultCredentialsError")


class BucketRemote(Remote):
    """An object, or the objects of a folder."""

    def __init__(self, source: BucketSource, role: SourceRole) -> None:
        self._source, self._role = source, role
        self._generations: dict[str, str] = {}
        """Generation of each object in GCS, by its location."""

    def snapshot(self, _revision: str) -> Snapshot:
        """Return the objects; the revision is derived from their entity tags."""
        root = f"{self._source.bucket}/{self._source.key}"
        with translated(self._source):
            self._files.invalidate_cache()
            entry = self._files.info(root)
            is_file = entry["type"] == "file"
            listed = {root: entry}
            if not is_file:
                listed = self._files.find(root, detail=True, timeout=MAX_LISTING_SECONDS)
            objects = {
                name.removeprefix(f"{root}/"): each
                for name, each in listed.items()
                if each["type"] == "file" and not name.endswith("/")
            }
            if is_file:
                name = single_file(self._source.key.rpartition("/")[2], self._role, self._source)
                objects, chosen = {name: entry}, [name]
            else:
                chosen = role_files(list(objects), self._role, self._source)
            files = tuple(self._remote_file(each, objects[each]) for each in chosen)
            lines = "".join(f"{each.path} {_version(objects[each.path])}\n" for each in files)
            revision = _version(entry) if is_file else hashlib.sha256(lines.encode()).hexdigest()
        return Snapshot(revision, files, is_file, is_immutable=False)

    def chunks(self, file: RemoteFile, start: int, stop: int | None) -> Iterator[bytes]:
        """Yield a range of an object at once, in GCS that of the generation in the snapshot."""
        generation = self._generations.get(file.location)
        pinned = {"generation": generation} if generation else {}
        with translated(self._source):
            try:
                content = self._files.cat_file(file.location, start=start, end=stop, **pinned)
            except FileNotFoundError as error:
                raise StagingFailed(
                    StagingReason.CONTENT_CHANGED,
                    f"{self._source.scheme}://{file.location} was replaced or deleted during the "
                    "download; start again",
                ) from error
        yield content

    @cached_property
    def _files(self) -> Any:
        return open_bucket(self._source)

    def _remote_file(self, path: str, entry: Mapping[str, Any]) -> RemoteFile:
        checksum = None
        if self._source.scheme is Scheme.S3:
            checksum = self._s3_checksum(entry["name"])
        else:
            if (generation := str(entry.get("generation", ""))).isdecimal():
                self._generations[entry["name"]] = generation
            if text := entry.get("md5Hash"):
                checksum = Checksum("md5", base64.b64decode(text).hex())
        return RemoteFile(path, entry["name"], int(entry["size"]), checksum)

    def _s3_checksum(self, name: str) -> Checksum | None:
        """Return the checksum of an object, unless it was uploaded in parts or is encrypted."""
        bucket, _, key = name.partition("/")
        head = self._files.call_s3("head_object", Bucket=bucket, Key=key, ChecksumMode="ENABLED")
        if head.get("ChecksumType", "FULL_OBJECT") == "FULL_OBJECT" and "ChecksumSHA256" in head:
            return Checksum("sha256", base64.b64decode(head["ChecksumSHA256"]).hex())
        tag = head.get("ETag", "").strip('"')
        is_md5 = head.get("ServerSideEncryption", "AES256") == "AES256" and _MD5.fullmatch(tag)
        return Checksum("md5", tag) if is_md5 else None


def open_bucket(source: BucketSource) -> Any:
    """Return a file system without cached connections; without credentials, it is anonymous."""
    from raggrpo_buckets.file_systems import LimitedGcs, LimitedS3

    check_listed = partial(require_few, source=source)
    if source.scheme is Scheme.S3:
        with translated(source):
            is_anonymous = not _has_aws_credentials()
        return LimitedS3(check_listed, anon=is_anonymous)

    class Gcs(LimitedGcs):
        """Without the retries of gcsfs, because the caller repeats the request."""

        _request = inspect.unwrap(LimitedGcs._request)

    return Gcs(check_listed)


def _version(entry: Mapping[str, Any]) -> str:
    tag = entry.get("generation") or entry.get("ETag") or entry.get("etag") or entry["size"]
    return str(tag).strip('"')


@contextmanager
def translated(source: BucketSource) -> Iterator[None]:
    """Raise StagingFailed for errors of the clients, which have no common type."""
    try:
        yield
    except StagingFailed:
        raise
    except Exception as error:
        raise _failure(source, error) from error


def _failure(source: BucketSource, error: Exception) -> StagingFailed:
    if body := unsuitable_body(error):
        return body_failure(body)
    remedy = TOKEN_REMEDY[source.scheme]
    # gcsfs reports each failure of Google's token endpoint as status 401.
    if unavailable := next((e for e in causes(error) if getattr(e, "retryable", False)), None):
        return connection_failure(f"{source.scheme}://{source.bucket}", unavailable)
    status = next((code for each in causes(error) if (code := _status(each))), 0)
    if status in (408, 429, 500, 502, 503, 504):
        return status_failure(f"{source.scheme}://{source.bucket}", status, None)
    if isinstance(error, FileNotFoundError):
        return StagingFailed(
            StagingReason.NOT_FOUND, f"{source} does not exist; correct the bucket or the key"
        )
    if status in (401, 403) or isinstance(error, PermissionError) or _is_forbidden(error):
        if _has_credentials(source, error):
            reason, problem = StagingReason.ACCESS_DENIED, f"access to {source} is denied"
        else:
            reason, problem = StagingReason.TOKEN_MISSING, f"{source} needs credentials"
        return StagingFailed(reason, f"{problem} ({detail(error)}); {remedy}")
    if any(type(each).__name__ in _NO_CREDENTIALS for each in causes(error)):
        return StagingFailed(StagingReason.TOKEN_MISSING, f"{source} needs credentials; {remedy}")
    if isinstance(error, UNEXPECTED):
        return unexpected_failure(f"{source.scheme}://{source.bucket}", str(source), error)
    return connection_failure(f"{source.scheme}://{source.bucket}", error)


def _status(error: BaseException) -> int:
    """Return the HTTP status of an error of botocore or gcsfs, or 0."""
    response = getattr(error, "response", None)
    if isinstance(response, dict):
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return 429 if response.get("Error", {}).get("Code") == "SlowDown" else int(status)
    code = getattr(error, "code", None) or getattr(error, "status", None)
    return int(code) if isinstance(code, int) or (isinstance(code, str) and code.isdecimal()) else 0


def _is_forbidden(error: Exception) -> bool:
    return isinstance(error, OSError) and str(error).startswith("Forbidden")


def _has_credentials(source: BucketSource, error: Exception) -> bool:
    if source.scheme is Scheme.GS:
        return "Anonymous" not in str(error) and bool(
            os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        )
    return _has_aws_credentials()


def _has_aws_credentials() -> bool:
    import botocore.session

    return botocore.session.get_session().get_credentials() is not None
