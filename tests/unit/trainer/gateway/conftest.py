"""A gateway with a scripted engine and a client."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from support.servers.served_gateway import Served, served_gateway

Serve = Callable[..., Awaitable[Served]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    async with AsyncExitStack() as stack:

        async def start(*arguments: Any, **options: Any) -> Served:
            return await stack.enter_async_context(served_gateway(*arguments, **options))

        yield start
