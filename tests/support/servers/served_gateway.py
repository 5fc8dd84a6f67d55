"""A gateway with a scripted engine, and a client that calls it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from raggrpo_trainer.gateway.forwarding import Forwarder
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.gateway.tool_parsing import ReplyParser
from raggrpo_trainer.gateway.trajectory import Trajectory
from raggrpo_trainer.gateway.working_time import Timer
from support.builders.trainer.gateway_models import Says, ScriptedEngine, byte_tokenizer
from support.builders.trainer.scripted_parser import JsonCallParser

OPTIONS: dict[str, Any] = {"max_model_length": 4096, "max_tokens": 64, "max_turns": 8}


@dataclass
class Served:
    gateway: Gateway
    engine: ScriptedEngine
    url: str
    http: aiohttp.ClientSession

    def open(
        self, key: str = "key", *, temperature: float = 1.0, timer: Timer | None = None
    ) -> Trajectory:
        return self.gateway.open(key, (7, 1, 2, 3), temperature, 1.0, timer=timer)

    async def post(
        self, body: Any, path: str = "/chat/completions", key: str = "key", **headers: str
    ) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {key}"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        data = body if isinstance(body, bytes) else None
        async with self.http.post(
            self.url + path, json=None if data else body, data=data, headers=headers
        ) as response:
            return response.status, await response.json(content_type=None)


@asynccontextmanager
async def served_gateway(
    says: Says,
    tokenizer: Any = None,
    parser: ReplyParser | None = None,
    forwarder: Forwarder | None = None,
    **options: Any,
) -> AsyncIterator[Served]:
    """Serve until the block ends. `options` replace those of the gateway."""
    tokenizer = tokenizer or byte_tokenizer()
    engine = ScriptedEngine(says)
    gateway = Gateway(
        GatewayOptions(**OPTIONS | {"stop_token_ids": (tokenizer.eos_token_id,)} | options),
        tokenizer,
        engine.submit,
        parser or JsonCallParser(),
        forwarder,
    )
    try:
        async with aiohttp.ClientSession() as http:
            yield Served(gateway, engine, await gateway.start("127.0.0.1"), http)
    finally:
        await gateway.stop()
