"""The unmodified client of OpenAI: calls, tools, streams, retries and timeouts."""

import asyncio

import openai
import pytest

from support.builders.trainer.gateway_models import TOOLS, USER, byte_tokenizer, in_turn

CALL = '<tool_call>{"name":"search","arguments":{"query":"fox"}}</tool_call>'


def client(served, **options):
    options = {"api_key": "key", "max_retries": 0} | options
    return openai.AsyncOpenAI(base_url=served.url, **options)


def said(*texts):
    return in_turn(byte_tokenizer(), *texts)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_conversation_with_tools_is_one_row(serve, is_streamed):
    served = await serve(said("<think> hm " + CALL, "the fox", "bye"))
    trajectory = served.open()
    messages = [USER]
    async with client(served) as api:
        for _ in range(3):
            chat = api.chat.completions
            arguments = {"model": "gpt-4o", "messages": messages, "tools": TOOLS}
            if is_streamed:
                async with chat.stream(**arguments) as stream:
                    completion = await stream.get_final_completion()
            else:
                completion = await chat.create(**arguments)
            message = completion.choices[0].message
            messages = [*messages, message.model_dump(exclude_none=True)]
            if calls := message.tool_calls:
                assert calls[0].function.arguments == '{"query": "fox"}'
                result = {"role": "tool", "tool_call_id": calls[0].id, "content": "found"}
            messages.append(result if calls else USER)
    assert [turn.content for turn in trajectory.turns] == ["<think> hm " + CALL, "the fox", "bye"]
    assert len(trajectory.rows()) == 1
    assert trajectory.failure is None


async def test_parsed_stream_of_text_is_recorded_once(serve):
    served = await serve(said("the red fox"))
    trajectory = served.open()
    options = {"include_usage": True}
    async with client(served) as api:
        stream = await api.chat.completions.create(
            model="m", messages=[USER], stream=True, stream_options=options, logprobs=True
        )
        chunks = [chunk async for chunk in stream]
    deltas = [choice.delta.content or "" for chunk in chunks for choice in chunk.choices]
    assert "".join(deltas) == "the red fox"
    assert chunks[-1].usage.completion_tokens == len(trajectory.turns[0].token_ids)


async def test_completion_of_text_is_recorded(serve):
    served = await serve(said("fox"))
    trajectory = served.open()
    async with client(served) as api:
        reply = await api.completions.create(model="m", prompt="the red ")
    assert reply.choices[0].text == "fox"
    assert trajectory.turns[0].text == "the red fox<|im_end|>"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_client_with_short_timeout_waits_for_slow_engine(serve, is_streamed):
    served = await serve(said("fox"), keep_alive_seconds=0.02)
    served.engine.held = asyncio.Event()
    served.open()
    async with client(served, timeout=0.5) as api:
        call = asyncio.create_task(
            api.chat.completions.create(model="m", messages=[USER], stream=is_streamed)
        )
        await asyncio.sleep(1.0)
        served.engine.held.set()
        reply = await call
        if is_streamed:
            assert (await anext(reply)).choices[0].delta.content == "fox"
        else:
            assert reply.choices[0].message.content == "fox"


async def test_retries_after_timeouts_join_call(serve):
    served = await serve(said("fox", "other"), keep_alive_seconds=60)
    served.engine.held = asyncio.Event()
    trajectory = served.open()
    async with client(served, timeout=0.2, max_retries=20) as api:
        call = asyncio.create_task(api.chat.completions.create(model="m", messages=[USER]))
        while not trajectory.notes["joined retries"]:  # noqa: ASYNC110 (notes have no event)
            await asyncio.sleep(0.01)
        served.engine.held.set()
        assert (await call).choices[0].message.content == "fox"
    assert len(served.engine.requests) == len(trajectory.turns) == 1


async def test_retry_around_client_joins_call(serve):
    served = await serve(said("fox", "other"), keep_alive_seconds=60)
    served.engine.held = asyncio.Event()
    trajectory = served.open()
    async with client(served, timeout=0.2) as api:
        with pytest.raises(openai.APITimeoutError):
            await api.chat.completions.create(model="m", messages=[USER])
        served.engine.held.set()
        reply = await api.with_options(timeout=10).chat.completions.create(
            model="m", messages=[USER]
        )
    assert reply.choices[0].message.content == "fox"
    assert len(trajectory.turns) == 1


@pytest.mark.parametrize(
    ("arguments", "options", "error", "part"),
    [
        ({"n": 2}, {}, openai.BadRequestError, "n must be 1"),
        ({}, {"max_turns": 0}, openai.BadRequestError, "maxTurns"),
        ({}, {"max_model_length": 4}, openai.BadRequestError, "maximum context length"),
        ({"model": "other"}, {"policy_models": ("m",)}, openai.NotFoundError, "policyModels"),
    ],
    ids=["n", "turns", "context", "model"],
)
async def test_rejected_request_is_not_retried(serve, arguments, options, error, part):
    served = await serve(said("fox"), **options)
    trajectory = served.open()
    async with client(served, max_retries=5) as api:
        with pytest.raises(error, match=part):
            await api.chat.completions.create(**{"model": "m", "messages": [USER]} | arguments)
    assert "joined retries" not in trajectory.notes
    assert trajectory.failure
    assert part in trajectory.failure.detail


async def test_key_of_ended_trajectory_is_not_retried(serve):
    served = await serve(said("fox"))
    served.open()
    await served.gateway.close("key")
    async with client(served, max_retries=5) as api:
        with pytest.raises(openai.AuthenticationError, match="no running trajectory"):
            await api.chat.completions.create(model="m", messages=[USER])


async def test_call_in_flight_ends_with_trajectory(serve):
    served = await serve(said("fox"), keep_alive_seconds=60)
    served.engine.held = asyncio.Event()
    served.open()
    async with client(served, max_retries=5) as api:
        call = asyncio.create_task(api.chat.completions.create(model="m", messages=[USER]))
        await served.engine.arrived.acquire()
        await served.gateway.close("key")
        with pytest.raises(openai.APIStatusError) as raised:
            await call
    assert raised.value.status_code == 410


async def test_models_are_listed(serve):
    served = await serve(said(), policy_models=("gpt-4o", "policy*"))
    served.open()
    async with client(served) as api:
        assert [each.id async for each in api.models.list()] == ["gpt-4o"]
        assert (await api.models.retrieve("policy-1")).id == "policy-1"
        with pytest.raises(openai.NotFoundError):
            await api.models.retrieve("other")


async def test_concurrent_trajectories_are_separate(serve):
    served = await serve(lambda request: in_turn(byte_tokenizer(), f"{request.seed}")(request))
    keys = [f"key-{i}" for i in range(32)]
    trajectories = [served.gateway.open(key, (7, 1, 2, i), 1.0, 1.0) for i, key in enumerate(keys)]

    async def talk(key):
        async with client(served, api_key=key) as api:
            messages = [USER]
            for _ in range(3):
                reply = await api.chat.completions.create(model="m", messages=messages)
                messages += [reply.choices[0].message.model_dump(exclude_none=True), USER]
            return [each["content"] for each in messages if each["role"] == "assistant"]

    contents = await asyncio.gather(*map(talk, keys))
    assert contents == [[turn.content for turn in each.turns] for each in trajectories]
    assert all(len(each.rows()) == 1 for each in trajectories)
