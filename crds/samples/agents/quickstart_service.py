"""The quickstart's application as a service: `POST {"question": ...}` returns answer and passages.

Requests run in parallel. The trace of each is passed on to its calls of the model, as by
`opentelemetry-instrument`, which needs no such code.
"""

import json
from contextvars import ContextVar
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import quickstart_agent
from openai import OpenAI

PORT = 8000
trace: ContextVar[str] = ContextVar("trace")


def pass_trace_on(call: httpx.Request) -> None:
    """Add the trace of the request that is being answered to a call of the model."""
    call.headers["traceparent"] = trace.get()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    def do_POST(self) -> None:
        """Answer the question in the body."""
        trace.set(self.headers["traceparent"])
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        print(self.headers["traceparent"], request["question"], flush=True)
        self._reply(quickstart_agent.answer(request))

    def do_GET(self) -> None:
        """Report that the service is ready."""
        self._reply({"status": "ready"})

    def _reply(self, value: object) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_request(self, *_: object) -> None:
        """Write nothing; `do_POST` prints each question."""


if __name__ == "__main__":
    client = httpx.Client(event_hooks={"request": [pass_trace_on]})
    quickstart_agent.client = OpenAI(http_client=client)
    ThreadingHTTPServer(("0.0.0.0", PORT), Handler).serve_forever()
