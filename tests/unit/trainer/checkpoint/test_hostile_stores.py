"""Object stores that send endless responses and listings to a job that reads its backups."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from raggrpo_api.foreign_bodies import MAX_BODY_BYTES
from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_buckets import answers, file_systems
from raggrpo_trainer.checkpoint import backup, examination
from raggrpo_trainer.checkpoint.folder import MAX_MARKER_BYTES
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer.checkpoints import make_claim, make_meta, make_store, shards
from support.servers.hub_server import HubHandler, HubServer

REGION = "x-amz-bucket-region"
schemes = pytest.mark.parametrize("scheme", ["s3", "gs"])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Serve 404 to requests for which no test adds an answer."""
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with HubServer() as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.url)
        yield server


def respond(store: HubServer, answer: Callable[[HubHandler], None]) -> None:
    def fault(handler: HubHandler) -> bool:
        if handler.command == "GET":
            answer(handler)
        else:
            handler.answer(404, {})
        return True

    store.faults.append(fault)


def failure(scheme: str) -> TrainerError:
    url = f"{scheme}://bucket/backups"
    with pytest.raises(TrainerError) as raised:
        next(backup.complete_backups(url, ""), None)
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert f"checkpoint.backup.url {url}" in str(raised.value)
    return raised.value


@schemes
def test_endless_response_is_limited(store: HubServer, scheme: str) -> None:
    respond(store, lambda handler: handler.answer_endlessly(200))
    assert f"more than {MAX_BODY_BYTES:,} bytes" in str(failure(scheme))
    assert len(store.requests) < 10


@schemes
def test_endless_error_is_limited(store: HubServer, scheme: str) -> None:
    respond(store, lambda handler: handler.answer_endlessly(400))
    assert f"more than {MAX_BODY_BYTES:,} bytes" in str(failure(scheme))


def test_error_of_gcs_is_one_line_without_traceback_in_log(
    store: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    text = "\x1b[31mtoken expired\nhttps://user:password@host/?key=secret " + "y" * 10_000
    respond(store, lambda handler: handler.answer(401, {"error": {"message": text}}))
    _, _, problem = str(failure("gs")).partition("gs://bucket/backups: ")
    assert problem.startswith("HttpError: token expired https://host/ yyy")
    assert len(problem.removesuffix(f"; {backup.STORE_REMEDY}")) == backup.MAX_PROBLEM
    assert caplog.records == []


@pytest.mark.parametrize(("scheme", "region"), [("s3", {}), ("s3", {REGION: "x"}), ("gs", {})])
def test_redirects_to_other_servers_are_not_followed(
    store: HubServer, scheme: str, region: dict[str, str]
) -> None:
    with HubServer() as other:
        location = {"Location": f"{other.url}/bucket", **region}
        respond(store, lambda handler: handler.answer(307, None, location, b""))
        problem = str(failure(scheme))
        assert region or f"127.0.0.1 redirects to {urlsplit(other.url).netloc}; if you" in problem
        assert other.requests == []


GCS_PAGE = {"kind": "storage#objects", "prefixes": ["backups/a/"], "nextPageToken": "more"}
S3_PAGE = (
    "<ListBucketResult><IsTruncated>true</IsTruncated><CommonPrefixes><Prefix>backups/a/</Prefix>"
    "</CommonPrefixes><NextContinuationToken>x</NextContinuationToken></ListBucketResult>"
)
EMPTY_GCS_PAGE = {"kind": "storage#objects", "nextPageToken": "more"}
EMPTY_S3_PAGE = S3_PAGE.replace("<CommonPrefixes><Prefix>backups/a/</Prefix></CommonPrefixes>", "")


@pytest.mark.parametrize(
    ("scheme", "page", "following"),
    [
        ("s3", S3_PAGE, S3_PAGE),
        ("s3", S3_PAGE, EMPTY_S3_PAGE),
        ("gs", json.dumps(GCS_PAGE), json.dumps(GCS_PAGE)),
        ("gs", json.dumps(GCS_PAGE), json.dumps(EMPTY_GCS_PAGE)),
    ],
)
def test_endless_listing_is_limited(
    store: HubServer, monkeypatch: pytest.MonkeyPatch, scheme: str, page: str, following: str
) -> None:
    def answer(handler: HubHandler) -> None:
        path = handler.path.lower()
        if "prefix=" not in path:
            handler.answer(404, {})
            return
        is_first = "token=" not in path
        handler.answer(200, None, {}, (page if is_first else following).encode())

    respond(store, answer)
    monkeypatch.setattr(backup, "MAX_ENTRIES", 20)
    message = str(failure(scheme))
    assert "has more than 20 files and folders" in message
    assert "remove some, or set another URL" in message
    assert len(store.requests) < 40


def test_marker_of_a_store_that_ignores_the_range_is_limited(store: HubServer) -> None:
    name = "backups/step_00000010.e1"

    def answer(handler: HubHandler) -> None:
        path = unquote(handler.path)
        if "alt=media" in path:
            handler.answer(200, None, {}, b"[" * (MAX_MARKER_BYTES + 1))
        elif "/o/" in path and path.partition("?")[0].endswith("/COMPLETE"):
            handler.answer(200, {"name": f"{name}/COMPLETE", "size": "100"})
        elif "prefix=" in path:
            handler.answer(200, {"kind": "storage#objects", "prefixes": [f"{name}/"]})
        else:
            handler.answer(404, {})

    respond(store, answer)
    assert f"it has more than {MAX_MARKER_BYTES} bytes" in str(failure("gs"))


def test_entries_of_a_local_url_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / f"step_{number:08}.e1").mkdir()
    monkeypatch.setattr(backup, "MAX_ENTRIES", 20)
    with pytest.raises(TrainerError, match="has more than 20 files and folders") as raised:
        next(backup.complete_backups(f"file://{tmp_path}", ""), None)
    assert f"checkpoint.backup.url file://{tmp_path}" in str(raised.value)


def test_examined_files_of_damaged_backups_are_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_store(make_claim(tmp_path / "volume"), keep_last=5, backup=tmp_path / "backups")
    for step in range(10, 60, 10):
        store.back_up(store.save(make_meta(step), shards(step)))
    for folder in (tmp_path / "backups").iterdir():
        marker = json.loads((folder / "COMPLETE").read_text())
        (folder / list(marker["files"])[-1]).unlink()
    monkeypatch.setattr(examination, "MAX_EXAMINED_FILES", 6)
    with pytest.raises(TrainerError, match="list more than 6 files") as raised:
        store.restore()
    assert f"damaged backups at checkpoint.backup.url file://{tmp_path / 'backups'}" in str(
        raised.value
    )
    assert "remove them, or set another URL" in str(raised.value)


S3_FOLDER = (
    "<ListBucketResult><IsTruncated>false</IsTruncated><CommonPrefixes>"
    "<Prefix>backups/step_00000010.e1/</Prefix></CommonPrefixes></ListBucketResult>"
)
GCS_FOLDER = {"kind": "storage#objects", "prefixes": ["backups/step_00000010.e1/"]}


@schemes
def test_retries_of_a_store_that_does_not_respond_are_limited(
    store: HubServer, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    is_over = threading.Event()
    unanswered = []

    def answer(handler: HubHandler) -> bool:
        if "prefix=backups" not in unquote(handler.path):
            unanswered.append(handler.path)
            is_over.wait(2)
            return True
        page = S3_FOLDER.encode() if scheme == "s3" else json.dumps(GCS_FOLDER).encode()
        handler.answer(200, None, {}, page)
        return True

    store.faults.append(answer)
    monkeypatch.setattr(examination, "MAX_EXAMINATION_SECONDS", 0.5)
    message = str(failure(scheme))
    is_over.set()
    assert "took more than 0.5 s (0 files examined): the store responds slowly" in message
    assert len(unanswered) == 1


class SlowFileSystem:
    """A file system whose requests take 100 s of a clock, and fail from `failing_after` on."""

    async_impl = False

    def __init__(self) -> None:
        self.now = 0.0
        self.failing_after = 600.0

    def info(self, path: str) -> dict[str, object]:
        self.now += 100
        if self.now > self.failing_after:
            raise PermissionError(path)
        return {"type": "file", "size": 1}


def test_time_to_examine_all_backups_is_limited() -> None:
    slow = SlowFileSystem()
    examined = examination.Examination("file:///backups", slow, lambda: slow.now)
    for _ in range(5):
        examined.info("file")
    slow.now += 10_000  # fetching a backup
    with pytest.raises(TrainerError, match=r"took more than 600 s \(5 files examined\)") as raised:
        examined.info("file")
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert "checkpoint.backup.url file:///backups " in str(raised.value)


def test_error_of_the_store_is_raised_unless_the_time_to_examine_backups_is_over() -> None:
    slow = SlowFileSystem()
    slow.failing_after = 0.0
    examined = examination.Examination("file:///backups", slow, lambda: slow.now)
    for _ in range(5):
        with pytest.raises(PermissionError):
            examined.info("file")
    with pytest.raises(TrainerError, match=r"took more than 600 s \(0 files examined\)"):
        examined.info("file")


NESTED_CODE = b"<Error><Code><a><b>5</b></a></Code><Message>x</Message></Error>"


@pytest.mark.parametrize(
    ("scheme", "status", "bodies", "problem"),
    [
        ("gs", 200, [json.dumps(GCS_PAGE).encode(), b'{"prefixes": []}'], "KeyError: 'kind'"),
        ("gs", 200, [json.dumps(GCS_PAGE).encode(), b'{"kind": "x"}'], "AssertionError"),
        ("gs", 200, [b'["storage#objects"]'], "AttributeError"),
        ("gs", 200, [b'{"a":' * 100_000], "RecursionError"),
        ("gs", 200, [b'{"items": [{"size": "x", "name": "a"}]}'], "ValueError"),
        ("s3", 400, [NESTED_CODE], "TypeError"),
    ],
)
def test_invalid_response_names_server_and_object(
    store: HubServer, scheme: str, status: int, bodies: list[bytes], problem: str
) -> None:
    remaining = [*bodies, *bodies[-1:] * 20]
    respond(store, lambda handler: handler.answer(status, None, {}, remaining.pop(0)))
    message = str(failure(scheme))
    server = urlsplit(store.url).netloc
    assert (
        f"{server} sent an invalid response to a request for bucket/backups ({problem}" in message
    )
    assert message.endswith(
        "; check that the endpoint is an S3-compatible or Google Cloud Storage server"
    )


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"The user project of this request is invalid: {'x' * 80}", f"invalid: {'x' * 80}"),
        ("Bucket is a requester pays bucket but no project was given", "requester pays"),
    ],
)
def test_message_of_a_request_that_gcs_rejects_is_shown(
    store: HubServer, text: str, shown: str
) -> None:
    respond(store, lambda handler: handler.answer(400, {"error": {"message": text}}))
    message = str(failure("gs"))
    assert "gs://bucket/backups: OSError: B" in message
    assert shown in message
    assert message.endswith(f"; {backup.STORE_REMEDY}")


def test_rejected_request_for_a_backup_does_not_make_it_invalid(
    store: HubServer, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(handler: HubHandler) -> None:
        if "prefix=backups" in unquote(handler.path):
            handler.answer(200, GCS_FOLDER)
        else:
            handler.answer(400, {"error": {"message": "The project is invalid"}})

    respond(store, answer)
    assert "The project is invalid" in str(failure("gs"))
    assert caplog.records == []


def serve_backup(
    store: HubServer, tmp_path: Path, respond_to: Callable[[HubHandler, str], bool]
) -> CheckpointStore:
    """Serve a backup as an S3 bucket, except requests to which `respond_to` responds.

    Returns the store of a job with an empty volume.
    """
    source = make_store(make_claim(tmp_path / "source"), backup=tmp_path / "bucket" / "backups")
    source.back_up(source.save(make_meta(10), shards(10)))

    def answer(handler: HubHandler) -> bool:
        path = unquote(urlsplit(handler.path).path)
        if respond_to(handler, path):
            return True
        if "prefix=" in handler.path:
            handler.answer(200, None, {}, S3_FOLDER.encode())
            return True
        file = tmp_path / path.lstrip("/")
        if not file.is_file():
            handler.answer(404, {})
            return True
        handler.answer(200, None, LAST_MODIFIED, file.read_bytes())
        return True

    store.faults.append(answer)
    spec = CheckpointSpec.model_validate(
        {"path": str(tmp_path / "volume"), "backup": {"url": "s3://bucket/backups"}}
    )
    return CheckpointStore(spec, make_claim(tmp_path / "volume"), "config-hash")


LAST_MODIFIED = {"Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT", "ETag": '"x"'}


def test_invalid_date_is_an_error_of_the_server(store: HubServer, tmp_path: Path) -> None:
    def respond_to(handler: HubHandler, path: str) -> bool:
        if handler.command != "HEAD" or not path.endswith("/COMPLETE"):
            return False
        handler.answer(200, None, {"Last-Modified": "Fri, 31 Dec 9999 23:59:60 GMT"}, b"x")
        return True

    restoring = serve_backup(store, tmp_path, respond_to)
    with pytest.raises(TrainerError) as raised:
        restoring.restore()
    assert "sent an invalid response to a request for bucket/backups/step_" in str(raised.value)
    assert "Invalid timestamp" in str(raised.value)


@pytest.mark.parametrize(
    ("status", "code"), [(412, "PreconditionFailed"), (416, "InvalidRange"), (400, "<a/>")]
)
def test_error_of_the_store_while_a_shard_is_read_is_no_error_of_the_volume(
    store: HubServer, tmp_path: Path, status: int, code: str
) -> None:
    def respond_to(handler: HubHandler, path: str) -> bool:
        if handler.command != "GET" or not path.endswith(".distcp"):
            return False
        handler.answer(status, None, {}, f"<Error><Code>{code}</Code></Error>".encode())
        return True

    restoring = serve_backup(store, tmp_path, respond_to)
    with pytest.raises(TrainerError) as raised:
        restoring.restore()
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert str(raised.value).startswith("cannot read bucket/backups/step_00000010.e1/")
    assert ".distcp from checkpoint.backup.url: " in str(raised.value)
    assert str(raised.value).endswith((f"; {backup.STORE_REMEDY}", f"; {answers.REMEDY}"))


@pytest.mark.parametrize("info", [{"type": "file"}, {"type": "file", "size": None}, {"size": "1"}])
def test_invalid_metadata_is_an_error_of_the_server(
    store: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, info: dict[str, object]
) -> None:
    monkeypatch.setattr(file_systems.LimitedS3, "info", lambda *_, **__: info)
    restoring = serve_backup(store, tmp_path, lambda *_: False)
    with pytest.raises(TrainerError) as raised:
        restoring.restore()
    server = urlsplit(store.url).netloc
    path = "bucket/backups/step_00000010.e1/COMPLETE"
    assert f"{server} sent an invalid response to a request for {path} (" in str(raised.value)


def test_time_to_examine_backups_excludes_fetching_one(
    store: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_fetched = []

    def respond_to(handler: HubHandler, path: str) -> bool:
        if handler.command == "GET" and path.endswith(".distcp"):
            is_fetched.append(path)
            monkeypatch.setattr(examination, "MAX_EXAMINATION_SECONDS", 0.0)
        return False

    restored = serve_backup(store, tmp_path, respond_to).restore()
    assert is_fetched
    assert restored is not None


def test_served_backup_is_restored(store: HubServer, tmp_path: Path) -> None:
    restored = serve_backup(store, tmp_path, lambda *_: False).restore()
    assert restored is not None
    assert restored.marker.step == 10
