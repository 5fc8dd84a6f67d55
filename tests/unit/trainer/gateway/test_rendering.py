"""Prompts are rendered as in serving."""

from typing import Any

import pytest
from tokenizers import AddedToken

from raggrpo_trainer.gateway.rendering import iterates_content, template_message
from support.builders.trainer.gateway_models import (
    HERMES,
    TEMPLATES,
    TOOLS,
    USER,
    byte_tokenizer,
    ids_of,
    in_turn,
    spaced_tokenizer,
)

CALL = '<tool_call>\n{"name": "search", "arguments": {"query": "fox"}}\n</tool_call>'


def stripping_tokenizer() -> Any:
    """Return a tokenizer whose end token removes the space after it."""
    tokenizer = byte_tokenizer(HERMES + "{# strips #}")
    tokenizer.add_tokens([AddedToken("<|im_end|>", rstrip=True, special=True)], special_tokens=True)
    return tokenizer


@pytest.mark.parametrize("make_tokenizer", [byte_tokenizer, spaced_tokenizer, stripping_tokenizer])
async def test_prompt_after_usual_tokens_is_whole_conversation_tokenized(serve, make_tokenizer):
    tokenizer = make_tokenizer()
    start = ids_of(tokenizer, "\n")
    said = [ids_of(tokenizer, f"\n{text}<|im_end|>")[len(start) :] for text in (CALL, "a", "b")]
    served = await serve(in_turn(tokenizer, *said), tokenizer)
    served.open()
    history = [USER]
    for _ in range(3):
        _, reply = await served.post({"model": "m", "messages": history, "tools": TOOLS})
        message = reply["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "found"}
            for call in message.get("tool_calls", ())
        ]
        history = [*history, message, *(results or [USER])]
    prompts = [request.prompt_ids for request in served.engine.requests]
    texts = [turn.prompt.text for turn in served.gateway.session("key").trajectory.turns]
    assert prompts == [ids_of(tokenizer, text) for text in texts]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        (HERMES, False),
        (TEMPLATES["drops-reasoning"], False),
        ("{% for part in message.content %}{% endfor %}", True),
        ("{% for part in message['content'] %}{% endfor %}", True),
        ("{% macro f(content) %}{% for part in content %}{% endfor %}{% endmacro %}", True),
        (
            "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
            0,
        ),
        ("{% for m in messages %}{% break %}{% endfor %}", False),
        ("{% not jinja", False),
    ],
)
def test_template_that_iterates_content_takes_parts(template, expected):
    assert iterates_content(template) is bool(expected)


@pytest.mark.parametrize(
    ("message", "takes_parts", "expected"),
    [
        (
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]},
            False,
            {"role": "user", "content": "a\nb"},
        ),
        (
            {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "i"},
            True,
            {"role": "tool", "content": "a", "tool_call_id": "i"},
        ),
        ({"role": "assistant", "content": None}, False, {"role": "assistant", "content": ""}),
        (
            {"role": "assistant", "content": "a", "tool_calls": [], "refusal": None},
            False,
            {"role": "assistant", "content": "a"},
        ),
        (
            {"role": "assistant", "content": "a", "reasoning_content": "r"},
            False,
            {"role": "assistant", "content": "a", "reasoning": "r", "reasoning_content": "r"},
        ),
        (
            {"role": "user", "name": "me", "content": "a", "extra": 1},
            False,
            {"role": "user", "content": "a", "name": "me"},
        ),
    ],
)
def test_message_reaches_template_as_in_serving(message, takes_parts, expected):
    assert template_message(message, takes_parts) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ({"a": 1}, {"a": 1}),
        ("", {}),
        (None, {}),
        ("[1]", {}),
        ("{", {}),
        ("[" * 100_000, {}),
    ],
)
def test_arguments_of_call_reach_template_as_object(arguments, expected):
    call = {"type": "function", "id": "i", "function": {"name": "f", "arguments": arguments}}
    message = template_message({"role": "assistant", "content": "", "tool_calls": [call]}, False)
    [result] = message["tool_calls"]
    assert result["function"]["arguments"] == expected


async def test_variables_reach_template(serve):
    template = "{{ reasoning_effort }}/{{ enable_thinking }}/{{ style }}"
    tokenizer = byte_tokenizer(template)
    served = await serve(in_turn(tokenizer, "a", "b"), tokenizer)
    trajectory = served.open()
    body = {"model": "m", "messages": [USER], "chat_template_kwargs": {"style": "short"}}
    await served.post(body)
    await served.post(body | {"reasoning_effort": "low"})
    texts = [turn.prompt.text for turn in trajectory.turns]
    assert texts == ["//short", "low/True/short"]


async def test_template_of_job_replaces_that_of_tokenizer(serve):
    template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    tokenizer = byte_tokenizer()
    served = await serve(in_turn(tokenizer, "a"), tokenizer, chat_template=template)
    trajectory = served.open()
    await served.post({"model": "m", "messages": [USER, USER]})
    assert trajectory.turns[0].prompt.text == "[q][q]"


async def test_question_without_template_is_plain_text(serve):
    tokenizer = byte_tokenizer("")
    served = await serve(in_turn(tokenizer, "a", "b"), tokenizer)
    trajectory = served.open()
    await served.post({"model": "m", "messages": [USER]})
    status, error = await served.post({"model": "m", "messages": [USER, USER]})
    assert [turn.prompt.text for turn in trajectory.turns] == ["q"]
    assert status == 400
    assert "no chat template" in error["error"]["message"]


async def test_equal_calls_with_other_tokens_are_restored_in_their_turns(serve):
    tokenizer = byte_tokenizer()
    tight = '<tool_call>{"name":"search","arguments":{"query":"fox"}}</tool_call>'
    odd = '<tool_call>{ "name":"search", "arguments":{ "query":"fox"}}</tool_call>'
    served = await serve(in_turn(tokenizer, tight, odd, tight, "end"))
    trajectory = served.open()
    history = [USER]
    for number in range(4):
        body = {"model": "m", "messages": history, "tools": TOOLS}
        _, reply = await served.post(body)
        message = reply["choices"][0]["message"]
        for call in message.get("tool_calls", ()):
            del call["id"]  # some libraries write their own
        history = [*history, message, {"role": "tool", "content": f"found {number}"}]
    assert len(trajectory.rows()) == 1
    assert tokenizer.decode(served.engine.requests[3].prompt_ids).count(odd) == 1
