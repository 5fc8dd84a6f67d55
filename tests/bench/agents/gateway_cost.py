r"""CPU time of the gateway per request, with many trajectories at the same time.

    PYTHONPATH=tests .venv/bin/python tests/bench/agents/gateway_cost.py \
        [--tokenizer FOLDER] [--repeats 3] [--json]

The gateway runs in this process with an engine that answers after a fixed time; its clients run in
another process. CPU time is that of this process, minus that of the engine alone: the same number
of requests submitted without a gateway. A turn adds a user message of `--tokens` tokens to its
conversation; no two messages are equal. The cost of tokenizing the same messages is measured after
each repeat, because both depend on what else the machine does. The repeat with the lowest cost is
reported.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from raggrpo_trainer.data.tokenizer import token_ids
from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from support.builders.trainer.gateway_models import END, HERMES, OTHER_END

DOCUMENTS = Path(__file__).parents[3] / "docs"
VOCABULARY = 16_000
RESPONSE_TOKENS = 64
"""Tokens of each completion."""
TURNS = 4
CLIENT = "--client"


@dataclass(frozen=True)
class Costs:
    """CPU milliseconds of a request."""

    trajectories: int
    """At the same time."""
    tokens: int
    """New prompt tokens of each turn."""
    gateway: float
    tokenizing: float
    """Tokenizing the new text alone: the least that any gateway with this tokenizer needs."""
    engine: float
    """The engine without a gateway; not included in the others."""
    requests_per_second: float

    @property
    def ratio(self) -> float:
        """The cost of a request in units of tokenizing its new text."""
        return self.gateway / self.tokenizing


@dataclass
class InstantEngine:
    """Answers each request after `seconds` with the same tokens."""

    token_ids: tuple[int, ...]
    seconds: float
    submitted: int = 0

    def submit(self, requests: Sequence[GenerationRequest]) -> list[Awaitable[Generation]]:
        return [asyncio.ensure_future(self._complete()) for _ in requests]

    async def _complete(self) -> Generation:
        self.submitted += 1
        await asyncio.sleep(self.seconds)
        return Generation(self.token_ids, (-0.5,) * len(self.token_ids), "stop", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description="CPU time of the gateway")
    parser.add_argument("--tokens", type=int, nargs="+", default=[350, 2000, 8000])
    parser.add_argument("--trajectories", type=int, nargs="+", default=[32, 512])
    parser.add_argument("--seconds", type=float, default=0.5, help="latency of the engine")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokenizer", default="", help="folder with a tokenizer.json")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer) if options.tokenizer else make_tokenizer()
    print("| trajectories | new prompt tokens | ms per request | tokenizing | ratio | requests/s |")
    rows = []
    for trajectories in options.trajectories:
        for tokens in options.tokens:
            repeats = [
                asyncio.run(costs(tokenizer, trajectories, tokens, options.seconds))
                for _ in range(options.repeats)
            ]
            row = min(repeats, key=lambda each: each.gateway)
            rows.append(row)
            print(
                f"| {trajectories} | {tokens} | {row.gateway:.2f} | {row.tokenizing:.2f} | "
                f"{row.ratio:.2f} | {row.requests_per_second:.0f} |",
                flush=True,
            )
    if options.json:
        print(json.dumps([asdict(row) for row in rows]))


def make_tokenizer() -> Any:
    """Return a byte-level BPE tokenizer trained on the documentation."""
    table = Tokenizer(models.BPE())
    table.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    table.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END, OTHER_END, "<|im_start|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    table.train_from_iterator([each.read_text() for each in documents()], trainer)
    return with_template(table)


def load_tokenizer(folder: str) -> Any:
    """Return the tokenizer of a model folder, with the chat template of this benchmark."""
    return with_template(Tokenizer.from_file(str(Path(folder) / "tokenizer.json")))


def with_template(table: Tokenizer) -> Any:
    return PreTrainedTokenizerFast(tokenizer_object=table, eos_token=END, chat_template=HERMES)


def documents() -> list[Path]:
    return sorted(DOCUMENTS.rglob("*.md"))


def texts_of(tokenizer: Any, tokens: int) -> list[str]:
    """Return a text of `tokens` tokens for each turn."""
    ids = tokenizer("\n".join(each.read_text() for each in documents()))["input_ids"]
    return [tokenizer.decode(ids[i * tokens : (i + 1) * tokens]) for i in range(TURNS)]


async def costs(tokenizer: Any, trajectories: int, tokens: int, seconds: float) -> Costs:
    """Run conversations of TURNS turns at the same time."""
    engine = engine_of(tokenizer, seconds)
    idle = await cost_of_engine(engine_of(tokenizer, 0.0))
    gateway = gateway_of(tokenizer, engine)
    url = await gateway.start("127.0.0.1")
    client = await start_client()
    keys = [f"key-{i}" for i in range(trajectories)]
    opened = [gateway.open(key, (0, 0, 0, i), 1.0, 1.0) for i, key in enumerate(keys)]
    texts = texts_of(tokenizer, tokens)
    start = [{"url": url, "key": k, "texts": [f"{k} {text}" for text in texts]} for k in keys]
    await call(client, {"start": start})
    wall, cpu = time.perf_counter(), time.process_time()
    await call(client, {"turns": TURNS})
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    requests = trajectories * TURNS
    assert engine.submitted == requests
    assert all(len(each.rows()) == 1 and len(each.turns) == TURNS for each in opened)
    await stop_client(client)
    await gateway.stop()
    return Costs(
        trajectories,
        tokens,
        gateway=1000 * (cpu / requests - idle),
        tokenizing=1000 * seconds_to_tokenize(tokenizer, [e for s in start for e in s["texts"]]),
        engine=1000 * idle,
        requests_per_second=requests / wall,
    )


def seconds_to_tokenize(tokenizer: Any, texts: Sequence[str]) -> float:
    """Return the mean CPU seconds of a text."""
    started = time.process_time()
    for text in texts:
        token_ids(text, tokenizer)
    return (time.process_time() - started) / len(texts)


async def cost_of_engine(engine: InstantEngine, requests: int = 500) -> float:
    """Return the CPU seconds of a request to the engine without a gateway."""
    request = GenerationRequest((1,), RESPONSE_TOKENS, 1.0, 0)
    started = time.process_time()
    await asyncio.gather(*engine.submit([request] * requests))
    return (time.process_time() - started) / requests


def engine_of(tokenizer: Any, seconds: float) -> InstantEngine:
    text = "The answer is in the second passage, which names the field and its remedy. " * 9
    ids = tokenizer(text)["input_ids"][: RESPONSE_TOKENS - 1]
    return InstantEngine((*ids, tokenizer.eos_token_id), seconds)


def gateway_of(tokenizer: Any, engine: InstantEngine) -> Gateway:
    ends = (tokenizer.eos_token_id,)
    return Gateway(GatewayOptions(100_000, RESPONSE_TOKENS, 100, ends), tokenizer, engine.submit)


async def start_client() -> asyncio.subprocess.Process:
    """Start the process of the clients."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        *(__file__, CLIENT),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=1 << 24,
    )


async def stop_client(client: asyncio.subprocess.Process) -> None:
    assert client.stdin is not None
    client.stdin.close()
    await client.wait()


async def call(client: asyncio.subprocess.Process, command: dict[str, Any]) -> None:
    """Send a command to the clients and wait until it is done."""
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(json.dumps(command).encode() + b"\n")
    if not await client.stdout.readline():
        raise RuntimeError("the process of the clients exited")


async def serve_calls() -> None:
    """Follow the commands on standard input: the process of the clients."""
    connector = aiohttp.TCPConnector(limit=0)
    conversations: list[Any] = []
    async with aiohttp.ClientSession(connector=connector) as http:
        while line := await asyncio.to_thread(sys.stdin.readline):
            command = json.loads(line)
            conversations = [
                {**c, "history": []} for c in command.get("start", [])
            ] or conversations
            turns = command.get("turns", 0)
            await asyncio.gather(*(converse(http, each, turns) for each in conversations))
            print(json.dumps({"done": turns}), flush=True)


async def converse(http: aiohttp.ClientSession, conversation: Any, turns: int) -> None:
    """Send the next turns of a conversation."""
    history = conversation["history"]
    for _ in range(turns):
        text = conversation["texts"][len(history) // 2]
        history.append({"role": "user", "content": text})
        history.append({"role": "assistant", "content": await ask(http, conversation, history)})


async def ask(http: aiohttp.ClientSession, conversation: Any, messages: list[Any]) -> str:
    async with http.post(
        f"{conversation['url']}/chat/completions",
        json={"model": "policy", "messages": messages},
        headers={"Authorization": f"Bearer {conversation['key']}"},
    ) as response:
        reply = await response.json()
    content: str = reply["choices"][0]["message"]["content"]
    return content


if __name__ == "__main__":
    asyncio.run(serve_calls()) if CLIENT in sys.argv else main()
