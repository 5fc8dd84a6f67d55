"""Sources of a hub in the hub's own cache, which other programs of this machine share.

huggingface_hub reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. Its own download uses names from headers
of the hub as paths, and has no limits, so files are downloaded as into other folders. A complete
commit is used without writing to the cache; otherwise, a lock among those of huggingface_hub
prevents two processes from downloading a repository at once.
"""

import os
import re
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from raggrpo_api.fields.source import MAIN, HubSource
from raggrpo_api.foreign_files import remove_folder
from raggrpo_api.trainer.staging import SourceRole, StagingReason

from .cached_commit import NOT_WRITABLE, CachedCommit, blob_name
from .download import Downloader, file_digest, require_folder, require_space
from .failures import StagingFailed, translate_disk_errors
from .folder import Marker, content_digest, revision_folder, write_marker
from .hub import CARD, HubRemote, repository_type
from .lock import source_lock
from .progress import ProgressCounter
from .remote import RemoteFile, Snapshot
from .retries import with_retries
from .selection import hub_files

REMEDY = "set HF_HOME to a writable folder"
_SHA256 = re.compile("[0-9a-f]{64}")


def stage_in_cache(
    source: HubSource,
    role: SourceRole,
    revision: str,
    folder: Path,
    progress: ProgressCounter,
    stop: threading.Event,
) -> tuple[Path, Marker]:
    """Return the path of a source and its marker; download it if it is not in the cache.

    A model is used in the cache. Data files are linked into `folder`, because the cache may have
    other files in the same folder.
    """
    name = revision or source.revision or MAIN
    if constants.HF_HUB_OFFLINE:
        cached = _cached(source, name)
        snapshot = Snapshot(cached.name, _files(cached, source, role))
    else:
        remote = HubRemote(source, role)
        snapshot = with_retries(lambda: remote.snapshot(revision), progress.report)
        cached = _download(source, name, remote, snapshot, progress, stop)
    marker = _marker(source, snapshot, cached)
    if role is SourceRole.MODEL:
        return cached / source.path, marker
    target = revision_folder(folder, snapshot.revision)
    for each in snapshot.files:
        _link(cached / each.location, target / each.path)
    write_marker(target, marker)
    return marker.path(target), marker


def _download(
    source: HubSource,
    revision: str,
    remote: HubRemote,
    snapshot: Snapshot,
    progress: ProgressCounter,
    stop: threading.Event,
) -> Path:
    """Download the files that are not in the cache; return the folder of the commit."""
    require_folder(source, [each.location for each in snapshot.files])
    name = repo_folder_name(repo_id=source.repository, repo_type=repository_type(source))
    cache = Path(constants.HF_HUB_CACHE)
    commit = CachedCommit(cache / name, snapshot.revision)
    files = [*snapshot.files, *([remote.card] if remote.card else [])]
    with translate_disk_errors(commit.repository, REMEDY):
        if all(commit.has(each) for each in files):
            progress.expect(snapshot.known_bytes, snapshot.known_bytes)
            try:
                commit.record(revision)
            except OSError as error:  # only needed offline
                if error.errno not in NOT_WRITABLE:
                    raise
            return commit.folder
        with source_lock(cache / ".locks" / name, progress.report, stop, REMEDY):
            lacking = [each for each in files if not commit.has(each)]
            blobs = {blob_name(each): each for each in lacking if not commit.has_blob(each)}
            missing = [replace(each, path=name) for name, each in blobs.items()]
            needed = sum(each.size or 0 for each in missing)
            progress.expect(snapshot.known_bytes, snapshot.known_bytes - needed)
            commit.repository.mkdir(parents=True, exist_ok=True)
            require_space(source, needed, commit.repository)
            Downloader(remote, progress, stop).download(missing, commit.blobs, commit.work)
            commit.link(lacking)
            commit.record(revision)
            remove_folder(commit.work, ignore_errors=True)
    return commit.folder


def _cached(source: HubSource, revision: str) -> Path:
    try:
        return Path(
            snapshot_download(
                source.repository,
                repo_type=repository_type(source),
                revision=revision,
                local_files_only=True,
            )
        )
    except IncompleteSnapshotError as error:  # without files that no role needs
        return Path(error.snapshot_path)
    except LocalEntryNotFoundError as error:
        raise StagingFailed(
            StagingReason.NOT_FOUND,
            f"{source} is not in the hub's cache, and HF_HUB_OFFLINE is set; unset it for one run",
        ) from error


def _files(cached: Path, source: HubSource, role: SourceRole) -> tuple[RemoteFile, ...]:
    """Return the files of a role in the cache."""
    paths = [each.relative_to(cached).as_posix() for each in cached.rglob("*") if each.is_file()]

    def card() -> str:
        return (cached / CARD).read_text(errors="replace") if (cached / CARD).exists() else ""

    chosen = hub_files(paths, card, role, source)
    return tuple(
        RemoteFile(relative, location, (cached / location).stat().st_size)
        for location, relative in chosen.items()
    )


def _marker(source: HubSource, snapshot: Snapshot, cached: Path) -> Marker:
    digests = {each.path: _digest(cached / each.location) for each in snapshot.files}
    return Marker(
        source=str(source),
        revision=snapshot.revision,
        is_file=[each.location for each in snapshot.files] == [source.path],
        digest=content_digest(digests),
        files={each.path: (cached / each.location).stat().st_size for each in snapshot.files},
    )


def _digest(path: Path) -> str:
    """Return the SHA-256 of a file; a link to a large file has it as its target's name."""
    name = Path(os.readlink(path)).name if path.is_symlink() else ""
    return name if _SHA256.fullmatch(name) else file_digest(path)


def _link(cached: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with suppress(OSError):  # another file system
        os.link(cached.resolve(), target)
        return
    shutil.copyfile(cached, target)
