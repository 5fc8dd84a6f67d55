"""Calls over HTTP: recorded trajectories and responses to the application."""

import math

import pytest

from raggrpo_trainer.data.tokenizer import MAX_TOKEN_CHARACTERS
from raggrpo_trainer.engines.generation import Generation, InvalidRequest
from raggrpo_trainer.gateway import rendering
from raggrpo_trainer.gateway.trajectory import TrajectoryCause
from support.builders.trainer.gateway_models import (
    END,
    HERMES,
    TOOLS,
    USER,
    byte_tokenizer,
    generation,
    ids_of,
    in_turn,
    respelled,
)

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "fox"}}\n</tool_call>'


def chat(*messages, **others):
    return {"model": "any", "messages": list(messages), **others}


def assistant(reply):
    return reply["choices"][0]["message"]


def tool_result(reply, text="found"):
    [call] = assistant(reply)["tool_calls"]
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


async def test_continued_conversation_is_one_row_with_tokens_as_sampled(serve):
    tokenizer = byte_tokenizer()
    odd = (*respelled(tokenizer, "the red fox"), tokenizer.eos_token_id)
    served = await serve(in_turn(tokenizer, odd, "end"))
    served.open()
    _, first = await served.post(chat(USER))
    _, second = await served.post(chat(USER, assistant(first), {"role": "user", "content": "more"}))
    assert assistant(first)["content"] == "the red fox"
    assert assistant(second)["content"] == "end"
    [row] = (await served.gateway.close("key")).rows()
    first_request, second_request = served.engine.requests
    assert row.prompt_ids == first_request.prompt_ids
    assert second_request.prompt_ids[: len(row.prompt_ids) + len(odd)] == row.prompt_ids + odd
    last = (*ids_of(tokenizer, "end"), tokenizer.eos_token_id)
    assert row.prompt_ids + row.token_ids == second_request.prompt_ids + last
    assert sum(row.sampled) == len(odd) + len(last)
    assert row.logprobs[: len(odd)] == generation(odd).logprobs


async def test_respelled_tool_call_continues_row(serve):
    tokenizer = byte_tokenizer()
    odd = '<tool_call>{"name":"search","arguments":{"query":"fox"}}</tool_call>'
    served = await serve(in_turn(tokenizer, odd, "done"))
    trajectory = served.open()
    _, first = await served.post(chat(USER, tools=TOOLS))
    assert first["choices"][0]["finish_reason"] == "tool_calls"
    [call] = assistant(first)["tool_calls"]
    assert call["function"] == {"name": "search", "arguments": '{"query": "fox"}'}
    await served.post(chat(USER, assistant(first), tool_result(first), tools=TOOLS))
    assert len(trajectory.rows()) == 1
    assert trajectory.notes == {"tool calls restored as sampled": 1}
    assert odd + END in tokenizer.decode(served.engine.requests[1].prompt_ids)


async def test_answer_without_its_space_starts_row(serve):
    tokenizer = byte_tokenizer()
    served = await serve(in_turn(tokenizer, "fox ", "end"))
    trajectory = served.open()
    _, first = await served.post(chat(USER))
    stripped = {"role": "assistant", "content": assistant(first)["content"].strip()}
    await served.post(chat(USER, stripped, USER))
    long, short = trajectory.rows()
    assert long.prompt_ids == served.engine.requests[1].prompt_ids
    assert short.prompt_ids == served.engine.requests[0].prompt_ids
    assert all(long.sampled)
    assert all(short.sampled)
    assert trajectory.notes == {"new rows": 1}


async def test_two_leaves_train_their_common_turn_once(serve):
    tokenizer = byte_tokenizer()
    served = await serve(in_turn(tokenizer, "fox", "one", "the other"))
    trajectory = served.open()
    _, first = await served.post(chat(USER))
    for text in ("a", "b"):
        await served.post(chat(USER, assistant(first), {"role": "user", "content": text}))
    rows = trajectory.rows()
    assert len(rows) == 2
    assert sum(sum(row.sampled) for row in rows) == sum(len(t.token_ids) for t in trajectory.turns)
    assert rows[0].prompt_ids == served.engine.requests[0].prompt_ids
    assert rows[1].prompt_ids in {request.prompt_ids for request in served.engine.requests[1:]}


async def test_end_token_that_template_does_not_write_keeps_tokens_before_it(serve):
    tokenizer = byte_tokenizer()
    odd = respelled(tokenizer, "the red fox")
    other = ids_of(tokenizer, "<|endoftext|>")
    served = await serve(
        in_turn(tokenizer, odd + other, "end"), stop_token_ids=(tokenizer.eos_token_id, *other)
    )
    trajectory = served.open()
    _, first = await served.post(chat(USER))
    await served.post(chat(USER, assistant(first), USER))
    start = served.engine.requests[0].prompt_ids + odd
    assert served.engine.requests[1].prompt_ids[: len(start)] == start
    assert sum(sum(row.sampled) for row in trajectory.rows()) == sum(
        len(turn.token_ids) for turn in trajectory.turns
    )


async def test_cut_off_answer_is_continued(serve):
    tokenizer = byte_tokenizer()
    served = await serve(in_turn(tokenizer, generation(ids_of(tokenizer, "the re"), "length"), "x"))
    trajectory = served.open()
    _, first = await served.post(chat(USER))
    assert first["choices"][0]["finish_reason"] == "length"
    await served.post(chat(USER, assistant(first), USER))
    assert len(trajectory.rows()) == 1


@pytest.mark.parametrize(
    "logprobs", [(), (-1.0,), (math.nan, -1.0), (-math.inf, -1.0)], ids=["no", "few", "nan", "inf"]
)
async def test_reply_without_logprobs_fails_trajectory(serve, logprobs):
    tokenizer = byte_tokenizer()
    fox = ids_of(tokenizer, "f") + ids_of(tokenizer, "x")
    served = await serve(in_turn(tokenizer, Generation(fox, logprobs, "stop", 0), "end"))
    served.open()
    status, error = await served.post(chat(USER))
    assert status == 400
    assert "logprobs" in error["error"]["message"]
    await served.post(chat(USER, USER))
    trajectory = await served.gateway.close("key")
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.MISSING_LOGPROBS
    assert trajectory.failure.is_fatal
    assert [turn.content for turn in trajectory.turns] == ["end"]


async def test_engine_error_is_raised_on_close(serve):
    served = await serve(lambda _: RuntimeError("engine lost"))
    served.open()
    assert (await served.post(chat(USER)))[0] == 410
    with pytest.raises(RuntimeError, match="engine lost"):
        await served.gateway.close("key")


async def test_request_that_engine_rejects_fails_only_its_trajectory(serve):
    served = await serve(lambda _: InvalidRequest("The prompt is too odd"))
    trajectory = served.open()
    status, error = await served.post(chat(USER))
    assert status == 400
    assert "The prompt is too odd" in error["error"]["message"]
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED
    await served.gateway.close("key")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/completions", {"model": "m", "prompt": ""}, "prompt"),
        ("/chat/completions", chat({"role": "user", "content": ""}), "messages"),
    ],
)
async def test_prompt_without_tokens_is_rejected(serve, path, body, param):
    tokenizer = byte_tokenizer("{{ messages[0].content }}")
    served = await serve(in_turn(tokenizer, "a"), tokenizer)
    trajectory = served.open()
    status, error = await served.post(body, path)
    assert status == 400
    assert error["error"]["param"] == param
    assert "no tokens" in error["error"]["message"]
    assert served.engine.requests == []
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED
    await served.gateway.close("key")


async def test_calls_beyond_limit_are_rejected(serve):
    tokenizer = byte_tokenizer()
    served = await serve(in_turn(tokenizer, "a", "b"), max_turns=2)
    trajectory = served.open()
    statuses = [(await served.post(chat(USER)))[0] for _ in range(3)]
    assert statuses == [200, 200, 400]
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.MAX_TURNS
    assert not trajectory.failure.is_fatal


async def test_prompt_beyond_context_is_rejected(serve):
    served = await serve(in_turn(byte_tokenizer(), "a"), max_model_length=16)
    trajectory = served.open()
    status, error = await served.post(chat({"role": "user", "content": "word " * 20}))
    assert status == 400
    assert error["error"]["code"] == "context_length_exceeded"
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.CONTEXT_LENGTH


@pytest.mark.parametrize("call", ["chat", "text"])
async def test_prompt_far_beyond_context_is_not_tokenized(serve, monkeypatch, call):
    served = await serve(in_turn(byte_tokenizer(), "a"), max_model_length=16)
    trajectory = served.open()
    monkeypatch.setattr(rendering, "token_ids", None)
    monkeypatch.setattr(rendering, "prompt_ids", None)
    text = " " * (16 * MAX_TOKEN_CHARACTERS + 1)
    status, error = (
        await served.post(chat({"role": "user", "content": text}))
        if call == "chat"
        else await served.post({"model": "m", "prompt": text}, "/completions")
    )
    assert status == 400
    assert error["error"]["code"] == "context_length_exceeded"
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.CONTEXT_LENGTH


async def test_prompt_that_cannot_be_tokenized_fails_only_its_trajectory(serve, monkeypatch):
    def fail(*_):
        raise TypeError("TextEncodeInput must be text")

    monkeypatch.setattr(rendering, "prompt_ids", fail)
    served = await serve(in_turn(byte_tokenizer(), "a"))
    served.open()
    status, error = await served.post(chat(USER))
    assert status == 400
    assert "cannot be tokenized: TextEncodeInput" in error["error"]["message"]
    trajectory = await served.gateway.close("key")
    assert trajectory.failure
    assert trajectory.failure.cause is TrajectoryCause.REQUEST_REJECTED


async def test_job_limits_tokens_and_sampling(serve):
    tokenizer = byte_tokenizer()
    served = await serve(in_turn(tokenizer, "a", "b", "c"))
    trajectory = served.open(temperature=0.5)
    await served.post(chat(USER, max_tokens=5, temperature=0.1, top_p=1.0))
    await served.post(chat(USER, max_completion_tokens=500, temperature=0.5))
    await served.post(
        chat(USER, response_format={"type": "json_object"}, tool_choice="required", user="me")
    )
    assert [request.max_tokens for request in served.engine.requests] == [5, 64, 64]
    assert {request.temperature for request in served.engine.requests} == {0.5}
    notes = {note: count for note, count in trajectory.notes.items() if "ignored" in note}
    assert notes == {
        "ignored temperature": 1,
        "ignored response_format": 1,
        "ignored tool_choice": 1,
    }


async def test_equal_prompts_have_different_seeds_that_repeat(serve):
    seeds = []
    for _ in range(2):
        served = await serve(in_turn(byte_tokenizer(), "a", "b", "c"))
        served.open()
        for content in ("q", "q", "r"):
            await served.post(chat({"role": "user", "content": content}))
        seeds.append([request.seed for request in served.engine.requests])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 3


async def test_completion_of_text_continues_row_and_omits_stop_text(serve):
    tokenizer = byte_tokenizer()
    said = generation(respelled(tokenizer, "Act: fox\nObservation:"))
    served = await serve(in_turn(tokenizer, said, "end"))
    trajectory = served.open()
    stop = ["\nObservation:"]
    body = {"model": "m", "prompt": "Q: ", "stop": stop}
    _, first = await served.post(body, "/completions")
    assert first["choices"][0]["text"] == "Act: fox"
    await served.post(body | {"prompt": "Q: Act: fox\nObservation: red\n"}, "/completions")
    assert served.engine.requests[0].stop == tuple(stop)
    assert len(trajectory.rows()) == 1


async def test_prompt_of_text_starts_as_tokenizer_starts_it(serve):
    tokenizer = byte_tokenizer(HERMES + "{# with bos #}")
    from tokenizers.processors import TemplateProcessing

    bos = tokenizer.convert_tokens_to_ids("<bos>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<bos> $A", special_tokens=[("<bos>", bos)]
    )
    served = await serve(in_turn(tokenizer, "a", "b"), tokenizer)
    served.open()
    await served.post({"model": "m", "prompt": "Q"}, "/completions")
    await served.post(chat(USER))
    starts = [request.prompt_ids[0] == bos for request in served.engine.requests]
    assert starts == [True, False]


async def test_tool_call_ids_follow_from_seed(serve):
    ids = []
    for _ in range(2):
        served = await serve(in_turn(byte_tokenizer(), CALL + "\n" + CALL))
        served.open()
        _, reply = await served.post(chat(USER, tools=TOOLS))
        ids.append([call["id"] for call in assistant(reply)["tool_calls"]])
    assert ids[0] == ids[1]
    assert len(set(ids[0])) == 2
    assert {len(each) for each in ids[0]} == {9}
