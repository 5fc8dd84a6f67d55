from collections.abc import AsyncIterator

import pytest_asyncio
from aiohttp import web

from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.http_api import open_session
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.rounds.heads import Head, HeadAddress, Heads

ONE, OTHER = JobKey("default", "one"), JobKey("default", "other")


class OperatorEnvironment:
    """Many heads behind one port, with the tokens they received."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.connections: set[object] = set()
        self.heads: Heads

    async def progress(self, request: web.Request) -> web.Response:
        self.tokens.append(request.headers["Authorization"])
        self.connections.add(request.transport)
        text = Progress(attempt=1, stage=Stage.TRAINING).model_dump_json(by_alias=True)
        return web.Response(text=text)

    def head(self, key: JobKey) -> Head:
        return self.heads.head(key.namespace, f"{key.name}-c1", f"token-{key.name}")


@pytest_asyncio.fixture
async def environment() -> AsyncIterator[OperatorEnvironment]:
    made = OperatorEnvironment()
    app = web.Application()
    app.add_routes([web.get("/{cluster}/progress", made.progress)])
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    base = f"http://127.0.0.1:{runner.addresses[0][1]}"
    async with open_session() as session:
        made.heads = Heads(lambda _, name: HeadAddress(f"{base}/{name}", f"{base}/{name}"), session)
        yield made
    await runner.cleanup()


async def test_head_calls_use_token_of_job_and_new_connection(
    environment: OperatorEnvironment,
) -> None:
    for key in (ONE, OTHER, ONE):
        assert await environment.head(key).progress.read() is not None

    assert environment.tokens == [f"Bearer token-{key.name}" for key in (ONE, OTHER, ONE)]
    # A kept connection could lead to a deleted pod: the address of a Service outlives it.
    assert len(environment.connections) == 3
