"""Ports for servers of the tests."""

import socket


def free_port() -> int:
    """Return a port of the loopback interface that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
