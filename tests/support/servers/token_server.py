"""OAuth servers: one for tokens of Google's service accounts, one for those of a registry."""

import base64
import json
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlparse

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from .oci_registry import PASSWORD, USER

SERVICE, ISSUER = "registry", "tests"
_KEY = rsa.generate_private_key(public_exponent=65537, key_size=2048)


class _Server:
    """An HTTP server in a thread, whose answers a subclass computes."""

    def __enter__(self) -> Self:
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _answer(self, body: str) -> None:
                status, answer = owner.answer(self.path, dict(self.headers), body)
                content = json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/token"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    def answer(self, path: str, headers: Mapping[str, str], body: str) -> tuple[int, Any]:
        raise NotImplementedError


class TokenServer(_Server):
    """Google's token endpoint, which answers each request alike and verifies its signature."""

    def __init__(self, status: int, answer: Mapping[str, str]) -> None:
        self._answer, self.is_signed = (status, answer), False

    def answer(self, path: str, headers: Mapping[str, str], body: str) -> tuple[int, Any]:
        """Verify the signature of the assertion (RFC 7523)."""
        [assertion] = parse_qs(body)["assertion"]
        signed, _, signature = assertion.rpartition(".")
        try:
            _KEY.public_key().verify(
                _decoded(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
            self.is_signed = True
        except InvalidSignature:
            self.is_signed = False
        return self._answer


class RegistryTokens(_Server):
    """The token service of a registry (distribution's token authentication)."""

    def __init__(self, folder: Path) -> None:
        self.certificate = folder / "token.crt"
        self._certificate = _self_signed()
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))
        self.scopes: list[str] = []

    def config(self) -> Mapping[str, str]:
        """Return the `auth.token` section of the registry."""
        return {
            "realm": self.url,
            "service": SERVICE,
            "issuer": ISSUER,
            "rootcertbundle": str(self.certificate),
        }

    def answer(self, path: str, headers: Mapping[str, str], body: str) -> tuple[int, Any]:
        """Return a token for the requested scope, if the password is correct."""
        expected = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if headers.get("Authorization") != f"Basic {expected}":
            return 401, {"errors": [{"code": "UNAUTHORIZED"}]}
        scopes = parse_qs(urlparse(path).query).get("scope", [])
        self.scopes += scopes
        return 200, {"token": self._token(scopes)}

    def _token(self, scopes: list[str]) -> str:
        named = [each.split(":") for each in " ".join(scopes).split()]
        now = int(time.time())
        claims = {
            "iss": ISSUER, "sub": USER, "aud": SERVICE, "jti": "1",
            "iat": now, "nbf": now - 10, "exp": now + 300,
            "access": [
                {"type": kind, "name": name, "actions": actions.split(",")}
                for kind, name, actions in named
            ],
        }  # fmt: skip
        der = self._certificate.public_bytes(serialization.Encoding.DER)
        header = {"alg": "RS256", "typ": "JWT", "x5c": [base64.b64encode(der).decode()]}
        signed = f"{_encoded(json.dumps(header).encode())}.{_encoded(json.dumps(claims).encode())}"
        signature = _KEY.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return f"{signed}.{_encoded(signature)}"


def write_service_account(folder: Path, token_uri: str) -> Path:
    """Write the key file of a service account."""
    key = _KEY.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {
        "type": "service_account", "project_id": "project", "private_key_id": "1",
        "client_email": "trainer@project.example.com", "client_id": "1",
        "private_key": key.decode(), "token_uri": token_uri,
    }  # fmt: skip
    file = folder / "account.json"
    file.write_text(json.dumps(account))
    return file


def _self_signed() -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, ISSUER)])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(_KEY.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(_KEY, hashes.SHA256())
    )


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
