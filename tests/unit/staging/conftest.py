from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.hub_server import HubServer
from support.servers.oci_registry import OciRegistry
from support.staging import Stage


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciRegistry]:
    with OciRegistry(tmp_path_factory.mktemp("registry")) as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, hub: HubServer) -> Stage:
    return Stage(tmp_path, {"HF_ENDPOINT": hub.url})
