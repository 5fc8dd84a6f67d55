"""Serve GET /progress of a staging or push pod, which the operator reads."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from raggrpo_api.names import ENV_PROGRESS_PORT
from raggrpo_api.trainer.staging import StagingProgress

from .progress import ProgressCounter


@contextmanager
def shown(progress: ProgressCounter) -> Iterator[None]:
    """Print and write the progress, and serve it if RAGGRPO_PROGRESS_PORT has a port."""
    port = os.environ.get(ENV_PROGRESS_PORT)
    served = serving(int(port), lambda: progress.value) if port else nullcontext()
    with served, progress.written():
        yield


@contextmanager
def serving(port: int, progress: Callable[[], StagingProgress]) -> Iterator[int]:
    """Serve the progress on a port (0: any free one) of all addresses, and yield the port."""

    class Handler(BaseHTTPRequestHandler):
        timeout = 10

        def do_GET(self) -> None:
            """Send the progress."""
            if self.path != "/progress":
                self.send_error(404)
                return
            body = progress().model_dump_json(by_alias=True).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("", port), Handler)
    thread = threading.Thread(target=server.serve_forever, name="progress-server", daemon=True)
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
