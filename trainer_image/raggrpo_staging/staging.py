"""Stage the sources of a request, one after the other."""

import threading
import time
from pathlib import Path

from raggrpo_api.fields.source import (
    COMMIT,
    HttpsSource,
    HubSource,
    ImageSource,
    Source,
    parse_source,
)
from raggrpo_api.foreign_files import remove_folder
from raggrpo_api.trainer.staging import (
    SourceRequest,
    StagedSource,
    StagingFailure,
    StagingReason,
    StagingRequest,
    StagingResult,
)

from .download import Downloader, draft_of, require_folder, require_space
from .failures import StagingFailed, own_path, translate_disk_errors
from .folder import (
    WORK,
    Marker,
    content_digest,
    read_marker,
    revision_folder,
    source_folder,
    write_marker,
)
from .lock import SourceLock, source_lock
from .progress import ProgressCounter
from .remote import Remote, RemoteFile, Snapshot
from .remotes import open_remote
from .retries import with_retries


def stage_all(request: StagingRequest, progress: ProgressCounter) -> StagingResult:
    """Stage all sources; a source that fails does not prevent the others."""
    staged, failures = [], []
    for each in request.sources:
        progress.start(each.field)
        started = time.monotonic()
        try:
            path, marker, is_new = _stage(
                Path(request.folder), each, request.use_hub_cache, progress
            )
        except StagingFailed as failure:
            message = f"{each.field}: {failure}"
            failures.append(
                StagingFailure(field=each.field, reason=failure.reason, message=message)
            )
        else:
            staged.append(
                StagedSource(
                    field=each.field,
                    path=str(path),
                    revision=marker.revision,
                    digest=marker.digest,
                    bytes=marker.bytes,
                    seconds=round(time.monotonic() - started, 3) if is_new else 0.0,
                )
            )
    return StagingResult(staged=staged, failures=failures)


def _stage(
    root: Path, request: SourceRequest, use_hub_cache: bool, progress: ProgressCounter
) -> tuple[Path, Marker, bool]:
    """Return the path of a source, its marker, and whether this process downloaded it."""
    source = parse_source(request.url)
    folder = source_folder(root, source, request.role)
    revision = request.revision or immutable_revision(source)
    if revision and (marker := read_marker(target := revision_folder(folder, revision))):
        return marker.path(target), marker, False
    stop = threading.Event()
    with source_lock(folder, progress.report, stop) as lock:
        if use_hub_cache and isinstance(source, HubSource):
            from .hub_cache import stage_in_cache

            path, marker = stage_in_cache(source, request.role, revision, folder, progress, stop)
            return path, marker, True
        remote = open_remote(source, request.role)
        snapshot = with_retries(lambda: remote.snapshot(revision), progress.report)
        if request.revision not in ("", snapshot.revision):
            raise StagingFailed(
                StagingReason.CONTENT_CHANGED,
                f"{source} has revision {snapshot.revision}, but the job started with "
                f"{request.revision}; restore that content, or create a new job",
            )
        target = revision_folder(folder, snapshot.revision)
        if marker := read_marker(target):
            return marker.path(target), marker, False
        marker = Staging(source, remote, snapshot, target, lock).run(progress, stop)
        return marker.path(target), marker, True


def immutable_revision(source: Source) -> str:
    """Return the revision that a source pins itself, or "" if it may change."""
    match source:
        case HubSource(revision=revision) if COMMIT.fullmatch(revision):
            return revision
        case HttpsSource(sha256=digest) if digest:
            return f"sha256:{digest}"
        case ImageSource(digest=digest):
            return digest
    return ""


class Staging:
    """Downloads one revision of a source; the caller holds its lock."""

    def __init__(
        self, source: Source, remote: Remote, snapshot: Snapshot, target: Path, lock: SourceLock
    ) -> None:
        self._source, self._remote, self._snapshot = source, remote, snapshot
        self._target, self._lock = target, lock
        self._work = target / WORK
        self._downloads = self._work / "archives" if snapshot.is_packed else target

    def run(self, progress: ProgressCounter, stop: threading.Event) -> Marker:
        """Download, verify and complete the folder."""
        files = self._snapshot.files
        require_folder(self._source, [each.path for each in files])
        with translate_disk_errors(self._target):
            self._target.mkdir(parents=True, exist_ok=True)
            self._require_own_folders()
            on_disk = sum(self._bytes_on_disk(each) for each in files)
            self._require_space(on_disk)
        progress.expect(self._snapshot.known_bytes, on_disk)
        downloader = Downloader(self._remote, progress, stop)
        digests = downloader.download(files, self._downloads, self._work)
        with translate_disk_errors(self._target):
            if self._snapshot.is_packed:
                digests = dict(self._remote.unpack(self._downloads, self._target))
                require_folder(self._source, list(digests))
            self._require_unchanged(progress)
            return self._complete(digests)

    def _require_own_folders(self) -> None:
        """Raise StagingFailed if a link would lead downloads out of the folder."""
        for folder in (self._target.parent, self._target, self._work):
            if folder.is_symlink():
                raise StagingFailed(
                    StagingReason.FOLDER_NOT_WRITABLE, f"{folder} is a link; remove it"
                )

    def _bytes_on_disk(self, file: RemoteFile) -> int:
        if own_path(self._downloads, file.path).exists():
            return file.size or 0
        return draft_of(file, self._work).bytes_on_disk()

    def _require_space(self, on_disk: int) -> None:
        copies = 2 if self._snapshot.is_packed else 1
        needed = self._snapshot.known_bytes * copies - on_disk
        require_space(self._source, needed, self._target)

    def _require_unchanged(self, progress: ProgressCounter) -> None:
        """Raise StagingFailed if the source changed, and discard content that may be mixed."""
        if self._snapshot.is_immutable:
            return
        now = with_retries(lambda: self._remote.snapshot(""), progress.report)
        if now.revision != self._snapshot.revision:
            remove_folder(self._target)
            raise StagingFailed(
                StagingReason.CONTENT_CHANGED,
                f"{self._source} changed during the download; start again when it is complete",
            )

    def _complete(self, digests: dict[str, str]) -> Marker:
        self._lock.check()
        remove_folder(self._work, ignore_errors=True)
        marker = Marker(
            source=str(self._source),
            revision=self._snapshot.revision,
            is_file=self._snapshot.is_file,
            digest=content_digest(digests),
            files={each: own_path(self._target, each).stat().st_size for each in digests},
        )
        write_marker(self._target, marker)
        return marker
