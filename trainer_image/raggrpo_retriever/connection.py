"""Connections with a limit on data that precedes the check of the token.

httptools, which uvicorn prefers, keeps heads, trailers and pipelined requests of any size.
"""

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_HEAD_BYTES = 64 * 2**10
"""Maximum size of a head, of trailers, and of requests that wait for an earlier response."""


class LimitedConnection(H11Protocol):
    """A connection whose client gets status 400, or is disconnected, beyond MAX_HEAD_BYTES."""

    def data_received(self, data: bytes) -> None:
        """Process data; close the connection if too many requests wait."""
        super().data_received(data)
        waiting, _ = self.conn.trailing_data
        if len(waiting) > MAX_HEAD_BYTES:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Reject malformed data and close the connection; a request has one response at most."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        self.transport.close()
        if self.cycle is not None:
            self.cycle.disconnected = True
