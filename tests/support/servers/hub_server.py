"""A hub that serves repositories from memory with the protocol of the Hugging Face Hub.

Weights are served as on the hub: the URL of a file redirects to another path, which accepts ranges.
"""

import base64
import hashlib
import json
import re
import ssl
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

from .private_authority import Certificate

CHUNK_BYTES = 64 * 1024
TOKEN = "token-of-the-test"


@dataclass
class Repository:
    """Commits and branches of a repository."""

    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Content of each file by path, by commit."""
    branches: dict[str, str] = field(default_factory=dict)
    """Commit of each branch or tag."""
    is_private: bool = False
    is_gated: bool = False

    def commit(self, files: Mapping[str, bytes], branch: str = "main") -> str:
        """Replace all files of a branch; return the commit."""
        text = f"{len(self.commits)}{sorted(files)}"
        commit = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
        self.commits[commit] = dict(files)
        self.branches[branch] = commit
        return commit

    def resolve(self, revision: str) -> str | None:
        return revision if revision in self.commits else self.branches.get(revision)


Fault = Callable[["HubHandler"], bool]
"""Responds to a request and returns True, or returns False."""


class HubServer:
    """Context manager that serves the repositories."""

    def __init__(
        self,
        certificate: Certificate | None = None,
        *,
        address: tuple[str, int] = ("127.0.0.1", 0),
        host: str = "127.0.0.1",
    ) -> None:
        """Serve at `address`, with port 0 for any free port; clients use the name `host`."""
        self._certificate = certificate
        self._address, self._host = address, host
        self.repositories: dict[str, Repository] = {}
        """Repositories by `org/name` or `datasets/org/name`."""
        self.requests: list[str] = []
        """Method and path of each request."""
        self.sent = Counter[str]()
        """Bytes sent of each file, by path in its repository."""
        self.faults: list[Fault] = []
        self.seconds_per_chunk = 0.0
        self.uploads: dict[str, bytes] = {}
        self.damaged: dict[str, bytes] = {}
        """Content that is sent instead of a file's own, by path in its repository."""
        self.sizes: dict[str, int] = {}
        """Size that is reported instead of a file's own."""
        self._active = 0
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        handler = type("Handler", (HubHandler,), {"hub": self})
        self._server = ThreadingHTTPServer(self._address, handler)
        self._server.daemon_threads = True
        if self._certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self._certificate.file, self._certificate.key)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
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

    @property
    def url(self) -> str:
        scheme = "http" if self._certificate is None else "https"
        return f"{scheme}://{self._host}:{self._server.server_address[1]}"

    @property
    def cdn(self) -> str:
        """URL of the host that serves weights; with TLS, that of the certificate."""
        return self.url if self._certificate else self.url.replace("127.0.0.1", "localhost")

    def is_idle(self) -> bool:
        """Return whether no request is being answered."""
        return self._active == 0

    @contextmanager
    def answering(self) -> Iterator[None]:
        with self._lock:
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1

    def add(self, name: str, files: Mapping[str, bytes]) -> Repository:
        repository = self.repositories.setdefault(name, Repository())
        repository.commit(files)
        return repository

    def fail_once(self, pattern: str, status: int, headers: Mapping[str, str] = {}) -> None:
        """Answer the next request whose method and path match with an error."""
        self.faults.append(_once(pattern, lambda handler: handler.answer(status, {}, headers)))

    def drop_once(self, pattern: str, after: int) -> None:
        """Drop the connection of the next matching request after some bytes of the body."""

        def start(handler: "HubHandler") -> bool:
            handler.drop_after = after
            return False

        self.faults.append(_once(pattern, start))


def _once(pattern: str, act: Callable[["HubHandler"], Any]) -> Fault:
    lock, used = threading.Lock(), []

    def fault(handler: "HubHandler") -> bool:
        with lock:
            if used or not re.search(pattern, f"{handler.command} {handler.path}"):
                return False
            used.append(True)
        return act(handler) is not False

    return fault


class HubHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer
    drop_after: int | None = None

    def log_message(self, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        with self.hub.answering():
            self._dispatch()

    do_GET = do_POST = do_PUT = do_PATCH = do_HEAD  # noqa: N815

    def answer(
        self, status: int, value: Any, headers: Mapping[str, str] = {}, body: bytes | None = None
    ) -> None:
        content = json.dumps(value).encode() if body is None else body
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def answer_endlessly(self, status: int) -> None:
        """Send a body of 4 GiB, or until the client closes the connection."""
        self.send_response(status)
        self.end_headers()
        self.close_connection = True
        with suppress(OSError):
            for _ in range(4096):
                self.wfile.write(b"x" * 2**20)

    def _dispatch(self) -> None:
        self.drop_after = None
        length = int(self.headers.get("Content-Length") or 0)
        self._body = self.rfile.read(length)
        self.hub.requests.append(f"{self.command} {self.path}")
        if any(fault(self) for fault in self.hub.faults):
            return
        url = urlsplit(self.path)
        path = unquote(url.path).strip("/")
        if path.startswith("cdn/"):
            self._send_file(*path.removeprefix("cdn/").split("/", 2)[1:])
            return
        if path.startswith("put/"):
            self.hub.uploads[path.removeprefix("put/")] = self._body
            self.answer(200, {}, {"ETag": '"etag"'})
            return
        if path == "api/repos/create":
            self._create()
            return
        if path == "api/validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
            return
        self._repository(path, parse_qs(url.query))

    def _repository(self, path: str, query: Mapping[str, list[str]]) -> None:
        form = re.fullmatch(
            r"(?:api/)?(?:models/)?(?P<name>(?:datasets/)?[^/]+/[^/]+?)(?:\.git)?"
            r"(?:/(?P<verb>revision|tree|paths-info|resolve|preupload|commit|branch|info)/?(?P<rest>.*))?",
            path,
        )
        assert form is not None, path
        repository = self.hub.repositories.get(form["name"])
        token = self.headers.get("Authorization", "")
        if token not in ("", f"Bearer {TOKEN}"):
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            self.answer(401, {}, message)
            return
        if repository is None or (repository.is_private and not token):
            # The hub hides which repositories exist.
            error = {"X-Error-Code": "RepoNotFound"} if token else {}
            self.answer(404 if token else 401, {}, error)
            return
        verb, rest = form["verb"] or "revision", form["rest"] or "main"
        if verb == "branch":
            repository.branches.setdefault(rest, repository.branches["main"])
            self.answer(200, {})
            return
        if verb in ("preupload", "commit", "info"):
            self._upload(form["name"], repository, verb, rest)
            return
        revision, _, below = rest.partition("/")
        if rest.startswith("refs/"):
            revision, below = "/".join(rest.split("/")[:3]), "/".join(rest.split("/")[3:])
        commit = repository.resolve(revision)
        if commit is None:
            self.answer(404, {}, {"X-Error-Code": "RevisionNotFound"})
            return
        files = repository.commits[commit]
        if verb == "revision":
            siblings = [{"rfilename": each} for each in files]
            value = {"id": form["name"], "sha": commit, "siblings": siblings}
            self.answer(200, value | {"private": False, "gated": repository.is_gated})
        elif verb == "tree":
            chosen = {p: c for p, c in files.items() if not below or p.startswith(f"{below}/")}
            if not chosen:
                self.answer(404, {}, {"X-Error-Code": "EntryNotFound"})
                return
            entries = [_entry(p, c) for p, c in chosen.items()]
            self.answer(200, [e | self._reported_size(e["path"]) for e in entries])
        elif verb == "paths-info":
            form_paths = parse_qs(self._body.decode()).get("paths", [])
            paths = form_paths or json.loads(self._body or b"{}").get("paths", [])
            self.answer(200, [entry for each in paths for entry in _path_info(files, each)])
        elif repository.is_gated:
            self.answer(403 if token else 401, {}, {"X-Error-Code": "GatedRepo"})
        else:
            self._resolve(form["name"], commit, files, below)

    def _reported_size(self, path: str) -> dict[str, int]:
        return {"size": self.hub.sizes[path]} if path in self.hub.sizes else {}

    def _resolve(self, name: str, commit: str, files: Mapping[str, bytes], path: str) -> None:
        if path not in files:
            self.answer(404, {}, {"X-Error-Code": "EntryNotFound"})
            return
        content = files[path]
        etag = _oid(content)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{etag}"'}
        if _is_large(path):
            headers = {
                "X-Repo-Commit": commit, "X-Linked-Size": str(len(content)),
                "X-Linked-ETag": f'"{hashlib.sha256(content).hexdigest()}"',
                "Location": f"{self.hub.cdn}/cdn/{name.replace('/', '--')}/{commit}/{path}",
            }  # fmt: skip
            self.answer(302, {}, headers)
            return
        self._send_bytes(content, path, headers)

    def _send_file(self, commit: str, path: str) -> None:
        for repository in self.hub.repositories.values():
            if commit in repository.commits:
                content = repository.commits[commit][path]
                self._send_bytes(content, path, {"ETag": f'"{_oid(content)}"'})
                return

    def _send_bytes(self, content: bytes, path: str, headers: Mapping[str, str]) -> None:
        span = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        content = self.hub.damaged.get(path, content)
        start, stop = 0, len(content)
        if span is not None:
            start, stop = int(span[1]), min(stop, int(span[2] or stop) + 1)
        self.send_response(206 if span else 200)
        for name, text in headers.items():
            self.send_header(name, text)
        if span:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(stop - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        for at in range(start, stop, CHUNK_BYTES):
            if self.drop_after is not None and at - start >= self.drop_after:
                self.close_connection = True
                self.connection.shutdown(2)
                return
            chunk = content[at : min(stop, at + CHUNK_BYTES)]
            try:
                self.wfile.write(chunk)
            except OSError:
                self.close_connection = True
                return
            self.hub.sent[path] += len(chunk)
            if self.hub.seconds_per_chunk:
                time.sleep(self.hub.seconds_per_chunk)

    def _create(self) -> None:
        if not self.headers.get("Authorization"):
            self.answer(401, {})
            return
        value = json.loads(self._body)
        name = f"{value.get('organization') or 'user'}/{value['name']}"
        if name in self.hub.repositories:
            self.answer(409, {"url": f"{self.hub.url}/{name}"})
            return
        self.hub.add(name, {}).is_private = value.get("visibility") == "private"
        self.answer(200, {"url": f"{self.hub.url}/{name}", "id": name})

    def _upload(self, name: str, repository: Repository, verb: str, branch: str) -> None:
        if verb == "preupload":
            files = json.loads(self._body)["files"]
            modes = [
                {
                    "path": each["path"], "shouldIgnore": False,
                    "uploadMode": "lfs" if _is_large(each["path"]) else "regular",
                }
                for each in files
            ]  # fmt: skip
            self.answer(200, {"files": modes})
        elif verb == "info":
            objects = [
                {
                    "oid": each["oid"], "size": each["size"],
                    "actions": {"upload": {"href": f"{self.hub.url}/put/{each['oid']}"}},
                }
                for each in json.loads(self._body)["objects"]
            ]  # fmt: skip
            value = {"transfer": "basic", "objects": objects}
            kind = {"Content-Type": "application/vnd.git-lfs+json"}
            self.answer(200, value, kind)
        else:
            files = dict(repository.commits[repository.branches[branch]])
            for line in self._body.decode().splitlines():
                each = json.loads(line)
                match each["key"]:
                    case "file":
                        files[each["value"]["path"]] = base64.b64decode(each["value"]["content"])
                    case "lfsFile":
                        files[each["value"]["path"]] = self.hub.uploads[each["value"]["oid"]]
            commit = repository.commit(files, branch)
            value = {
                "success": True, "commitOid": commit,
                "commitUrl": f"{self.hub.url}/{name}/commit/{commit}",
            }  # fmt: skip
            self.answer(200, value)


def _is_large(path: str) -> bool:
    return path.endswith((".safetensors", ".parquet"))


def _oid(content: bytes) -> str:
    blob = b"blob %d\0" % len(content) + content
    return hashlib.sha1(blob, usedforsecurity=False).hexdigest()


def _entry(path: str, content: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content)}
    entry["oid"] = _oid(content)
    if _is_large(path):
        digest = hashlib.sha256(content).hexdigest()
        entry["lfs"] = {"oid": digest, "size": len(content), "pointerSize": 130}
    return entry


def _path_info(files: Mapping[str, bytes], path: str) -> list[dict[str, Any]]:
    if path in files:
        return [_entry(path, files[path])]
    if any(each.startswith(f"{path}/") for each in files):
        return [{"type": "directory", "path": path, "oid": "0" * 40}]
    return []
