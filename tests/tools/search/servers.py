"""Third-party search servers for tests of protocol Http: Weaviate from Go, txtai from PyPI.

Each is built or installed once into the cache that outlives clones.
"""

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from support.processes.ports import free_port
from tools.kind.go_programs import cache_root, exclusive_lock, tool_folder

TXTAI = "9.14.0"
TXTAI_PACKAGES = (f"txtai=={TXTAI}", "faiss-cpu==1.15.1", "fastapi-mcp==0.4.0")
"""Installed without dependencies; torch, transformers and FastAPI are in our environment."""
START_SECONDS = 120.0


@contextmanager
def weaviate(folder: Path) -> Iterator[str]:
    """Run Weaviate with its data in a folder; yields its URL."""
    ports = [free_port() for _ in range(6)]
    env = {
        "PERSISTENCE_DATA_PATH": str(folder),
        "AUTHENTICATION_ANONYMOUS_ACCESS_ENABLED": "true",
        "DEFAULT_VECTORIZER_MODULE": "none",
        "CLUSTER_HOSTNAME": "one",
        "CLUSTER_ADVERTISE_ADDR": "127.0.0.1",
        "CLUSTER_GOSSIP_BIND_PORT": str(ports[1]),
        "CLUSTER_DATA_BIND_PORT": str(ports[2]),
        "RAFT_PORT": str(ports[3]),
        "RAFT_INTERNAL_RPC_PORT": str(ports[4]),
        "RAFT_BOOTSTRAP_EXPECT": "1",
        "GRPC_PORT": str(ports[5]),
        "GOMEMLIMIT": "1GiB",
        "DISABLE_TELEMETRY": "true",
    }
    program = str(tool_folder("weaviate") / "weaviate-server")
    arguments = ["--host", "127.0.0.1", "--port", str(ports[0]), "--scheme", "http"]
    url = f"http://127.0.0.1:{ports[0]}"
    with _running([program, *arguments], env, folder, f"{url}/v1/.well-known/ready"):
        yield url


@contextmanager
def txtai(folder: Path) -> Iterator[str]:
    """Run txtai's API with a keyword index, which needs no model; yields its URL."""
    settings = folder / "txtai.yml"
    settings.write_text("writable: true\nembeddings:\n  keyword: true\n  content: true\n")
    port = free_port()
    command = [str(_txtai_python()), "-m", "uvicorn", "txtai.api:app", "--port", str(port)]
    url = f"http://127.0.0.1:{port}"
    with _running(command, {"CONFIG": str(settings)}, folder, f"{url}/count"):
        yield url


def _txtai_python() -> Path:
    venv = cache_root() / "tools" / f"txtai-{TXTAI}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(venv.with_name(f".{venv.name}.lock")):
        if not (venv / "done").exists():
            shutil.rmtree(venv, ignore_errors=True)
            uv = str(Path(sys.executable).with_name("uv"))
            python = str(venv / "bin" / "python")
            subprocess.run([uv, "venv", "-q", "--python", sys.executable, venv], check=True)
            install = [uv, "pip", "install", "-q", "--no-deps", "--python", python]
            subprocess.run([*install, *TXTAI_PACKAGES], check=True)
            (venv / "done").touch()
    [packages] = venv.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "ours.pth").write_text("\n".join(ours))
    return venv / "bin" / "python"


@contextmanager
def _running(
    command: Sequence[str], env: Mapping[str, str], folder: Path, ready: str
) -> Iterator[None]:
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **env}, stdout=log, stderr=log
        )
        try:
            _wait(ready, process, folder / "server.log")
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"{url} does not answer:\n{log.read_text(errors='replace')[-2000:]}")
