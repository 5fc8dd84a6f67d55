"""A registry with endless manifests, and layers made to exhaust memory or a volume."""

import gzip
import hashlib
import io
import json
import lzma
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from raggrpo_api.fields.source import ImageSource
from raggrpo_api.limits import MIN_EXPANDED_BYTES
from raggrpo_api.trainer.staging import SourceRole, StagingReason
from raggrpo_staging import registry as registry_module
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.registry import ImageRemote
from raggrpo_staging.web import MAX_CHALLENGE, limit_session
from support.servers.hub_server import HubHandler, HubServer

DIGEST = f"sha256:{'a' * 64}"
LAYER = {"digest": DIGEST, "size": 7}
SOURCE = ImageSource("registry.example.com", "model")
Write = Callable[[tarfile.TarFile], None]


def add(archive: tarfile.TarFile, name: str, size: int, content: bytes = b"") -> None:
    member = tarfile.TarInfo(name)
    member.size = size
    archive.addfile(member, io.BytesIO(content or bytes(size)))


def zeros(archive: tarfile.TarFile) -> None:
    add(archive, "models/model.safetensors", MIN_EXPANDED_BYTES + 1)


def zeros_elsewhere(archive: tarfile.TarFile) -> None:
    add(archive, "other/file", MIN_EXPANDED_BYTES + 1)


def long_attributes(archive: tarfile.TarFile) -> None:
    archive.format = tarfile.PAX_FORMAT
    member = tarfile.TarInfo("models/config.json")
    member.pax_headers = {"comment": "x" * 3_000_000}
    archive.addfile(member)


def long_name(archive: tarfile.TarFile) -> None:
    archive.format = tarfile.GNU_FORMAT
    archive.addfile(tarfile.TarInfo("models/" + "x" * 3_000_000))


def with_hole(archive: tarfile.TarFile) -> None:
    member = tarfile.TarInfo("models/config.json")
    member.type, member.size = tarfile.GNUTYPE_SPARSE, 512
    header = bytearray(member.tobuf(tarfile.GNU_FORMAT))
    header[386:410] = b"00000000000\0" + b"00000001000\0"  # a part at 0 of 512 bytes
    header[483:495] = b"00010000000\0"  # 2 MiB in all
    header[148:156] = b"%06o\0 " % (sum(header[:148]) + 8 * ord(" ") + sum(header[156:]))
    assert archive.fileobj is not None
    archive.fileobj.write(header + bytes(512))


def negative_size(archive: tarfile.TarFile) -> None:
    archive.format = tarfile.GNU_FORMAT
    member = tarfile.TarInfo("other/a")
    member.size = -5
    archive.addfile(member)


def many_members(archive: tarfile.TarFile) -> None:
    for number in range(20):
        add(archive, f"other/{number}", 0)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (zeros, "more than"), (zeros_elsewhere, "more than"),
        (long_attributes, "attributes of a file are too long"),
        (long_name, "attributes of a file are too long"), (many_members, "more than 10 files"),
        (with_hole, "config.json is a link or a special file"), (negative_size, "negative size"),
    ],
)  # fmt: skip
def test_layer_is_extracted_within_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Write, words: str
) -> None:
    monkeypatch.setattr(registry_module, "MAX_MEMBERS", 10)
    archives, folder = tmp_path / "archives", tmp_path / "model"
    archives.mkdir()
    with tarfile.open(archives / "0000", "w:gz", compresslevel=1) as archive:
        write(archive)

    with pytest.raises(StagingFailed, match=words) as raised:
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)

    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert str(SOURCE) in str(raised.value)
    assert not folder.exists()


def test_layers_are_extracted_within_common_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_module, "MIN_EXPANDED_BYTES", 3 * 2**20)
    archives = tmp_path / "archives"
    archives.mkdir()
    for number in range(4):
        with tarfile.open(archives / f"{number:04}", "w:gz") as archive:
            add(archive, f"models/{number}.json", 2**20)
    with pytest.raises(StagingFailed, match="more than"):
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, tmp_path / "model")


@pytest.mark.parametrize("name", [".wh...", ".wh..", ".wh.", ".wh./", "1_Pooling/.wh..."])
def test_whiteout_removes_nothing_outside_of_its_folder(tmp_path: Path, name: str) -> None:
    archives, folder = tmp_path / "archives", tmp_path / "revisions" / "new"
    old = tmp_path / "revisions" / "old"
    for each in (archives, folder, old):
        each.mkdir(parents=True)
    (old / "model.safetensors").touch()
    with tarfile.open(archives / "0000", "w") as archive:
        add(archive, "models/config.json", 0)
        add(archive, f"models/{name}", 0)

    with pytest.raises(StagingFailed):
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)

    assert (old / "model.safetensors").exists()
    assert (folder / "config.json").exists()


def sparse() -> bytes:
    """Return a layer with a file of 8 GB that consists of a hole (GNU format)."""
    size = b"\x80" + (8 << 30).to_bytes(11)
    header = bytearray(tarfile.TarInfo("models/model.safetensors").tobuf(tarfile.GNU_FORMAT))
    header[156:157] = tarfile.GNUTYPE_SPARSE
    header[386:410] = b"%011o\0%011o\0" % (0, 0)
    header[483:495] = size
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + bytes(1024)


def layer() -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        add(archive, "models/model.safetensors", 100_000)
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [sparse(), layer()[:100], gzip.compress(b"x" * 2000), b"\xfd7zXZ\0" * 99, b""],
    ids=["sparse", "cut", "no tar", "damaged xz", "empty"],  # gzip data has a time stamp
)
def test_damaged_layer_is_reported(tmp_path: Path, content: bytes) -> None:
    archives, folder = tmp_path / "archives", tmp_path / "model"
    archives.mkdir()
    (archives / "0000").write_bytes(content)
    with pytest.raises(StagingFailed) as raised:
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)
    assert raised.value.reason in (StagingReason.UNSUITABLE_CONTENT, StagingReason.NOT_FOUND)


def wrong_checksum() -> bytes:
    content = bytearray(layer())
    content[-8] ^= 1
    return bytes(content)


def damaged_header(*, after: bool, is_cut: bool = False) -> bytes:
    """Return a layer with a damaged header before or after the model's file."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        names = ["models/model.safetensors", "other/a"]
        for name in names if after else names[::-1]:
            add(archive, name, 512)
    data = content.getvalue()
    start = 2 * 512  # of the second file
    return gzip.compress(data[: start + 100] if is_cut else data[:start] + b"x" + data[start + 1 :])


DAMAGED = {
    "checksum": wrong_checksum(),
    "without checksum": layer()[:-8],
    "header after the model": damaged_header(after=True),
    "header of the model": damaged_header(after=False),
    "cut in a header": damaged_header(after=True, is_cut=True),
    "other data after gzip": layer() + b"other",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_after_the_files_of_the_model_is_reported(tmp_path: Path, name: str) -> None:
    archives, folder = tmp_path / "archives", tmp_path / "model"
    archives.mkdir()
    (archives / "0000").write_bytes(DAMAGED[name])
    with pytest.raises(StagingFailed, match=r"a layer is not a tar or tar.gz archive"):
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)


def test_zeros_after_the_end_of_a_layer_are_limited(tmp_path: Path) -> None:
    archives, folder = tmp_path / "archives", tmp_path / "model"
    archives.mkdir()
    rest = gzip.compress(bytes(MIN_EXPANDED_BYTES), 1)
    (archives / "0000").write_bytes(layer() + rest)
    with pytest.raises(StagingFailed, match="more than"):
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)


@pytest.mark.parametrize("name", ["whole", "without end", "padded"])
def test_intact_layer_is_extracted(tmp_path: Path, name: str) -> None:
    archives, folder = tmp_path / "archives", tmp_path / "model"
    archives.mkdir()
    data = gzip.decompress(layer())
    end = 512 + -(-100_000 // 512) * 512
    contents = {"whole": data, "without end": data[:end], "padded": data + bytes(20_000)}
    (archives / "0000").write_bytes(gzip.compress(contents[name]))
    assert list(ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)) == [
        "model.safetensors"
    ]


def test_layer_in_other_compression_format_is_reported(tmp_path: Path) -> None:
    archives, folder = tmp_path / "archives", tmp_path / "model"
    archives.mkdir()
    (archives / "0000").write_bytes(lzma.compress(gzip.decompress(layer())))
    with pytest.raises(StagingFailed, match=r"not a tar or tar.gz archive"):
        ImageRemote(SOURCE, SourceRole.MODEL).unpack(archives, folder)
    assert not folder.exists()


@pytest.fixture
def responses(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[HubServer, list[Any]]]:
    """Serve an image whose manifest is the item of a list, or is written by it."""
    monkeypatch.setenv("NO_PROXY", "*")
    manifest: list[Any] = []

    def answer(handler: HubHandler) -> bool:
        if "/manifests/" not in handler.path:
            handler.answer(200, {})
        elif callable(manifest[0]):
            manifest[0](handler)
        else:
            handler.answer(200, manifest[0])
        return True

    with HubServer() as server:
        server.faults.append(answer)
        yield server, manifest


def endless(status: int) -> Callable[[HubHandler], None]:
    return lambda handler: handler.answer_endlessly(status)


def compressed(handler: HubHandler) -> None:
    handler.answer(200, {}, {"Content-Encoding": "gzip"}, gzip.compress(b"{}"))


@pytest.mark.parametrize(
    "manifest",
    [
        endless(200), endless(404), endless(500), compressed, [], None, "text", 5, {"layers": 5},
        {"layers": [5]}, {"layers": [{}]}, {"layers": [LAYER | {"size": "7"}]},
        {"layers": [LAYER | {"size": -1}]}, {"layers": [LAYER | {"size": True}]},
        {"layers": [LAYER | {"digest": 5}]}, {"layers": [LAYER | {"digest": "sha256:../x"}]},
        {"layers": [LAYER | {"digest": f"shake_128:{'a' * 64}"}]},
        {"layers": [LAYER | {"annotations": 5}]}, {"manifests": 5}, {"manifests": []},
        {"manifests": [{"digest": 5, "platform": 5}]}, {"layers": []}, {"layers": None}, {},
    ],
)  # fmt: skip
def test_unexpected_manifest_is_reported(
    responses: tuple[HubServer, list[Any]], manifest: Any
) -> None:
    server, manifests = responses
    manifests.append(manifest)
    host = server.url.removeprefix("http://")
    with pytest.raises(StagingFailed) as raised:
        ImageRemote(ImageSource(host, "model", "v1"), SourceRole.MODEL).snapshot("")
    assert raised.value.reason in (
        StagingReason.UNSUITABLE_CONTENT,
        StagingReason.CHECKSUM_MISMATCH,
    )
    assert "127.0.0.1" in str(raised.value)


def test_index_in_an_index_is_reported(responses: tuple[HubServer, list[Any]]) -> None:
    server, manifests = responses
    index = json.dumps({"manifests": [{"digest": "x"}]}).encode()
    digest = f"sha256:{hashlib.sha256(index).hexdigest()}"

    def answer(handler: HubHandler) -> None:
        is_second = handler.path.endswith(digest)
        handler.answer(200, {"manifests": [{"digest": digest}]}, {}, index if is_second else None)

    manifests.append(answer)
    with pytest.raises(StagingFailed, match="its manifest has no layers"):
        open_image(server).snapshot("")


def open_image(server: HubServer) -> ImageRemote:
    host = server.url.removeprefix("http://")
    return ImageRemote(ImageSource(host, "model", "v1"), SourceRole.MODEL)


def test_long_challenge_is_rejected() -> None:
    challenge = {"WWW-Authenticate": "Bearer " + "a" * MAX_CHALLENGE}
    with HubServer() as server:
        server.faults.append(lambda handler: handler.answer(401, {}, challenge) is None)
        with pytest.raises(StagingFailed, match="a header WWW-Authenticate of more than"):
            open_image(server).snapshot("")


@pytest.mark.parametrize("charset", ["punycode", "idna", "undefined", "zlib"])
def test_charset_of_a_response_is_not_used(charset: str) -> None:
    headers = {"Content-Type": f"text/plain; charset={charset}"}
    with HubServer() as server, requests.Session() as session:
        limit_session(session, "http")
        server.faults.append(lambda handler: handler.answer(404, {}, headers, b"a-999") is None)
        assert session.get(server.url).text == "a-999"


def test_registry_with_tls_cannot_move_a_request_to_http() -> None:
    with requests.Session() as session:
        limit_session(session, "https")
        with pytest.raises(requests.exceptions.InvalidSchema):
            session.get("http://127.0.0.1:1/token")
