"""Files in the formats of verl and TRL are read unchanged; invalid rows are reported by number."""

import json
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts
from raggrpo_trainer.errors import TrainerError
from support.builders.data.verl_files import (
    ASSISTANT,
    gsm8k_row,
    search_row,
    trl_row,
    write_jsonl,
    write_parquet,
)

SYSTEM = ({"role": "system", "content": ASSISTANT},)


def read(file: str, columns: dict[str, str] | None = None, **data: Any) -> list[Prompt]:
    fields = {"trainFiles": [file], "columns": columns or {}, **data}
    return read_prompts([file], DataSpec.model_validate(fields), RetrievalSpec(), RewardSpec())


def test_verl_gsm8k_file_is_read_by_answer_path(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "train.parquet", [gsm8k_row("1 + 1?", "2")])

    [prompt] = read(file, {"answer": "reward_model.ground_truth"})

    assert (prompt.text, prompt.query, prompt.answer) == ("1 + 1?", "1 + 1?", ("2",))
    assert prompt.earlier == ()


@pytest.mark.row("D4")
def test_verl_search_file_is_read_with_system_prompt_and_several_answers(tmp_path: Path) -> None:
    file = write_parquet(tmp_path / "train.parquet", [search_row("Who?", ["Ada", "Lovelace"])])

    [prompt] = read(file, {"answer": "reward_model.ground_truth.target"})

    assert (prompt.text, prompt.answer) == ("Who?", ("Ada", "Lovelace"))
    assert prompt.earlier == SYSTEM


@pytest.mark.row("D4")
def test_trl_completion_is_used_as_answer(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "train.jsonl", [trl_row("Which color?", "Blue.")])

    [prompt] = read(file, {"answer": "completion"})

    assert (prompt.text, prompt.answer, prompt.earlier) == ("Which color?", ("Blue.",), SYSTEM)


def test_column_name_with_dots_takes_precedence_over_path(tmp_path: Path) -> None:
    row = {"prompt": "x", "a.b": "plain", "a": {"b": "nested"}}
    for file in (
        write_jsonl(tmp_path / "a.jsonl", [row]),
        write_parquet(tmp_path / "a.parquet", [row]),
    ):
        assert read(file, {"answer": "a.b"})[0].answer == ("plain",)


@pytest.mark.row("D4")
def test_job_system_prompt_replaces_row_system_prompt(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [search_row("Who?", ["Ada"]), gsm8k_row("1?", "1")])

    prompts = read(file, {"answer": "data_source"}, systemPrompt="Be brief.")

    assert [prompt.earlier for prompt in prompts] == [
        ({"role": "system", "content": "Be brief."},),
        ({"role": "system", "content": "Be brief."},),
    ]


@pytest.mark.row("D4")
def test_row_tools_take_precedence_over_job_tools(tmp_path: Path) -> None:
    rows = [
        {"prompt": "x", "answer": "y", "tools": [{"name": "search", "extra": None}]},
        {"prompt": "x", "answer": "y", "tools": '[{"name": "sum"}]'},
        {"prompt": "x", "answer": "y", "tools": None},
    ]
    file = write_jsonl(tmp_path / "a.jsonl", rows)

    prompts = read(file, {"tools": "tools"}, tools='[{"name": "default"}]')

    assert [[tool["name"] for tool in prompt.tools] for prompt in prompts] == [
        ["search"],
        ["sum"],
        ["default"],
    ]


def test_message_text_parts_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "Who"}, {"type": "text", "text": "?"}]
    turns = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello", "name": None},
        {"role": "user", "content": parts},
    ]
    [prompt] = read(write_jsonl(tmp_path / "a.jsonl", [{"prompt": turns, "answer": "y"}]))

    assert prompt.text == "Who?"
    assert prompt.earlier == (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Hello"},
    )


@pytest.mark.row("D4")
def test_conversation_as_json_text_is_parsed(tmp_path: Path) -> None:
    turns = json.dumps([*SYSTEM, {"role": "user", "content": "Who?"}])
    [prompt] = read(write_jsonl(tmp_path / "a.jsonl", [{"prompt": turns, "answer": "y"}]))
    assert (prompt.text, prompt.earlier) == ("Who?", SYSTEM)


def test_bracketed_text_is_not_parsed_as_conversation(tmp_path: Path) -> None:
    texts = ["[1, 2]: the sum?", '[{"item": 1}] how many?']
    rows = [{"prompt": text, "answer": "y"} for text in texts]
    assert [prompt.text for prompt in read(write_jsonl(tmp_path / "a.jsonl", rows))] == texts


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"prompt": []}, "column 'prompt' has no message; add the user's message"),
        ({"prompt": [USER, {"role": "assistant", "content": "y"}]},
            "ends with a message of role 'assistant', which would be part of the prompt; end the"),
        ({"prompt": [{"content": "x"}]}, "has no role in message 1; write each message as {role, "),
        ({"prompt": [{"role": "user", "content": None}]}, "has NoneType None as content of mess"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]},
            "has a content part of type image in message 1; remove the part; only text"),
        ({"prompt": [{"role": "user", "content": [{"type": "text"}]}]},
            "has a content part of type text in message 1"),
        ({"answer": [{"role": "assistant", "content": 7}]},
            "column 'answer' has int 7 as content of message 1; set the content to a string"),
        ({"prompt": "[{'role': 'user', 'content': 'x'}]"},
            "looks like a list of messages but is not JSON (Expecting property name"),
        ({"prompt": 7}, "column 'prompt' is int 7 instead of a string or a list of messages"),
        ({"answer": {"target": ["a"], "style": "rule"}},
            "instead of a string or a list of strings; set data.columns.answer to answer.target, "
            "answer.style"),
    ],
)  # fmt: skip
def test_invalid_row_is_reported_with_number_reason_and_remedy(
    row: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    good = {"prompt": "x", "answer": "y"}
    file = write_jsonl(tmp_path / "a.jsonl", [good, good | row])
    with pytest.raises(TrainerError) as raised:
        read(file)
    assert str(raised.value).startswith(f"{file}, line 2: ")
    assert expected in str(raised.value)


def test_missing_column_path_error_lists_nested_columns(tmp_path: Path) -> None:
    file = write_jsonl(tmp_path / "a.jsonl", [gsm8k_row("1 + 1?", "2")])
    with pytest.raises(TrainerError, match=r"one of: .*reward_model\.ground_truth, reward_model"):
        read(file, {"answer": "reward_model.truth"})


@pytest.mark.row("D4")
def test_first_invalid_rows_are_reported_with_row_numbers(tmp_path: Path) -> None:
    good, bad = {"prompt": "x", "answer": "y"}, {"prompt": " ", "answer": "y"}
    file = write_jsonl(tmp_path / "a.jsonl", [bad, good, bad, bad, bad, bad])
    with pytest.raises(TrainerError) as raised:
        read(file)
    reported = str(raised.value)
    assert all(f"line {number}: column 'prompt' is blank" in reported for number in (1, 3, 4))
    assert reported.endswith("; 2 more rows are invalid")
