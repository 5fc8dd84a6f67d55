import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn

from raggrpo_api.spec.retrieval import EndpointRole, RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_retriever.corpus import Passage
from raggrpo_retriever.index import Bm25Index
from raggrpo_retriever.server import IndexHolder, build_app
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample
from raggrpo_trainer.rollout.actor_output import parse_actor_output

CORPUS = [
    Passage("rate", "贷款利率说明：年利率百分之四"),
    Passage("insurance", "保险产品介绍"),
    Passage("weather", "今天天气很好"),
]
CONTEXT = "客户：我想了解贷款利率"


@asynccontextmanager
async def make_knowledge_base() -> AsyncIterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    app = build_app(IndexHolder(Bm25Index(CORPUS)))
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    server.should_exit = True
    await task


def make_sales_spec(url: str) -> RetrievalSpec:
    common = {"url": f"{url}/chat", "protocol": "RagChat", "scoreThreshold": 0.5}
    return RetrievalSpec.model_validate(
        {
            "mode": "Reward",
            "endpoints": [
                {"name": "actor-8b", "role": "Actor", **common},
                {"name": "reference-32b", "role": "Reference", **common},
            ],
        }
    )


@pytest.mark.parametrize(
    ("query", "expected"), [("贷款利率", 1.0), ("保险产品介绍 保险产品介绍 保险产品介绍", 0.0)]
)
async def test_actor_output_determines_passages_and_reward(query: str, expected: float) -> None:
    fields = {"user_profile": "客户", "rewritten_query": query, "history_summary": "询问"}
    completion = f"```json\n{json.dumps(fields, ensure_ascii=False)}\n```"
    reward = RewardSpec.model_validate({"functions": [{"name": "RagScore"}]})

    async with make_knowledge_base() as url:
        spec = make_sales_spec(url)
        async with RetrievalClient(spec, {}) as client, Rewards(reward, spec) as rewards:
            for endpoint in spec.endpoints:
                await client.warm_up(endpoint.name, limit_seconds=20)
            parsed = parse_actor_output(completion, spec.actor_output)
            retrieved = {
                str(EndpointRole.ACTOR): await client.retrieve(
                    "actor-8b", CONTEXT, parsed, sample="1/0"
                ),
                str(EndpointRole.REFERENCE): await client.retrieve(
                    "reference-32b", CONTEXT, sample="1/0"
                ),
            }
            score = await rewards.score(
                RewardSample(
                    "1/0", "", completion, context=CONTEXT, fields=parsed, retrieved=retrieved
                )
            )

    assert [passage.id for passage in retrieved[EndpointRole.REFERENCE]] == ["rate"]
    assert score.total == expected
