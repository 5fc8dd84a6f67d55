"""Talk to a gateway in front of a real vLLM engine, in a separate process.

Usage: gateway_probe.py MODEL_FOLDER → one JSON line of measurements.
"""

import asyncio
import json
import os
import random
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai

from raggrpo_api.spec.monitoring import LogLevel
from raggrpo_trainer.data.tokenizer import load_tokenizer
from raggrpo_trainer.engines.engine_options import engine_environment
from raggrpo_trainer.engines.in_process_engine import InProcessEngine
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.gateway.protocol import ChatRequest, parse_request
from raggrpo_trainer.gateway.rendering import iterates_content, template_message
from raggrpo_trainer.gateway.tool_parsing import ParserProcess, SampledReply
from raggrpo_trainer.gateway.trajectory import Row
from raggrpo_trainer.weights.backend import WeightTransferBackend
from support.builders.trainer.gateway_models import TEMPLATES
from support.engines.engine_parity import options

CONTEXT = 1024
TEMPERATURE = 0.7
NUM_TRAJECTORIES = 6
TOOLS: Any = [
    {"type": "function", "function": {"parameters": {"type": "object"}, "name": "search"}}
]
REPLIES = [
    '<tool_call>{"name":"search","arguments":{"query":"fox"}}</tool_call>',
    'so\n<tool_call>\n{"name": "search", "arguments": {"query": "fox"}}\n</tool_call>',
    '<tool_call>{"name":',
    "plain",
]
PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
CALL = {"id": "i", "type": "function", "function": {"name": "f", "arguments": '{"b": 1, "a": 2}'}}
CONVERSATIONS: list[list[Any]] = [
    [{"role": "user", "content": PARTS}],
    [
        {"role": "user", "content": "q", "name": "me"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None},
        {"role": "tool", "tool_call_id": "i", "content": PARTS},
        {"role": "assistant", "content": "x", "reasoning_content": "r", "tool_calls": []},
        {"role": "user", "content": ""},
    ],
    [
        {"role": "user", "content": "q"},
        {"role": "assistant", "tool_calls": [CALL | {"function": {"name": "f", "arguments": "{"}}]},
    ],
]


async def measure(folder: str) -> dict[str, Any]:
    settings = replace(
        options(Path(folder)),
        max_model_len=CONTEXT,
        max_num_batched_tokens=2048,
        max_num_seqs=32,
        enable_chunked_prefill=True,
        kv_cache_tokens=0,
    )
    engine = InProcessEngine(settings)
    tokenizer = load_tokenizer(folder)
    parser = ParserProcess(folder, "hermes")
    await parser.start()
    gateway = Gateway(
        GatewayOptions(CONTEXT, 24, 4, (tokenizer.eos_token_id,)),
        tokenizer,
        lambda each: engine.start(each),
        parser,
    )
    url = await gateway.start("127.0.0.1")
    rows = [await trajectories(gateway, url, order) for order in (1, -1)]
    measured = {
        "rows": len(rows[0]),
        "sampled": sum(sum(row.sampled) for row in rows[0]),
        "order_free": rows[0] == rows[1],
        "gap": max_gap(folder, rows[0]),
        "parsed": [await parse(parser, text) for text in REPLIES],
        "rendered": rendered_messages(),
        "served": [served_messages(messages) for messages in CONVERSATIONS],
        "tools": parsed_request([{"role": "user", "content": "q"}]).template_tools,
        "served_tools": [each.model_dump() for each in served_request(CONVERSATIONS[0]).tools],
        "content_formats": [content_formats(each) for each in TEMPLATES.values()],
    }
    await gateway.stop()
    await parser.close()
    return measured


async def trajectories(gateway: Gateway, url: str, order: int) -> list[Row]:
    """Run trajectories at once, opened in an order; return all rows in the order of samples."""
    opened = {
        i: gateway.open(f"{order}-{i}", (0, 1, 2, i), TEMPERATURE, 1.0)
        for i in range(NUM_TRAJECTORIES)
    }
    await asyncio.gather(*(talk(url, f"{order}-{i}", i) for i in sorted(opened)[::order]))
    for i in opened:
        await gateway.close(f"{order}-{i}")
    return [row for trajectory in opened.values() for row in trajectory.rows()]


async def talk(url: str, key: str, seed: int) -> None:
    """Continue, strip and branch a conversation, as applications do."""
    chance = random.Random(seed)
    messages: list[Any] = [{"role": "user", "content": f"t{seed} t1"}]
    async with openai.AsyncOpenAI(base_url=url, api_key=key) as api:
        for _ in range(4):
            reply = await api.chat.completions.create(model="m", messages=messages, tools=TOOLS)
            content = reply.choices[0].message.content or ""
            said = {"role": "assistant", "content": content[: chance.choice([None, None, -1])]}
            messages = [*messages, said, {"role": "user", "content": "t5"}]


def max_gap(folder: str, rows: list[Row]) -> float:
    """Return the greatest difference between the logprobs of rows and those of transformers."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return max(gap(model, row) for row in rows)


def gap(model: Any, row: Row) -> float:
    import torch

    ids = torch.tensor([row.prompt_ids + row.token_ids])
    with torch.no_grad():
        logits = model(ids).logits[0, len(row.prompt_ids) - 1 : -1] / TEMPERATURE
    expected = logits.log_softmax(-1).gather(1, torch.tensor(row.token_ids)[:, None])[:, 0]
    sampled = torch.tensor(row.sampled)
    return float((expected - torch.tensor(row.logprobs))[sampled].abs().max())


async def parse(parser: ParserProcess, text: str) -> list[Any]:
    reply = await parser.parse(SampledReply(text, (), (), TOOLS, {}))
    calls = [[call.name, call.arguments] for call in reply.tool_calls]
    return [reply.content, calls, "JSONDecodeError" in reply.problem]


def parsed_request(messages: list[Any]) -> ChatRequest:
    body = {"model": "m", "messages": messages, "tools": TOOLS}
    return parse_request(ChatRequest, body)


def rendered_messages() -> list[Any]:
    return [
        [template_message(each, takes_parts=False) for each in parsed_request(messages).messages]
        for messages in CONVERSATIONS
    ]


def served_request(messages: list[Any]) -> Any:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    copy = json.loads(json.dumps(messages))
    return ChatCompletionRequest(model="m", messages=copy, tools=TOOLS)


def served_messages(messages: list[Any]) -> Any:
    """Return the messages that vLLM's server passes to the template."""
    from types import SimpleNamespace

    from vllm.renderers.chat_utils import parse_chat_messages

    config: Any = SimpleNamespace(
        multimodal_config=None, is_multimodal_model=False, enable_prompt_embeds=False
    )
    return parse_chat_messages(served_request(messages).messages, config, "string")[0]


def content_formats(template: str) -> list[bool]:
    from vllm.renderers.hf import _detect_content_format

    served = _detect_content_format(template, default="string")
    return [iterates_content(template), served == "openai"]


if __name__ == "__main__":
    os.environ |= engine_environment("cpu", 1, LogLevel.WARNING, WeightTransferBackend.IPC)
    print(json.dumps(asyncio.run(measure(sys.argv[1]))))
    sys.stdout.flush()
    os._exit(0)
