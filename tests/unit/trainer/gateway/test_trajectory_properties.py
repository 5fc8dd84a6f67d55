"""Random conversations: branches, summaries, truncations, respelled calls; several templates."""

import asyncio
import json
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raggrpo_trainer.engines.generation import Generation, GenerationRequest
from raggrpo_trainer.gateway.calls import Session
from raggrpo_trainer.gateway.gateway import Gateway, GatewayOptions
from raggrpo_trainer.gateway.protocol import (
    ChatRequest,
    CompletionOptions,
    CompletionRequest,
    parse_request,
)
from raggrpo_trainer.gateway.trajectory import Row, Trajectory
from support.builders.trainer.gateway_models import (
    TEMPLATES,
    TOOLS,
    ScriptedEngine,
    byte_tokenizer,
    generation,
    respelled,
    spaced_tokenizer,
)
from support.builders.trainer.scripted_parser import JsonCallParser

BROKEN = "first byte of é"
SAID = [
    "the red fox",
    " fox ",
    "\n",
    "é…\n\nfox",
    BROKEN,
    "<think>\nhm\n</think>\n\nthe fox",
    '<tool_call>\n{"name": "search", "arguments": {"query": "fox"}}\n</tool_call>',
    '<tool_call>{"name":"search","arguments":{"query":"fox"}}</tool_call>',
    'so <tool_call>{"arguments": {"b": 1, "a": "é"}, "name": "search"}</tool_call>',
    '<tool_call>{"name": "sea',
]
CHANGES = ["none", "none", "strip", "respell", "summary", "drop first", "branch", "new"]
FORMS = ["chat", "chat", "twice", "without tools", "plain text"]
"""How a turn is requested; `twice` is two equal requests at the same time."""

ADDED = st.sampled_from(["more", " more ", "\n", "é fox", "<|im_end|>", "<|im_start|>user\nq"])
Change = tuple[str, str, str]
"""How the history changes, the form of the request, and the next text of the user."""
TURNS = st.tuples(st.sampled_from(CHANGES), st.sampled_from(FORMS), ADDED)


@dataclass
class Talker:
    """An engine that says texts in odd tokens, chosen by the seed of the request."""

    tokenizer: Any
    said: list[tuple[GenerationRequest, Generation]] = field(default_factory=list)

    def __call__(self, request: GenerationRequest) -> Generation:
        chance = random.Random(request.seed)
        text = chance.choice(SAID)
        ids = respelled(self.tokenizer, text.removesuffix(BROKEN), request.seed)
        if text.endswith(BROKEN):
            ids += respelled(self.tokenizer, "é", 0)[:1]
        ends = [self.tokenizer.eos_token_id, self.tokenizer.eos_token_id, None]
        end = chance.choice([*ends, self.tokenizer.convert_tokens_to_ids("<|endoftext|>")])
        result = generation(ids if end is None else (*ids, end), "stop" if end else "length")
        self.said.append((request, result))
        return result


def changed(history: list[Any], change: str, chance: random.Random) -> list[Any]:
    """Return a history as an application may send it."""
    if change == "strip":
        return [{**each, "content": (each["content"] or "").strip()} for each in history]
    if change == "respell":
        return [respelled_calls(each) for each in history]
    if change == "summary":
        return [history[0], {"role": "user", "content": f"summary {len(history)}"}, *history[-1:]]
    if change == "drop first":
        return history[1:] or history
    if change == "branch":
        return history[: chance.randint(1, len(history))]
    return [{"role": "user", "content": "another"}] if change == "new" else history


def respelled_calls(message: Any) -> Any:
    if not message.get("tool_calls"):
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": other_spelling(call["function"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def other_spelling(function: Any) -> str:
    return json.dumps(json.loads(function["arguments"]), indent=2, sort_keys=True)


async def talk(gateway: Gateway, trajectory: Trajectory, turns: list[Change], seed: int) -> None:
    chance = random.Random(seed)
    history: list[Any] = [{"role": "user", "content": "question"}]
    for change, form, added in turns:
        sent = changed(history, change, chance)
        requests = [request_of(sent, form, added, trajectory)] * (2 if form == "twice" else 1)
        replies = [gateway.complete(session_of(gateway), each) for each in requests]
        reply, *_ = await asyncio.gather(*replies)
        message = dict(reply.turn.message)
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "found"}
            for call in message.get("tool_calls", ())
        ]
        history = [*sent, message, *(results or [{"role": "user", "content": added}])]


def session_of(gateway: Gateway) -> Session:
    session = gateway.session("key")
    assert session is not None
    return session


def request_of(sent: list[Any], form: str, added: str, trajectory: Trajectory) -> CompletionOptions:
    if form == "plain text":  # continues the last completion, or starts a separate text
        start = trajectory.turns[-1].text if trajectory.turns else ""
        return parse_request(CompletionRequest, {"model": "m", "prompt": start + added})
    tools = [] if form == "without tools" else TOOLS
    return parse_request(ChatRequest, {"model": "m", "messages": sent, "tools": tools})


def new_gateway(tokenizer: Any) -> tuple[Gateway, Talker]:
    talker = Talker(tokenizer)
    ends = (tokenizer.eos_token_id, tokenizer.convert_tokens_to_ids("<|endoftext|>"))
    options = GatewayOptions(100_000, 256, 1000, ends)
    return Gateway(options, tokenizer, ScriptedEngine(talker).submit, JsonCallParser()), talker


def trained(rows: list[Row]) -> list[tuple[int, float]]:
    return sorted(
        (token, logprob)
        for row in rows
        for token, logprob, is_sampled in zip(row.token_ids, row.logprobs, row.sampled, strict=True)
        if is_sampled
    )


def sequences(row: Row) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """Return the runs of trained tokens, each with the tokens before it."""
    ids = row.prompt_ids + row.token_ids
    flags = (*[False] * len(row.prompt_ids), *row.sampled, False)
    logprobs = (*[0.0] * len(row.prompt_ids), *row.logprobs)
    starts = [i for i in range(1, len(flags)) if flags[i] and not flags[i - 1]]
    ends = [i for i in range(1, len(flags)) if flags[i - 1] and not flags[i]]
    return [
        (ids[:start], ids[start:end], logprobs[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]


@pytest.mark.parametrize("make_tokenizer", [byte_tokenizer, spaced_tokenizer])
@pytest.mark.parametrize("template", sorted(TEMPLATES))
@settings(max_examples=30)
@given(turns=st.lists(TURNS, min_size=1, max_size=7), seed=st.integers(0, 99))
def test_each_sampled_token_trains_once_after_prompt_of_engine(
    make_tokenizer: Any, template: str, turns: list[Change], seed: int
) -> None:
    gateway, talker = new_gateway(make_tokenizer(TEMPLATES[template]))
    trajectory = gateway.open("key", (seed,), 1.0, 1.0)
    asyncio.run(talk(gateway, trajectory, turns, seed))
    rows = trajectory.rows()
    sampled = [
        pair for _, said in talker.said for pair in zip(said.token_ids, said.logprobs, strict=True)
    ]
    assert trained(rows) == sorted(sampled)
    seen = {(request.prompt_ids, said.token_ids): said.logprobs for request, said in talker.said}
    processed = {prompt_ids + token_ids for prompt_ids, token_ids in seen}
    assert len(talker.said) == len(trajectory.turns)
    for row in rows:
        assert row.sampled[0]
        assert row.sampled[-1]
        assert row.prompt_ids + row.token_ids in processed
        for before, ids, logprobs in sequences(row):
            assert is_concatenation(before, ids, logprobs, seen)
    if make_tokenizer is byte_tokenizer:
        for turn in trajectory.turns:
            assert talker.tokenizer.decode(turn.prompt.ids) == turn.prompt.text


def is_concatenation(
    before: tuple[int, ...], ids: tuple[int, ...], logprobs: tuple[float, ...], seen: Any
) -> bool:
    """Return whether a run is one completion, or several without a token between them."""
    if not ids:
        return True
    return any(
        seen.get((before, ids[:size])) == logprobs[:size]
        and is_concatenation(before + ids[:size], ids[size:], logprobs[size:], seen)
        for size in range(1, len(ids) + 1)
    )


@settings(max_examples=20)
@given(seed=st.integers(0, 999), data=st.data())
def test_order_of_arrival_does_not_change_tokens_or_rows(seed: int, data: Any) -> None:
    agents = [("first", ["none"] * 3), ("second", ["none", "strip"]), ("third", ["branch"] * 3)]

    async def run(order: list[Any]) -> list[Row]:
        gateway, _ = new_gateway(byte_tokenizer())
        trajectory = gateway.open("key", (seed,), 1.0, 1.0)
        steps = [iterate(gateway, trajectory, *agent) for agent in order]
        while steps:
            step = data.draw(st.sampled_from(steps))
            try:
                await anext(step)
            except StopAsyncIteration:
                steps.remove(step)
        return trajectory.rows()

    assert asyncio.run(run(agents)) == asyncio.run(run(agents[::-1]))


async def iterate(gateway: Gateway, trajectory: Trajectory, name: str, turns: list[str]) -> Any:
    """Run a separate conversation, one call at a time."""
    history: list[Any] = [{"role": "user", "content": name}]
    for number, change in enumerate(turns):
        sent = changed(history, change, random.Random(number))
        body = {"model": "m", "messages": sent, "tools": TOOLS}
        request = parse_request(ChatRequest, body)
        reply = await gateway.complete(session_of(gateway), request)
        history = [*sent, dict(reply.turn.message), {"role": "user", "content": f"more {number}"}]
        yield
