"""Sources of a hub in the hub's own cache, which other programs of this machine share.

huggingface_hub reads HF_HOME, HF_TOKEN and HF_HUB_OFFLINE.
"""

import glob
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from huggingface_hub import constants, snapshot_download
from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

from raggrpo_api.fields.source import MAIN, HubSource
from raggrpo_api.trainer.staging import SourceRole, StagingReason

from .download import file_digest
from .failures import StagingFailed, translate_disk_errors
from .folder import Marker, content_digest, revision_folder, write_marker
from .hub import CARD, HubRemote, repository_type, translated
from .progress import ProgressCounter
from .remote import RemoteFile, Snapshot
from .retries import with_retries
from .selection import hub_files

_SHA256 = re.compile("[0-9a-f]{64}")


def stage_in_cache(
    source: HubSource, role: SourceRole, revision: str, folder: Path, progress: ProgressCounter
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
        progress.expect(snapshot.known_bytes, 0)
        cached = with_retries(lambda: _download(source, name, snapshot), progress.report)
        progress.add(snapshot.known_bytes)
    marker = _marker(source, snapshot, cached)
    if role is SourceRole.MODEL:
        return cached / source.path, marker
    target = revision_folder(folder, snapshot.revision)
    for each in snapshot.files:
        _link(cached / each.location, target / each.path)
    write_marker(target, marker)
    return marker.path(target), marker


def _download(source: HubSource, revision: str, snapshot: Snapshot) -> Path:
    """Download by branch, which the cache then also resolves offline."""
    needed = [glob.escape(each.location) for each in snapshot.files]
    with (
        translate_disk_errors(constants.HF_HUB_CACHE),
        translated(source, snapshot.revision),
    ):
        folder = Path(
            snapshot_download(
                source.repository,
                repo_type=repository_type(source),
                revision=revision,
                allow_patterns=[*needed, CARD] if source.split else needed,
            )
        )
    if folder.name != snapshot.revision:
        raise StagingFailed(
            StagingReason.CONTENT_CHANGED,
            f"{source} changed during the download; start again",
        )
    return folder


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
