"""An OCI registry (distribution) in a separate process."""

import base64
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx

from tools.kind.go_programs import tool_folder

from .private_authority import Certificate
from .server_process import ServerProcess

USER, PASSWORD = "user", "password"
HTPASSWD = "user:$2b$04$WLijXkHx0q1xTDCqUYIBK.olkbg9ydUeQFBSNuDh.0XmwnMXfz2ge\n"
"""Password file for them."""
IMAGE = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


class OciRegistry(ServerProcess):
    """The registry; with `password_file` or `token_auth`, it requires a login.

    With a certificate, it serves HTTPS only.
    """

    ready_path = "/v2/"
    ready_statuses = (200, 401)

    def __init__(
        self,
        folder: Path,
        password_file: Path | None = None,
        token_auth: Mapping[str, str] | None = None,
        certificate: Certificate | None = None,
    ) -> None:
        super().__init__(certificate)
        self._folder, self._password_file, self._token_auth = folder, password_file, token_auth

    def command(self) -> Sequence[str | Path]:
        """Write the configuration, and return the command of the server."""
        config: dict[str, Any] = {
            "version": "0.1",
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "registry")}},
            "http": {"addr": self.host},
            "log": {"level": "error"},
        }
        if self._password_file is not None:
            config["auth"] = {"htpasswd": {"realm": "test", "path": str(self._password_file)}}
        if self._token_auth is not None:
            config["auth"] = {"token": dict(self._token_auth)}
        if self._certificate is not None:
            tls = {"certificate": self._certificate.file, "key": self._certificate.key}
            config["http"]["tls"] = {name: str(path) for name, path in tls.items()}
        file = self._folder / "registry.json"
        file.write_text(json.dumps(config))
        return [tool_folder("registry") / "registry", "serve", file]

    def add_image(self, name: str, layers: list[Mapping[str, bytes]], tag: str = "v1") -> str:
        """Push an image whose layers are archives of these files; return its digest."""
        described = [self._blob(name, make_layer(each)) | {"mediaType": LAYER} for each in layers]
        return self.add_manifest(name, described, tag)

    def add_manifest(self, name: str, layers: list[dict[str, Any]], tag: str = "v1") -> str:
        config = self._blob(name, b"{}") | {"mediaType": "application/vnd.oci.image.config.v1+json"}
        manifest = {"schemaVersion": 2, "mediaType": IMAGE, "config": config, "layers": layers}
        return self._put_manifest(name, manifest, tag)

    def add_index(self, name: str, digests: Mapping[str, str], tag: str = "v1") -> str:
        """Push an index of images by architecture; return its digest."""
        manifests = [
            {
                "mediaType": IMAGE,
                "digest": digest,
                "size": self._manifest_size(name, digest),
                "platform": {"os": "linux", "architecture": architecture},
            }
            for architecture, digest in digests.items()
        ]
        index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": manifests}
        return self._put_manifest(name, index, tag)

    def _manifest_size(self, name: str, digest: str) -> int:
        url = f"{self.url}/v2/{name}/manifests/{digest}"
        return int(self.http.head(url, headers={"Accept": IMAGE}).headers["Content-Length"])

    def _put_manifest(self, name: str, manifest: Mapping[str, Any], tag: str) -> str:
        response = self.http.put(
            f"{self.url}/v2/{name}/manifests/{tag}",
            content=json.dumps(manifest),
            headers={"Content-Type": manifest["mediaType"]},
        )
        response.raise_for_status()
        return response.headers["Docker-Content-Digest"]

    def _blob(self, name: str, content: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        started = self.http.post(f"{self.url}/v2/{name}/blobs/uploads/").raise_for_status()
        location = httpx.URL(started.headers["Location"])
        url = location.copy_merge_params({"digest": digest})
        self.http.put(url, content=content).raise_for_status()
        return {"digest": digest, "size": len(content)}


def make_layer(files: Mapping[str, bytes]) -> bytes:
    """Return a tar archive; a content of the form `-> target` is a link."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            if content.startswith(b"-> "):
                member.type, member.linkname = tarfile.SYMTYPE, content[3:].decode()
                archive.addfile(member)
                continue
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def docker_config(host: str, user: str = USER, password: str = PASSWORD) -> str:
    """Return the content of config.json after a login."""
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    return json.dumps({"auths": {host: {"auth": token}}})
