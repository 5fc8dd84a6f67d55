"""Fixtures of the tier with a real API server."""

import uuid
from collections.abc import Iterator

import pytest

from tools.kind.api_server import ApiServer, running_api_server


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    """A real kube-apiserver without nodes; both CRDs are installed."""
    with running_api_server(tmp_path_factory.mktemp("api-server")) as server:
        yield server
        server.all_namespaces_end()


@pytest.fixture
def namespace(api_server: ApiServer) -> Iterator[str]:
    """A namespace of its own; that all of them end is seen when the session does."""
    with api_server.namespace(f"test-{uuid.uuid4().hex[:8]}") as name:
        yield name
