"""An object store that sends endless responses."""

from collections.abc import Iterator

import pytest

from raggrpo_api.fields.source import BucketSource, Scheme
from raggrpo_api.trainer.staging import SourceRole, StagingReason
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
    remote = BucketRemote(BucketSource(scheme, "bucket", "model"), SourceRole.MODEL)
    with pytest.raises(StagingFailed, match="sent a response of more than") as raised:
        remote.snapshot("")
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert "127.0.0.1" in str(raised.value)
    assert len(store.requests) < 10
