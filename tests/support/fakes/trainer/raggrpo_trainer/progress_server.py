"""Serves one file at GET /progress."""

import http.server
import sys
from pathlib import Path


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        served = Path(sys.argv[2])
        body = served.read_bytes() if served.exists() else b""
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), _Handler).serve_forever()
