"""Folders of staged sources: their names, and the marker of a complete one.

FOLDER/org-name-0123abcd/REVISION/…          files
FOLDER/org-name-0123abcd/REVISION/.staged.json  marker, written last
FOLDER/org-name-0123abcd/REVISION/.partial/…    downloads in progress
"""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.source import Source, without_revision
from raggrpo_api.file_names import path_below
from raggrpo_api.foreign_files import read_limited
from raggrpo_api.limits import MAX_FOLDER_ENTRIES, MAX_INDEX_BYTES
from raggrpo_api.trainer.staging import SourceRole

MARKER = ".staged.json"
WORK = ".partial"
MAX_SLUG = 64


class Marker(ApiModel):
    """Content of a staged folder."""

    source: str
    revision: str
    is_file: bool
    digest: str
    files: Annotated[dict[str, int], Field(max_length=MAX_FOLDER_ENTRIES)]
    """Size of each file by relative path."""

    @property
    def bytes(self) -> int:
        """Total size of the files."""
        return sum(self.files.values())

    def path(self, folder: Path) -> Path:
        """Return the staged file or folder."""
        return folder / next(iter(self.files)) if self.is_file and self.files else folder


def source_folder(root: Path, source: Source, role: SourceRole) -> Path:
    """Return the folder of all revisions of a source; its files depend on the role."""
    name = str(without_revision(source))
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", name.partition("://")[2])[:MAX_SLUG].strip("-.")
    return root / f"{slug}-{hashlib.sha256(f'{role} {name}'.encode()).hexdigest()[:8]}"


def revision_folder(folder: Path, revision: str) -> Path:
    """Return the folder of a revision; `revision` may come from a server."""
    name = revision.replace(":", "-")
    is_plain = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,79}", name)
    return folder / (name if is_plain else hashlib.sha256(name.encode()).hexdigest()[:40])


def read_marker(folder: Path) -> Marker | None:
    """Return the marker of a folder, or None unless the folder is complete."""
    try:
        marker = Marker.model_validate_json(read_limited(folder / MARKER, MAX_INDEX_BYTES))
        sizes = {each: path_below(folder, each).stat().st_size for each in marker.files}
    except (OSError, ValueError):
        return None
    return marker if sizes == marker.files else None


def write_marker(folder: Path, marker: Marker) -> None:
    """Write the marker durably, after all files."""
    draft = folder / f"{MARKER}.{os.getpid()}"
    with draft.open("w") as file:
        file.write(marker.model_dump_json(by_alias=True))
        file.flush()
        os.fsync(file.fileno())
    draft.replace(folder / MARKER)


def content_digest(digests: Mapping[str, str]) -> str:
    """Return the digest of a folder from the SHA-256 of each file by relative path."""
    lines = "".join(f"{digest}  {path}\n" for path, digest in sorted(digests.items()))
    return hashlib.sha256(lines.encode()).hexdigest()


def write_json(path: Path, text: str) -> None:
    """Write a small file so that a reader never sees a part of it."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(path)
