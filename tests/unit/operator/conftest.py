from collections.abc import AsyncIterator

import pytest_asyncio
from aiohttp import ClientSession

from raggrpo_operator.http_api import open_session


@pytest_asyncio.fixture
async def session() -> AsyncIterator[ClientSession]:
    """The client session shared by all calls to servers of jobs."""
    async with open_session() as opened:
        yield opened
