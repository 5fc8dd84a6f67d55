"""A registry that refers to another server, which requests the credentials of the registry."""

import base64
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.fields.source import ImageSource
from raggrpo_api.trainer.staging import UPLOADING, SourceRole, StagingReason
from raggrpo_staging import push as push_module
from raggrpo_staging.failures import StagingFailed
from raggrpo_staging.progress import ProgressCounter
from raggrpo_staging.registry import ImageRemote
from raggrpo_staging.registry_client import RegistryClient
from support.servers.hub_server import HubHandler, HubServer
from support.servers.oci_registry import PASSWORD, USER, docker_config
from support.servers.private_authority import make_certificate

WEIGHTS = b"weights"
DIGEST = f"sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"
TOKEN = "token-of-the-registry"
BASIC = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
TITLE = "org.opencontainers.image.title"
MANIFEST = {
    "layers": [{"digest": DIGEST, "size": 7, "annotations": {TITLE: "model.safetensors"}}]
}  # fmt: skip


class Referring:
    """A registry with logins, and another server to which it refers for blobs."""

    def __init__(self, registry: HubServer, other: HubServer) -> None:
        self.registry, self.other = registry, other
        self.host = registry.url.removeprefix("http://")
        self.source = ImageSource(self.host, "model", "v1")
        self.challenge = f'Bearer realm="{registry.url}/token",service="r",scope="s"'
        self.token: Any = {"token": TOKEN}
        self.other_status, self.other_challenge = 200, ""
        self.received: list[str] = []
        """All headers that the other server received."""
        registry.faults.append(self._answer)
        other.faults.append(self._answer_elsewhere)

    def _answer(self, handler: HubHandler) -> bool:
        login = handler.headers.get("Authorization", "")
        location = {"Location": f"{self.other.url}/blob"}
        if handler.path.startswith("/token"):
            handler.answer(200 if login == f"Basic {BASIC}" else 401, self.token)
        elif login not in (f"Bearer {TOKEN}", f"Basic {BASIC}"):
            handler.answer(401, {}, {"WWW-Authenticate": self.challenge})
        elif "/manifests/" in handler.path:
            handler.answer(200, MANIFEST)
        elif handler.command == "POST":
            handler.answer(202, {}, location)
        elif handler.command == "HEAD":
            handler.answer(404, {})
        else:
            handler.answer(307, {}, location)
        return True

    def _answer_elsewhere(self, handler: HubHandler) -> bool:
        self.received.append(str(handler.headers))
        challenge = {"WWW-Authenticate": self.other_challenge} if self.other_challenge else {}
        handler.answer(self.other_status, {"token": "x"}, challenge, WEIGHTS)
        return True

    def download(self) -> bytes:
        remote = ImageRemote(self.source, SourceRole.MODEL)
        [file] = remote.snapshot("").files
        return b"".join(remote.chunks(file, 0, file.size))


@pytest.fixture
def servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Referring]:
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with HubServer() as registry, HubServer() as other:
        servers = Referring(registry, other)
        (tmp_path / "config.json").write_text(docker_config(servers.host))
        yield servers


def require_no_credentials(servers: Referring) -> None:
    assert servers.received
    for each in servers.received:
        assert "authorization" not in each.lower()
        assert BASIC not in each
        assert TOKEN not in each


@pytest.mark.parametrize("kind", ["Bearer", "Basic"])
@pytest.mark.parametrize("status", [200, 401, 403])
@pytest.mark.parametrize("requested", ["Bearer", "Basic", ""])
def test_server_of_a_blob_receives_no_credentials(
    servers: Referring, kind: str, status: int, requested: str
) -> None:
    if kind == "Basic":
        servers.challenge = 'Basic realm="r"'
    servers.other_status = status
    servers.other_challenge = f'{requested} realm="{servers.other.url}/token"' if requested else ""
    if status == 200:
        assert servers.download() == WEIGHTS
    else:
        with pytest.raises(StagingFailed) as raised:
            servers.download()
        assert raised.value.reason is StagingReason.ACCESS_DENIED
        host = servers.other.url.removeprefix("http://")
        assert f"{host}, to which {servers.host} redirects, denied access" in str(raised.value)
        assert "DOCKER_CONFIG" not in str(raised.value)
    require_no_credentials(servers)


@pytest.mark.parametrize("kind", ["Bearer", "Basic"])
def test_server_of_an_upload_receives_no_credentials(
    servers: Referring, tmp_path: Path, kind: str
) -> None:
    if kind == "Basic":
        servers.challenge = 'Basic realm="r"'
    servers.other_status = 401
    servers.other_challenge = f'{kind} realm="{servers.other.url}/token"'
    folder = tmp_path / "export"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(WEIGHTS)
    with pytest.raises(StagingFailed, match=r"to which .* redirects, denied access"):
        push_module.push(folder, servers.source, ProgressCounter(None, UPLOADING))
    require_no_credentials(servers)


@pytest.mark.parametrize(
    ("realm", "words"),
    [
        ("", "without a valid realm"), ("file:///etc/passwd", "without a valid realm"),
        ("http://[", "without a valid realm"), ("registry.example.com", "without a valid realm"),
        ("http://169.254.169.254/token", "a link-local address"),
        ("http://2852039166/token", "a link-local address"),
        ("http://[fd00:ec2::254]/token", "a link-local address"),
    ],
)  # fmt: skip
def test_invalid_realm_is_reported(servers: Referring, realm: str, words: str) -> None:
    servers.challenge = f'Bearer realm="{realm}",service="r"' if realm else 'Bearer service="r"'
    with pytest.raises(StagingFailed, match=words) as raised:
        servers.download()
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT
    assert servers.host in str(raised.value)


@pytest.mark.parametrize(
    "token", [[1], 5, None, "x", {}, {"token": 5}, {"token": ["x"]}, {"token": "a\nb"}]
)
def test_login_without_token_is_reported(servers: Referring, token: Any) -> None:
    servers.token = token
    with pytest.raises(StagingFailed, match="answered a login without a token") as raised:
        servers.download()
    assert raised.value.reason is StagingReason.UNSUITABLE_CONTENT


def test_failure_of_a_token_server_is_transient(servers: Referring) -> None:
    servers.registry.fail_once("GET /token", 503)
    servers.registry.faults.reverse()
    with pytest.raises(StagingFailed, match="HTTP 503") as raised:
        servers.download()
    assert raised.value.is_transient


def test_realm_without_tls_receives_no_credentials_of_registry_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path)
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate.authority))
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with HubServer(certificate) as registry, HubServer() as theirs:
        challenge = {"WWW-Authenticate": f'Bearer realm="{theirs.url}/token"'}
        registry.faults.append(lambda handler: handler.answer(401, {}, challenge) is None)
        host = registry.url.removeprefix("https://")
        (tmp_path / "config.json").write_text(docker_config(host))
        client = RegistryClient(ImageSource(host, "model", "v1"))
        with pytest.raises(
            StagingFailed, match=r"requests a login at 127\.0\.0\.1, which is not https"
        ):
            client.do_request(f"https://{host}/v2/model/manifests/v1")
        assert theirs.requests == []
