"""Download the files of a source in parallel parts and verify their checksums."""

import hashlib
import shutil
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePosixPath
from typing import TypeVar

from raggrpo_api.fields.source import Source
from raggrpo_api.foreign_files import open_regular
from raggrpo_api.limits import MAX_FOLDER_ENTRIES
from raggrpo_api.trainer.staging import GB, StagingReason

from .draft import Draft, OpenDraft, Part
from .failures import RangeIgnored, StagingFailed, Stopped, own_path, translate_disk_errors
from .progress import ProgressCounter
from .remote import Checksum, Remote, RemoteFile
from .retries import with_retries

T = TypeVar("T")
PARALLEL_PARTS = 8
PARALLEL_FILES = 4
QUEUED_PARTS = 1024
"""Parts of a file that are queued at a time; its size is a number of its server."""
BLOCK_BYTES = 2**20


def draft_of(file: RemoteFile, work: Path) -> Draft:
    """Return the draft of a file in the work folder."""
    return Draft(work / hashlib.sha256(file.path.encode()).hexdigest()[:32], file.size)


@dataclass(frozen=True)
class Downloader:
    """Downloads the files of a source."""

    remote: Remote
    progress: ProgressCounter
    stop: threading.Event
    """Set to stop all threads."""

    def download(self, files: Sequence[RemoteFile], folder: Path, work: Path) -> dict[str, str]:
        """Download files into a folder; return the SHA-256 of each by relative path.

        Files that are in the folder are complete. Raises StagingFailed, or Stopped.
        """
        with (
            ThreadPoolExecutor(PARALLEL_PARTS) as parts,
            ThreadPoolExecutor(PARALLEL_FILES) as pool,
        ):
            futures = [pool.submit(self._file, each, folder, work, parts) for each in files]
            try:
                digests = self._results(futures)
            except BaseException:
                self.stop.set()
                raise
        return dict(zip((each.path for each in files), digests, strict=True))

    def _file(self, file: RemoteFile, folder: Path, work: Path, pool: ThreadPoolExecutor) -> str:
        target = own_path(folder, file.path)
        draft = draft_of(file, work)
        with translate_disk_errors(folder):
            if target.exists():
                return file_digest(target)
            self._receive_all(file, draft, pool)
            digest = file_digest(draft.path)
            if not is_correct(draft.path, file.checksum, digest):
                draft.discard()
                raise StagingFailed(
                    StagingReason.CHECKSUM_MISMATCH,
                    f"{file.location} differs from its checksum "
                    f"({file.checksum and file.checksum.digest}, downloaded: {digest}); correct "
                    "the checksum, or start again if the download was damaged",
                )
            draft.complete(target)
        return digest

    def _receive_all(self, file: RemoteFile, draft: Draft, pool: ThreadPoolExecutor) -> None:
        try:
            self._parts(file, draft, draft.missing(), pool)
        except RangeIgnored:
            draft.discard()
            self._parts(file, draft, [Part(0, 0, None)], pool)
        except StagingFailed:
            if file.size is None:  # it cannot be resumed
                draft.discard()
            raise

    def _parts(
        self, file: RemoteFile, draft: Draft, parts: Iterable[Part], pool: ThreadPoolExecutor
    ) -> None:
        remaining = iter(parts)
        with draft.opened() as opened:
            while some := list(islice(remaining, QUEUED_PARTS)):
                self._results([pool.submit(self._part, file, opened, each) for each in some])

    def _part(self, file: RemoteFile, opened: OpenDraft, part: Part) -> None:
        with_retries(
            lambda: self._receive(file, opened, part), self.progress.report, self.stop.wait
        )
        opened.mark(part)

    def _receive(self, file: RemoteFile, opened: OpenDraft, part: Part) -> None:
        """Write the rest of a part. Raises StagingFailed, also if the server sends too little."""
        if part.stop is None:
            part.start = 0
        limit = opened.space() if file.size is None else file.size
        for chunk in self._chunks(file, part):
            if part.stop is not None and part.start + len(chunk) > part.stop:
                raise RangeIgnored
            if part.start + len(chunk) > limit:
                raise _too_large(file, limit, opened)
            opened.write(chunk, part.start)
            part.start += len(chunk)
            self.progress.add(len(chunk))
        expected = file.size if part.stop is None else part.stop
        if expected is not None and part.start != expected:
            raise StagingFailed(
                StagingReason.UNREACHABLE,
                f"{file.location} ended after {part.start:,} of {expected:,} bytes; start again",
            )

    def _chunks(self, file: RemoteFile, part: Part) -> Iterator[bytes]:
        if not self.stop.is_set():
            for chunk in self.remote.chunks(file, part.start, part.stop):
                yield chunk
                if self.stop.is_set():
                    break
        if self.stop.is_set():
            raise Stopped

    def _results(self, futures: Sequence[Future[T]]) -> list[T]:
        """Return the results; after the first failure, stop all threads and raise it."""
        done, _ = wait(futures, return_when=FIRST_EXCEPTION)
        failures = [failure for each in done if (failure := each.exception()) is not None]
        if not failures:
            return [each.result() for each in futures]
        if not all(isinstance(each, RangeIgnored) for each in failures):
            self.stop.set()
        for each in futures:
            each.cancel()
        wait(futures)
        ended = (each for each in futures if not each.cancelled())
        failures += [failure for each in ended if (failure := each.exception()) is not None]
        # The failure that stopped the others may have been recorded after theirs.
        raise next((each for each in failures if not isinstance(each, Stopped)), failures[0])


def _too_large(file: RemoteFile, limit: int, opened: OpenDraft) -> StagingFailed:
    if file.size is not None:
        return StagingFailed(
            StagingReason.UNREACHABLE,
            f"{file.location} has more than its {limit:,} bytes; start again",
        )
    return StagingFailed(
        StagingReason.DISK_FULL,
        f"{file.location}, whose size the server does not report, has more than {limit / GB:.2f} "
        f"GB, and {opened.folder} does not have enough free space; request more storage",
    )


def require_folder(source: Source, paths: Sequence[str]) -> None:
    """Raise StagingFailed unless the files fit into a folder: few files with different names."""
    if len(paths) > MAX_FOLDER_ENTRIES:
        raise StagingFailed(
            StagingReason.UNSUITABLE_CONTENT,
            f"{source} needs {len(paths):,} files, limit {MAX_FOLDER_ENTRIES:,}; specify a folder, "
            "a split or a file",
        )
    folders = {str(parent) for each in paths for parent in PurePosixPath(each).parents}
    counts = Counter(paths)
    for each in paths:
        if counts[each] > 1 or each in folders:
            raise StagingFailed(
                StagingReason.UNSUITABLE_CONTENT,
                f"{source}: {each} is two files, or a file and a folder; rename one of them",
            )


def require_space(source: Source, needed: int, folder: Path) -> None:
    """Raise StagingFailed if a folder has less than `needed` bytes of free space."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise StagingFailed(
            StagingReason.DISK_FULL,
            f"{source} needs {needed / GB:.2f} GB, but {folder} has {free / GB:.2f} GB free; "
            "request more storage or free some",
        )


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Return the digest of a file in hexadecimal. Raises OSError."""
    with open_regular(path) as file:
        if algorithm != "git":
            return hashlib.file_digest(file, algorithm).hexdigest()
        header = f"blob {path.stat().st_size}\0".encode()
        digest = hashlib.sha1(header, usedforsecurity=False)
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
        return digest.hexdigest()


def is_correct(path: Path, checksum: Checksum | None, sha256: str) -> bool:
    """Return whether a file with this SHA-256 has its checksum, if it has one."""
    match checksum:
        case None:
            return True
        case Checksum(algorithm="sha256", digest=digest):
            return digest == sha256
    return file_digest(path, checksum.algorithm) == checksum.digest
