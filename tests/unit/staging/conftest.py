from collections.abc import Iterator
from pathlib import Path

import pytest

from support.servers.hub_server import HubServer
from support.staging import Stage


@pytest.fixture
def hub() -> Iterator[HubServer]:
    with HubServer() as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, hub: HubServer) -> Stage:
    return Stage(tmp_path, {"HF_ENDPOINT": hub.url})
