"""An object store that sends endless responses."""

import itertools
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from raggrpo_api.fields.source import BucketSource, Scheme
from raggrpo_api.foreign_bodies import MAX_BODY_BYTES
from raggrpo_api.trainer.staging import SourceRole, StagingReason
from raggrpo_buckets import file_systems
from raggrpo_staging import selection
from raggrpo_staging.buckets import BucketRemote
from raggrpo_staging.failures import StagingFailed
from support.servers.hub_server import HubHandler, HubServer


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Serve endless responses to GET, and 404 to other requests."""

    def answer(handler: HubHandler) -> bool:
        if handler.command != "GET":
            handler.answer(404, {})
        else:
            handler.answer_endlessly(200)
        return True

    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with HubServer() as server:
        server.faults.append(answer)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


@pytest.mark.parametrize("scheme", [Scheme.S3, Scheme.GS])
def test_endless_response_is_limited(store: HubServer, scheme: Scheme) -> None:
    with pytest.raises(StagingFailed, match="sent a response of more than") as raised:
        open_remote(scheme).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert "127.0.0.1" in str(raised.value)
    assert len(store.requests) < 10


@pytest.mark.parametrize("status", [200, 400])
@pytest.mark.parametrize("scheme", [Scheme.S3, Scheme.GS])
def test_description_has_a_lower_limit_than_content(
    store: HubServer, scheme: Scheme, status: int
) -> None:
    body = b"<a/>" * (MAX_BODY_BYTES // 4 + 1)
    send(store, lambda handler: handler.answer(status, None, {}, body))
    with pytest.raises(StagingFailed, match=f"more than {MAX_BODY_BYTES:,} bytes"):
        open_remote(scheme).snapshot("")


@pytest.mark.parametrize("scheme", [Scheme.S3, Scheme.GS])
def test_slow_description_is_limited(
    store: HubServer, monkeypatch: pytest.MonkeyPatch, scheme: Scheme
) -> None:
    monkeypatch.setattr("raggrpo_buckets.responses.MAX_BODY_SECONDS", 0.0)
    with pytest.raises(StagingFailed, match="did not complete a response within 0 s"):
        open_remote(scheme).snapshot("")


ITEM = {"name": "model/model.safetensors", "bucket": "bucket", "size": "7"}


@pytest.mark.parametrize("body", [b"<ListBucketResult", b"text", b"<a></b>"])
def test_invalid_xml_fails_without_retry(store: HubServer, body: bytes) -> None:
    send(store, lambda handler: handler.answer(200, None, {}, body))
    with pytest.raises(StagingFailed, match=r"a listing that is not valid XML .*; check") as raised:
        open_remote(Scheme.S3).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert sum(each.startswith("GET") for each in store.requests) == 1


def test_description_of_another_format_fails_without_retry(store: HubServer) -> None:
    listing = b"<ListBucketResult><Contents>text</Contents><MaxKeys>x</MaxKeys></ListBucketResult>"
    send(store, lambda handler: handler.answer(200, None, {}, listing))
    with pytest.raises(StagingFailed) as raised:
        open_remote(Scheme.S3).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert "s3://bucket describes s3://bucket/model in an unexpected format" in str(raised.value)


@pytest.mark.parametrize(
    "value",
    [
        [], None, "text", {"items": [1]}, {"items": [{"size": "1"}]}, {"items": "abc"},
        {"items": [ITEM | {"size": "x"}]}, {"items": [ITEM | {"size": "1" + "0" * 30}]},
        {"items": [ITEM | {"size": []}]}, {"items": [ITEM | {"md5Hash": "***"}]},
    ],
)  # fmt: skip
def test_unexpected_listing_names_the_store(store: HubServer, value: Any) -> None:
    send(store, lambda handler: handler.answer(200, value))
    with pytest.raises(StagingFailed) as raised:
        open_remote(Scheme.GS).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert "gs://bucket" in str(raised.value)


def send(store: HubServer, answer: Callable[[HubHandler], None]) -> None:
    """Respond to GET."""

    def fault(handler: HubHandler) -> bool:
        if handler.command != "GET":
            return False
        answer(handler)
        return True

    store.faults.insert(0, fault)


def open_remote(scheme: Scheme) -> BucketRemote:
    return BucketRemote(BucketSource(scheme, "bucket", "model"), SourceRole.MODEL)


def gcs_page(names: list[str]) -> bytes:
    items = [{"name": name, "bucket": "bucket", "size": "1"} for name in names]
    page = {"kind": "storage#objects", "items": items, "nextPageToken": "more"}
    return json.dumps(page).encode()


def s3_page(names: list[str]) -> bytes:
    contents = "".join(f"<Contents><Key>{name}</Key><Size>1</Size></Contents>" for name in names)
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>x</NextContinuationToken>"
    return f"<ListBucketResult>{more}{contents}</ListBucketResult>".encode()


@pytest.mark.parametrize(("scheme", "page"), [(Scheme.S3, s3_page), (Scheme.GS, gcs_page)])
def test_number_of_objects_is_limited(
    store: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
    page: Callable[[list[str]], bytes],
) -> None:
    listed = itertools.count()

    def answer(handler: HubHandler) -> bool:
        is_listing = "prefix=" in handler.path
        names = [f"model/{next(listed)}.json" for _ in range(10)]
        handler.answer(*(200, {}, {}, page(names)) if is_listing else (404, {}))
        return True

    store.faults.insert(0, answer)
    monkeypatch.setattr(selection, "MAX_ENTRIES", 45)
    with pytest.raises(StagingFailed, match="model has more than 45 files and") as raised:
        open_remote(scheme).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert next(listed) < 100


@pytest.mark.parametrize(("scheme", "page"), [(Scheme.S3, s3_page), (Scheme.GS, gcs_page)])
def test_time_of_listing_is_limited(
    store: HubServer,
    monkeypatch: pytest.MonkeyPatch,
    scheme: Scheme,
    page: Callable[[list[str]], bytes],
) -> None:
    def answer(handler: HubHandler) -> None:
        is_listing = "prefix=" in handler.path
        handler.answer(*(200, {}, {}, page(["model/a.json"])) if is_listing else (404, {}))

    send(store, answer)
    monkeypatch.setattr(file_systems, "MAX_LISTING_SECONDS", 0.2)
    with pytest.raises(StagingFailed, match=r"the listing takes more than 0\.2 s"):
        open_remote(scheme).snapshot("")
    sent = len(store.requests)
    time.sleep(0.2)
    assert len(store.requests) == sent


def test_replaced_gcs_object_is_not_read(store: HubServer) -> None:
    item = ITEM | {"generation": "17"}

    def answer(handler: HubHandler) -> None:
        if "prefix=" in handler.path:
            handler.answer(200, {"kind": "storage#objects", "items": [item]})
        elif "alt=media" in handler.path and "generation=17" not in handler.path:
            handler.answer(206, None, {}, b"another")
        else:
            handler.answer(404, {})

    send(store, answer)
    remote = open_remote(Scheme.GS)
    (file,) = remote.snapshot("").files
    with pytest.raises(StagingFailed, match="was replaced or deleted during the") as raised:
        list(remote.chunks(file, 0, 7))
    assert raised.value.reason is StagingReason.CONTENT_CHANGED
    assert "gs://bucket/model/model.safetensors" in str(raised.value)


ENTITIES = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10 if i else "x"}">' for i in range(4))


@pytest.mark.parametrize("status", [200, 400, 500])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize(
    "start",
    ["<!DOCTYPE x []>", "<?xml version='1.0'?><!-- --><!DOCTYPE x SYSTEM 'file:///etc/passwd'>",
     f"<!DOCTYPE ListBucketResult [{ENTITIES}]>"],
)  # fmt: skip
def test_document_type_of_xml_is_rejected_at_once(
    store: HubServer, status: int, encoding: str, start: str
) -> None:
    body = f"{start}<ListBucketResult><Name>&e3;</Name></ListBucketResult>".encode(encoding)
    send(store, lambda handler: handler.answer(status, {}, {}, body))
    with pytest.raises(StagingFailed, match="sent XML with a document type") as raised:
        open_remote(Scheme.S3).snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert sum(each.startswith("GET") for each in store.requests) == 1
