"""Sources of a hub in the hub's own cache, which other programs of this machine share.

huggingface_hub reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE. Its own download uses names from headers
of the hub as paths, and has no limits, so files are downloaded as into other folders:

HF_HUB_CACHE/models--org--name/blobs/CHECKSUM     files
HF_HUB_CACHE/models--org--name/snapshots/COMMIT/… links to them
HF_HUB_CACHE/models--org--name/refs/BRANCH        commit of a branch
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

from .download import Downloader, file_digest, require_folder, require_space
from .failures import StagingFailed, own_path, translate_disk_errors
from .folder import WORK, Marker, content_digest, revision_folder, write_json, write_marker
from .hub import CARD, HubRemote, repository_type
from .progress import ProgressCounter
from .remote import RemoteFile, Snapshot
from .retries import with_retries
from .selection import hub_files

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
    """Download the files that are not in the cache; return the folder of the commit.

    A branch is stored, too, with which the cache then also works offline.
    """
    require_folder(source, [each.location for each in snapshot.files])
    name = repo_folder_name(repo_id=source.repository, repo_type=repository_type(source))
    repository = Path(constants.HF_HUB_CACHE) / name
    files = [*snapshot.files, *([remote.card] if remote.card else [])]
    blobs = {_blob(each): replace(each, path=_blob(each)) for each in files}
    missing = [each for name, each in blobs.items() if not (repository / "blobs" / name).exists()]
    needed = sum(each.size or 0 for each in missing)
    progress.expect(snapshot.known_bytes, snapshot.known_bytes - needed)
    with translate_disk_errors(repository):
        repository.mkdir(parents=True, exist_ok=True)
        require_space(source, needed, repository)
        Downloader(remote, progress, stop).download(
            missing, repository / "blobs", repository / WORK
        )
        remove_folder(repository / WORK, ignore_errors=True)
        commit = own_path(repository, f"snapshots/{snapshot.revision}")
        for each in files:
            _point(commit, each.location, repository / "blobs" / _blob(each))
        if revision != snapshot.revision:
            reference = own_path(repository, f"refs/{revision}")
            reference.parent.mkdir(parents=True, exist_ok=True)
            write_json(reference, snapshot.revision)
    return commit


def _blob(file: RemoteFile) -> str:
    """Return the name of a file's content in the cache: its checksum on the hub."""
    assert file.checksum is not None
    return file.checksum.digest


def _point(commit: Path, path: str, blob: Path) -> None:
    """Link a path of a commit to its content, or copy it if there are no links."""
    folder, _, name = path.rpartition("/")
    pointer = (own_path(commit, folder) if folder else commit) / name
    pointer.parent.mkdir(parents=True, exist_ok=True)
    pointer.unlink(missing_ok=True)
    try:
        pointer.symlink_to(os.path.relpath(blob, pointer.parent))
    except PermissionError:  # EPERM of the file system
        shutil.copyfile(blob, pointer)


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
    """Return the SHA-256 of a file; the cache names large files by theirs."""
    name = path.resolve().name
    return name if _SHA256.fullmatch(name) else file_digest(path)


def _link(cached: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    with suppress(OSError):  # another file system
        os.link(cached.resolve(), target)
        return
    shutil.copyfile(cached, target)
