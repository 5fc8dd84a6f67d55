"""Model files in images and artifacts of an OCI registry."""

import hashlib
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from gzip import BadGzipFile
from pathlib import Path
from typing import Any, Self

import requests
from oras import defaults

from raggrpo_api.fields.source import ImageSource
from raggrpo_api.foreign_bodies import UNEXPECTED
from raggrpo_api.foreign_files import parse_json, remove_folder
from raggrpo_api.limits import MAX_EXPANSION, MIN_EXPANDED_BYTES
from raggrpo_api.trainer.staging import SourceRole, StagingReason

from .download import file_digest
from .failures import StagingFailed, detail, own_path
from .ranges import range_headers
from .registry_client import RegistryClient
from .remote import Checksum, Remote, RemoteFile, Snapshot
from .selection import require_plain, role_files
from .web import ranged_chunks, translated

MODELS = "models/"
"""Folder of the model in an image."""
MAX_MEMBERS = 200_000
"""Files and folders in a layer."""
MAX_MEMBER_HEADER = 2**20
"""Bytes of a long name or of other attributes of a file in a layer."""
CHUNK_BYTES = 2**20
_DESCRIPTIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)
_REMOVED = ".wh."
_ALL_REMOVED = ".wh..wh..opq"


class ImageRemote(Remote):
    """Layers of an image, from which files are extracted, or files of an artifact."""

    def __init__(self, source: ImageSource, role: SourceRole) -> None:
        self._source, self._role = source, role

    def snapshot(self, revision: str) -> Snapshot:
        """Return the layers of the image, of several platforms that for Linux on x86-64."""
        try:
            return self._snapshot(revision)
        except UNEXPECTED as error:
            raise self._unsuitable(f"its manifest is invalid ({detail(error)})") from error

    def _snapshot(self, revision: str) -> Snapshot:
        digest, manifest = self._manifest(revision)
        if "manifests" in manifest:
            _, manifest = self._manifest(_platform_digest(manifest["manifests"]))
        layers = manifest.get("layers")
        if not layers:
            raise self._unsuitable("its manifest has no layers")
        titles = [_title(each) for each in layers]
        if not all(titles):
            files = [_layer_file(f"{number:04}", each) for number, each in enumerate(layers)]
            return Snapshot(digest, tuple(files), is_packed=True)
        chosen = set(role_files(titles, self._role, self._source))
        named = [_layer_file(title, each) for title, each in zip(titles, layers, strict=True)]
        return Snapshot(digest, tuple(each for each in named if each.path in chosen))

    def chunks(self, file: RemoteFile, start: int, stop: int | None) -> Iterator[bytes]:
        """Yield a range of a layer."""
        path = self._client.container.get_blob_url(file.location)
        with self._get(path, range_headers(start, stop), stream=True) as response:
            yield from ranged_chunks(response, file, start, stop)

    def unpack(self, archives: Path, folder: Path) -> Mapping[str, str]:
        """Extract the files below MODELS, later layers over earlier ones."""
        layers = sorted(archives.iterdir())
        limit = max(MIN_EXPANDED_BYTES, MAX_EXPANSION * sum(each.stat().st_size for each in layers))
        for layer in layers:
            limit -= self._extract(layer, folder, limit)
        paths = _paths(folder)
        chosen = role_files(paths, self._role, self._source)
        for each in set(paths) - set(chosen):
            (folder / each).unlink()
        return {each: file_digest(folder / each) for each in chosen}

    def _extract(self, layer: Path, folder: Path, limit: int) -> int:
        """Extract a layer of at most `limit` bytes and return its size."""
        extracted = 0
        try:
            with _Layer.open(layer) as archive:
                for number, member in enumerate(archive):
                    extracted += abs(member.size)
                    if number >= MAX_MEMBERS or max(extracted, archive.offset) > limit:
                        raise self._unsuitable(
                            f"a layer has more than {MAX_MEMBERS:,} files or {limit:,} bytes"
                        )
                    self._extract_member(archive, member, folder)
                self._read_rest(archive, limit)
        except (tarfile.TarError, BadGzipFile, EOFError, zlib.error, *UNEXPECTED) as error:
            raise self._unsuitable(
                f"a layer is not a tar or tar.gz archive ({detail(error)})"
            ) from error
        return extracted

    def _read_rest(self, archive: tarfile.TarFile, limit: int) -> None:
        """Read a layer to its end, where gzip has the checksum of the content."""
        content = archive.fileobj
        assert content is not None
        while content.read(CHUNK_BYTES):
            if content.tell() > limit:
                raise self._unsuitable(f"a layer has more than {limit:,} bytes")

    def _extract_member(
        self, archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path
    ) -> None:
        path = member.name.removeprefix("./").removeprefix("/")
        if not path.startswith(MODELS) or member.isdir():
            return
        path = path.removeprefix(MODELS)
        require_plain(path, self._source)
        target = own_path(folder, path)
        if target.name.startswith(_REMOVED):
            self._remove(target)
            return
        is_plain = member.isreg() and not member.issparse()
        content = archive.extractfile(member) if is_plain else None
        if content is None:
            raise self._unsuitable(f"/{MODELS}{path} is a link or a special file")
        target.parent.mkdir(parents=True, exist_ok=True)
        with content, target.open("wb") as file:
            shutil.copyfileobj(content, file, CHUNK_BYTES)

    def _remove(self, marker: Path) -> None:
        """Remove the file or folder that a whiteout file of a layer names, or all next to it."""
        if marker.name == _ALL_REMOVED:
            removed = [each for each in marker.parent.glob("*") if not each.name.startswith(".")]
        else:
            name = marker.name.removeprefix(_REMOVED)
            require_plain(name, self._source)
            removed = [own_path(marker.parent, name)]
        for each in removed:
            if each.is_dir():
                remove_folder(each)
            else:
                each.unlink(missing_ok=True)

    def _manifest(self, digest: str) -> tuple[str, dict[str, Any]]:
        """Return digest and content of a manifest; "" names that of the source."""
        path = self._client.container.manifest_url(digest or None)
        headers = {"Accept": ", ".join(defaults.default_manifest_accepted_media_types)}
        with self._get(path, headers, stream=False) as response:
            content = response.content
        actual = f"sha256:{hashlib.sha256(content).hexdigest()}"
        expected = digest or self._source.digest
        if expected not in ("", actual):
            raise StagingFailed(
                StagingReason.CHECKSUM_MISMATCH,
                f"{self._source}: a manifest has digest {actual}, not {expected}; check the mirror",
            )
        return actual, parse_json(content)

    def _unsuitable(self, problem: str) -> StagingFailed:
        text = f"{self._source}: {problem}; build the image with regular files below /{MODELS}"
        return StagingFailed(StagingReason.UNSUITABLE_CONTENT, text)

    @contextmanager
    def _get(
        self, path: str, headers: dict[str, str], *, stream: bool
    ) -> Iterator[requests.Response]:
        client = self._client
        with (
            translated(self._source.registry),
            client.do_request(
                f"{client.prefix}://{path}", headers=headers, stream=stream
            ) as response,
        ):
            yield response

    @cached_property
    def _client(self) -> RegistryClient:
        return RegistryClient(self._source)


class _Member(tarfile.TarInfo):
    """Header of a file in a layer; tarfile reads those that describe the next one into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Return a header. Raises ReadError if it is damaged, which tarfile takes for the end."""
        try:
            header = super().frombuf(buf, encoding, errors)
        except (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError) as error:  # type: ignore[attr-defined]
            raise tarfile.ReadError(str(error)) from error
        if header.size > MAX_MEMBER_HEADER and header.type in _DESCRIPTIONS:
            raise tarfile.ReadError("the attributes of a file are too long")
        if header.size < 0:
            raise tarfile.ReadError("a file has a negative size")
        return header


class _Layer(tarfile.TarFile):
    """A tar or tar.gz archive. Other compression formats can need any amount of memory."""

    OPEN_METH = {"tar": "taropen", "gz": "gzopen"}
    tarinfo = _Member


def _platform_digest(manifests: Sequence[Mapping[str, Any]]) -> str:
    platform = {"os": "linux", "architecture": "amd64"}
    for each in manifests:
        if platform.items() <= (each.get("platform") or {}).items():
            return str(each["digest"])
    return str(manifests[0]["digest"])


def _title(layer: Mapping[str, Any]) -> str:
    return str((layer.get("annotations") or {}).get(defaults.annotation_title, ""))


def _layer_file(path: str, layer: Mapping[str, Any]) -> RemoteFile:
    location = str(layer["digest"])
    algorithm, _, digest = location.partition(":")
    checksum = Checksum(algorithm=algorithm, digest=digest)
    return RemoteFile(path=path, location=location, size=layer["size"], checksum=checksum)


def _paths(folder: Path) -> list[str]:
    paths = [each.relative_to(folder) for each in folder.rglob("*") if each.is_file()]
    return [each.as_posix() for each in paths if not each.parts[0].startswith(".")]
