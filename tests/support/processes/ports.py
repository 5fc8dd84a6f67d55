"""Ports for test servers."""

import socket


def free_port() -> int:
    """Return a currently free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
