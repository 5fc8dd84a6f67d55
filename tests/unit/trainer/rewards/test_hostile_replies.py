"""Replies and completions made to keep text functions busy; their time is limited, not measured."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

import pytest

from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.spec.retrieval import ActorOutput
from raggrpo_api.spec.reward import JudgeSpec
from raggrpo_trainer.call_failures import MAX_DETAIL, CallFailed, FailureCause
from raggrpo_trainer.data.conversation import InvalidValue, read_conversation
from raggrpo_trainer.data.message_formats import unsupported_format
from raggrpo_trainer.http.reported_errors import reported_error
from raggrpo_trainer.rewards.grade_text import grades_in
from raggrpo_trainer.rewards.grades import MAX_CONTENT_CHARACTERS, parse_grade
from raggrpo_trainer.rewards.rewards import final_answer
from raggrpo_trainer.rewards.text_match import tokens
from raggrpo_trainer.rollout.actor_output import parse_actor_output
from raggrpo_trainer.rollout.agents.agent_result import MAX_ANSWER, MAX_PASSAGES, parse_result
from raggrpo_trainer.rollout.search_turn import search_query
from raggrpo_trainer.tagged_text import tagged_texts

LENGTH = 1_000_000
"""Characters of a text; a quadratic search needs minutes for it."""
SLOW = {"answer tokens": 50_000, "reported error": 200_000}
"""Characters for functions that take long, but a time linear in the length."""
MAX_SECONDS = 30
UNITS = (
    "<search>", "<answer>", "<a>", "<a", "{", '{"a":', "{'role':", "[", "[(", '("user",', "1,000,",
    "12,34", "1 ", "1/", "1 of ", "0-", "- ", " ", "\n", "\t", "<think>", "<think></think",
    "```", "```json", "grade ", "grade is ", "I give ", "final grade ", "scale of ", "changed to ",
    "the ", "so thus ", "answer a ", "*_", "'\"", "HumanMessage(", "role=", "no error", "not ",
    "a_", ".", ". ", "\x1b]", "\\", "%", "1-", "or ", "=>", "$1", "1.", "<=-", "</b",
    "\uff11", "\u7684", "\u5206",
)  # fmt: skip
"""Starts of what the patterns look for, each repeated to fill a text."""
JUDGE = {"model": "m", "prompt": "{completion}", "lowest": 0, "highest": 10}


def judge(**values: Any) -> Callable[[str], object]:
    spec = JudgeSpec.model_validate({**JUDGE, **values})
    return lambda text: parse_grade(spec, {"choices": [{"message": {"content": text}}]})


def actor(kind: str) -> Callable[[str], object]:
    spec = ActorOutput.model_validate({"format": kind, "fields": ["a", "answer"]})
    return lambda text: parse_actor_output(text, spec)


FUNCTIONS: dict[str, Callable[[str], object]] = {
    "judge": judge(),
    "judge by path": judge(scorePath="score"),
    "judge by pattern": judge(scorePattern=r"(\d+\s?)+x"),
    "judge by nested pattern": judge(scorePattern=r"(([a-z1 ]+)+)+:"),
    "search turn": search_query,
    "final answer": final_answer,
    "answer tokens": tokens,
    "actor's JSON": actor("JSON"),
    "actor's tags": actor("Tags"),
    "reported error": lambda text: reported_error({"status": text, "error": text, "code": text}),
    "conversation": read_conversation,
    "message format": unsupported_format,
}


@contextmanager
def limited_time() -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"more than {MAX_SECONDS} s")

    previous = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(MAX_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_time_for_hostile_text_is_limited(name: str) -> None:
    # Few units reach the time limit of user-specified patterns, which is a second for each.
    for unit in UNITS[:: 5 if "pattern" in name else 1]:
        with limited_time(), suppress(CallFailed, InvalidValue):
            FUNCTIONS[name](unit * (SLOW.get(name, LENGTH) // len(unit)))


@pytest.mark.parametrize("unit", [".", ". ", " ", "\t"])
def test_time_for_repetition_before_other_text_is_limited(unit: str) -> None:
    text = unit * (LENGTH // 8) + "x\n"  # patterns that need the end of the text do not match
    with limited_time():
        assert grades_in(f"{text}Grade: 7", 0, 10) == [7]


def test_reply_beyond_limit_has_no_grade() -> None:
    with pytest.raises(CallFailed, match="the judge wrote more than 1,048,576 characters"):
        judge()("7" + " " * MAX_CONTENT_CHARACTERS)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("<a>1</a><b>2</b>", [("a", "1"), ("b", "2")]),
        ("<a>1<a>2</a>", [("a", "1<a>2")]),
        ("<a><b>1</b></a>", [("a", "<b>1</b>")]),
        ("<a><b>1</b>", [("b", "1")]),
        ("<b><a>1</a><b>2", [("a", "1")]),
        ("<a>\n</a>", [("a", "\n")]),
        ("</a><a>", []),
        ("<c>1</c>", []),
    ],
)
def test_tag_extends_to_its_first_closing_tag(text: str, expected: list[tuple[str, str]]) -> None:
    assert list(tagged_texts(text, ["a", "b"])) == expected


AGENT = AgentSpec.model_validate({"url": "http://agent/", "request": {}, "passages": "passages"})


def test_long_answer_of_agent_is_rejected() -> None:
    accepted = parse_result({"answer": "a" * MAX_ANSWER}, AGENT)
    assert len(accepted.answer) == MAX_ANSWER
    with pytest.raises(CallFailed, match="the answer has 131,073 characters, limit 131,072"):
        parse_result({"answer": "a" * (MAX_ANSWER + 1)}, AGENT)


def test_number_of_passages_of_agent_is_limited() -> None:
    for passages in ([[]] * 2_000, [{"a": 1}] * 2_000):
        result = parse_result({"answer": "a", "passages": passages}, AGENT)
        assert len(result.passages) == MAX_PASSAGES


def test_length_of_passages_of_agent_is_limited() -> None:
    accepted = parse_result({"answer": "a", "passages": ["a" * 2**19] * 2}, AGENT)
    assert [*map(len, accepted.passages)] == [2**19, 2**19]
    message = "passages: the passages have more than 1,048,576 characters; return fewer or shorter"
    with pytest.raises(CallFailed, match=message):
        parse_result({"answer": "a", "passages": ["a" * 2**19, "b" * 2**19, "c"]}, AGENT)


def test_message_does_not_have_the_size_of_the_reply() -> None:
    names = {f"{number}{'k' * 1_000_000}": 1 for number in range(10)}
    with pytest.raises(CallFailed, match="answer is missing") as raised:
        parse_result(names, AGENT)
    assert len(raised.value.detail) < 1_000
    assert len(CallFailed(FailureCause.RAISED, "x" * 1_000_000).detail) == MAX_DETAIL
