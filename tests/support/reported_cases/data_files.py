"""Reported cases about data files."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts
from support.builders.data.rows import write_rows
from support.builders.trainer.preflight import check_of, make_fit_config
from support.reported_cases.case import case
from support.reported_cases.checks import expect, preflight

LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 12345\n"
MAP = pa.map_(pa.string(), pa.string())
ANSWER_PATH = "reward_model.ground_truth"
ROW = {"prompt": "q", "answer": "a"}
QUESTION = "请问中国的首都是哪里？"


def expect_failure(
    folder: Path, check: CheckId, *words: str, changes: Mapping[str, Any] | None = None
) -> None:
    """Assert that preflight fails a check with evidence that contains all words."""
    expect(preflight(folder, changes), check, CheckState.FAILED, *words)


def expect_warning(folder: Path, check: CheckId, changes: Mapping[str, Any], *words: str) -> None:
    expect(preflight(folder, changes), check, CheckState.WARNED, *words)


def train_on(file: Path, **data: Any) -> dict[str, Any]:
    return {"data.trainFiles": [str(file)], **{f"data.{key}": each for key, each in data.items()}}


def prompts_of(folder: Path, changes: Mapping[str, Any]) -> list[Prompt]:
    config = make_fit_config(folder, changes)
    return read_prompts(config.data.train_files, config.data, config.retrieval, config.reward)


def write_table(path: Path, columns: Mapping[str, pa.Array]) -> Path:
    pq.write_table(pa.table(dict(columns)), path)
    return path


@case("D1", fault="A file is a pointer of Git LFS", inputs=["t.parquet", "t.jsonl", "t.json"])
def pointer_as_data_is_rejected(folder: Path, name: str) -> None:
    (folder / name).write_bytes(LFS_POINTER)
    words = (f"{name}: is a Git LFS pointer, not the file; run `git lfs pull`",)
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(folder / name))


@case(
    "D1-model",
    fault="A file is a pointer of Git LFS",
    inputs=["a.safetensors", "config.json", "tokenizer.json", "model.safetensors.index.json"],
)
def pointer_in_model_folder_is_rejected(folder: Path, name: str) -> None:
    make_fit_config(folder)
    (folder / "model" / name).write_bytes(LFS_POINTER)
    words = (f"model/{name}", "is a Git LFS pointer, not the file; run `git lfs pull`")
    expect_failure(folder, CheckId.MODEL_READABLE, *words)


@case("D1-corpus", fault="A file is a pointer of Git LFS", inputs=["c.jsonl", "c.parquet"])
def pointer_as_corpus_is_rejected(folder: Path, name: str) -> None:
    corpus = folder / name
    corpus.write_bytes(LFS_POINTER)
    endpoint = {"name": "kb", "managed": {"corpus": str(corpus)}}
    changes = {"retrieval.mode": "Prompt", "retrieval.endpoints": [endpoint]}
    words = ("managed.corpus", f"{name} is a Git LFS pointer, not the file; run `git lfs pull`")
    expect_failure(folder, CheckId.EMBEDDING_READABLE, *words, changes=changes)


IMAGES = [{"bytes": b"x", "path": "x.png"}]
IMAGE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


@dataclass(frozen=True)
class Images:
    """A row with image data, and words of the message that rejects it."""

    row: dict[str, Any]
    word: str


@case(
    "D2",
    fault="Image data is dropped silently",
    inputs=[
        Images({"prompt": "<image>q", "images": ["x.png"]}, "'images'"),
        Images({"prompt": "q", "images": [{"bytes": "eA==", "path": None}]}, "'images'"),
        Images({"prompt": "q", "photo": {"bytes": None, "path": "x.png"}}, "'photo'"),
        Images({"prompt": "<image>q", "image": "x.png"}, "<image>"),
        Images({"prompt": "<image>q"}, "<image>"),
        Images({"prompt": "<video>q", "videos": "x.mp4"}, "<video>"),
    ],
)
def image_data_is_rejected(folder: Path, given: Images) -> None:
    file = write_rows(folder / "t.jsonl", [ROW | {"images": []}, ROW | given.row])
    words = ("line 2", given.word, "not supported")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(file))


@case(
    "D2-parquet",
    fault="Image data is dropped silently",
    inputs=[
        pa.array([[], IMAGES], pa.list_(IMAGE_TYPE)),
        pa.array([None, IMAGES[0]], IMAGE_TYPE),
        pa.array([[], ["x.png"]], pa.list_(pa.string())),
        pa.array([None, b"x"], pa.binary()),
    ],
)
def parquet_image_column_is_rejected(folder: Path, images: pa.Array) -> None:
    texts = {"prompt": pa.array(["q", "q"]), "answer": pa.array(["a", "a"])}
    file = write_table(folder / "t.parquet", {**texts, "images": images})
    words = ("row 2: column 'images' has image data, which is not supported",)
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(file))


@case(
    "D3",
    fault="A list of messages is trained as text",
    inputs=[
        json.dumps([{"from": "human", "value": "q"}]),
        json.dumps([{"id": 0, "role": "user", "content": "q"}]),
        json.dumps([{"name": "u", "role": "user", "content": "q"}]),
        json.dumps({"role": "user", "content": "q"}),
        json.dumps([{"content": "q", "role": "user"}], indent=1),
        json.dumps(json.dumps([{"role": "user", "content": "q"}])),
        json.dumps([{"role": "user", "value": "q"}]),
        json.dumps([{"from": "user", "content": "q"}]),
        "\ufeff" + json.dumps([{"role": "user", "content": "q"}]),
        [{"role": "user", "value": "q"}],
        [{"from": "user", "content": "q"}],
        [{"from": "human", "value": "q"}],
        [{"from": "human", "value": "q", "role": None, "content": None}],
        [{"from": "system", "value": "s"}, {"from": "human", "value": "q"}],
    ],
)
def messages_are_parsed(folder: Path, prompt: object) -> None:
    file = write_rows(folder / "t.jsonl", [ROW | {"prompt": prompt}])
    [parsed] = prompts_of(folder, train_on(file))
    assert parsed.text == "q"
    assert [each["role"] for each in parsed.earlier] in ([], ["system"])


@case(
    "D3-printed",
    fault="A list of messages is trained as text",
    inputs=[
        "array([{'content': 'q', 'role': 'user'}], dtype=object)",
        "[{'content': 'q', 'role': 'user'}]",
        "[{'content': 's', 'role': 'system'}\n {'content': 'q', 'role': 'user'}]",
        "np.array([{'from': 'human', 'value': 'q'}], dtype=object)",
        "({'role': 'user', 'content': 'q'},)",
        "[[{'role': 'user', 'content': 'q'}]]",
        json.dumps([[{"role": "user", "content": "q"}]]),
        json.dumps({"messages": [{"role": "user", "content": "q"}]}),
        json.dumps({"conversations": [{"from": "human", "value": "q"}]}),
        json.dumps({"id": 1, "chat": {"messages": [{"role": "user", "content": "q"}]}}),
        json.dumps(json.dumps({"messages": [{"role": "user", "content": "q"}]})),
        json.dumps([{"Role": "user", "Content": "q"}]),
        json.dumps([{"type": "human", "content": "q"}]),
        json.dumps([["user", "q"]]),
        "[('human', 'q'), ('ai', 'a')]",
        "[HumanMessage(content='q')]",
        "[HumanMessage(content='q', additional_kwargs={})]",
        "HumanMessage(content='q')",
        "ChatPromptValue(messages=[HumanMessage(content='q')])",
        "[Message(role='user', content='q')]",
        "[openai.ChatCompletionMessage(content='q', role='user')]",
        "\ufeff[{'role': 'user', 'content': 'q'}]",
        "[{'from': 'user', 'content': 'q'}]",
        [["user", "q"]],
        [{"Role": "user", "Content": "q"}],
        {"messages": [{"role": "user", "content": "q"}]},
        [{"from": "narrator", "value": "q"}],
        json.dumps([{"from": "gpt", "value": "a"}]),
    ],
)
def printed_messages_are_rejected_by_row(folder: Path, prompt: object) -> None:
    file = write_rows(folder / "t.jsonl", [ROW, ROW | {"prompt": prompt}])
    expect_failure(folder, CheckId.DATA_READABLE, "line 2: column 'prompt'", changes=train_on(file))


@case(
    "D3-text",
    fault="A text is taken for a list of messages",
    inputs=[
        '{"from": "bob@example.com", "content": "Hi"} Summarize this mail.',
        '{"from": "bob@example.com", "content": "Hi"}',
        '{"staff": [{"role": "nurse", "name": "Ada"}], "content": "x"}',
        '[["user", "q"]]: which type is this?',
        "[['Ada', 'Lovelace']]",
        '[{"type": "function", "parameters": {"content": {"type": "string"}}}] Use these tools.',
        "How do I write HumanMessage(content='q')?",
        "[Message] What does send(content='q') do?",
    ],
)
def text_that_resembles_messages_is_read(folder: Path, prompt: str) -> None:
    file = write_rows(folder / "t.jsonl", [ROW | {"prompt": prompt}])
    assert [each.text for each in prompts_of(folder, train_on(file))] == [prompt]


@case("D3-answer", fault="A text is taken for a list of messages")
def answer_with_messages_below_is_read(folder: Path) -> None:
    answer = json.dumps({"messages": [{"role": "user", "content": "q"}]})
    file = write_rows(folder / "t.jsonl", [ROW | {"answer": answer}])
    assert [each.answer for each in prompts_of(folder, train_on(file))] == [(answer,)]


@case("D4", fault="One JSON array instead of lines", inputs=["t.json", "t.jsonl"])
def json_array_is_rejected(folder: Path, name: str) -> None:
    for number, indent in enumerate((None, 1)):
        file = folder / f"{number}{name}"
        file.write_text(json.dumps([ROW, ROW], indent=indent))
        words = ("contains one JSON array", "expected one object per line")
        expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(file))


@dataclass(frozen=True)
class Encoded:
    """An encoding, and the word that names it in the message."""

    encoding: str
    word: str


@case(
    "D5",
    fault="Text is not in UTF-8",
    inputs=[
        Encoded("gbk", "GBK"),
        Encoded("gb18030", "GBK"),
        Encoded("utf-16", "UTF-16"),
        Encoded("utf-16-le", "UTF-16"),
        Encoded("utf-16-be", "UTF-16"),
        Encoded("utf-32", "UTF-32"),
        Encoded("utf-32-le", "UTF-32"),
    ],
)
def other_encoding_is_named(folder: Path, given: Encoded) -> None:
    text = json.dumps(ROW | {"prompt": QUESTION}, ensure_ascii=False) + "\n"
    (folder / "t.jsonl").write_bytes(text.encode(given.encoding))
    words = (f"not UTF-8, likely {given.word}; convert the file", f"iconv -f {given.word}")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(folder / "t.jsonl"))


@case("D5-parquet", fault="Text is not in UTF-8")
def other_encoding_in_parquet_is_named(folder: Path) -> None:
    texts = pa.array([QUESTION.encode("gbk")], pa.binary()).view(pa.string())
    file = write_table(folder / "t.parquet", {"prompt": texts, "answer": pa.array(["a"])})
    words = ("t.parquet", "not UTF-8, likely GBK")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(file))


@case("D5-mark", fault="Text is not in UTF-8")
def byte_order_mark_of_utf8_is_read(folder: Path) -> None:
    text = json.dumps(ROW | {"prompt": QUESTION}, ensure_ascii=False) + "\n"
    (folder / "t.jsonl").write_bytes((text + text).encode("utf-8-sig"))
    assert [p.text for p in prompts_of(folder, train_on(folder / "t.jsonl"))] == [QUESTION] * 2


@case("D6", fault="Two columns have the same name")
def duplicate_parquet_column_is_rejected(folder: Path) -> None:
    columns = [pa.array([text]) for text in ("q", "other", "a")]
    pq.write_table(pa.table(columns, names=["prompt", "prompt", "answer"]), folder / "t.parquet")
    words = ("t.parquet: duplicate column", "'prompt'")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(folder / "t.parquet"))


@case("D6-unused", fault="Two columns have the same name")
def unused_duplicate_parquet_column_is_ignored(folder: Path) -> None:
    columns = [pa.array([text]) for text in ("q", "a", "1", "2")]
    pq.write_table(pa.table(columns, names=["prompt", "answer", "x", "x"]), folder / "t.parquet")
    [prompt] = prompts_of(folder, train_on(folder / "t.parquet"))
    assert (prompt.text, prompt.answer) == ("q", ("a",))


@case("D6-images", fault="Two columns have the same name")
def duplicate_image_column_is_rejected(folder: Path) -> None:
    columns = [pa.array(["q"]), pa.array(["a"]), *[pa.array(IMAGES, IMAGE_TYPE)] * 2]
    names = ["prompt", "answer", "images", "images"]
    pq.write_table(pa.table(columns, names=names), folder / "t.parquet")
    words = ("t.parquet", "'images'")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(folder / "t.parquet"))


@case("D6-map", fault="Two columns have the same name")
def duplicate_key_of_map_is_rejected(folder: Path) -> None:
    maps = pa.array([[("ground_truth", "1"), ("ground_truth", "2")]], MAP)
    texts = {"prompt": pa.array(["q"]), "reward_model": maps}
    file = write_table(folder / "t.parquet", texts)
    changes = train_on(file, **{"columns.answer": ANSWER_PATH})
    words = ("t.parquet", "a map has", "ground_truth", "twice")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=changes)


@case("D6-key", fault="Two columns have the same name")
def duplicate_json_key_is_rejected(folder: Path) -> None:
    (folder / "t.jsonl").write_text('{"prompt": "q", "answer": "a", "prompt": "other"}\n')
    words = ("line 1: duplicate column", "'prompt'")
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=train_on(folder / "t.jsonl"))


@case(
    "D7",
    fault="A nested column is a map or JSON text",
    inputs=[
        pa.array([[("style", "rule"), ("ground_truth", "72")]], MAP),
        pa.array(['{"style": "rule", "ground_truth": "72"}']),
        pa.array([{"ground_truth": "72"}]),
    ],
)
def nested_column_is_read(folder: Path, column: pa.Array) -> None:
    file = write_table(folder / "t.parquet", {"prompt": pa.array(["q"]), "reward_model": column})
    changes = train_on(file, **{"columns.answer": ANSWER_PATH})
    [prompt] = prompts_of(folder, changes)
    assert prompt.answer == ("72",)
    result = preflight(folder, changes)
    assert check_of(result, CheckId.DATA_COLUMNS).state is CheckState.PASSED
    assert check_of(result, CheckId.DATA_READABLE).state is CheckState.PASSED


@case(
    "D7-type",
    fault="A nested column is a map or JSON text",
    inputs=["{'ground_truth': '72'}", "72", ["72"], 72],
)
def other_type_of_nested_column_is_named(folder: Path, value: object) -> None:
    file = write_table(
        folder / "t.parquet", {"prompt": pa.array(["q"]), "reward_model": pa.array([value])}
    )
    words = ("row 1", f"column 'reward_model' is {type(value).__name__}")
    changes = train_on(file, **{"columns.answer": ANSWER_PATH})
    expect_failure(folder, CheckId.DATA_READABLE, *words, changes=changes)


CHAT = "{% for m in messages %}{{ m.content }} {% endfor %}"
WITHOUT_SYSTEM = (
    "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"
)


def conversation(system: str, question: str, *, role: str = "system") -> dict[str, Any]:
    turns = [{"role": role, "content": system}, {"role": "user", "content": question}]
    return ROW | {"prompt": turns}


@case("D8", fault="Truncation cannot help", inputs=["system", "assistant"])
def row_that_cannot_be_truncated_is_named(folder: Path, role: str) -> None:
    rows = [conversation("s", "q"), conversation("s" * 99, "q", role=role)]
    file = write_rows(folder / "t.jsonl", rows)
    changes = {"allowTruncation": True, "maxPromptLength": 64, "chatTemplate": CHAT}
    words = ("row 1 ", "cannot be truncated", "data.maxPromptLength")
    expect_failure(folder, CheckId.SAMPLE_LENGTHS, *words, changes=train_on(file, **changes))


@case("D8-tools", fault="Truncation cannot help")
def row_with_long_tools_is_named(folder: Path) -> None:
    tools = json.dumps([{"name": "search", "description": "s" * 3000}])
    rows = [ROW | {"tools": tools}, *[ROW | {"prompt": "q" * 9, "tools": None}] * 120]
    file = write_rows(folder / "t.jsonl", rows)
    changes = {"allowTruncation": True, "maxPromptLength": 200, "columns.tools": "tools"}
    template = CHAT + "{{ tools[0].description if tools }}"
    words = ("row 0 ", "tools", "cannot be truncated", "data.maxPromptLength")
    changes = train_on(file, chatTemplate=template, **changes)
    expect_failure(folder, CheckId.SAMPLE_LENGTHS, *words, changes=changes)


@case("D9", fault="The chat template drops a message")
def dropped_system_message_is_shown(folder: Path) -> None:
    file = write_rows(folder / "t.jsonl", [ROW, conversation("Be brief.", "Who?")])
    changes = train_on(file, chatTemplate=WITHOUT_SYSTEM)
    words = ("chat template omits", "system", "row 1", "'Who?'")
    expect_warning(folder, CheckId.SAMPLE_LENGTHS, changes, *words)


@case("D10-choices", fault="A column that belongs to the prompt is not used")
def unused_choices_are_named(folder: Path) -> None:
    file = write_rows(folder / "t.jsonl", [{"question": "q", "choices": ["a", "b"], "answer": "a"}])
    changes = train_on(file, **{"columns.prompt": "question"})
    expect_warning(folder, CheckId.DATA_COLUMNS, changes, "column 'choices' is not used", "line 1")


@case("D10", fault="A column that belongs to the prompt is not used")
def unused_input_column_is_named(folder: Path) -> None:
    rows = [
        {"instruction": "Translate.", "input": "", "output": "a"},
        {"instruction": "Translate.", "input": "Bonjour", "output": "Hello"},
    ]
    file = write_rows(folder / "t.jsonl", rows)
    changes = {"columns.prompt": "instruction", "columns.answer": "output"}
    words = ("column 'input' is not used", "line 2")
    expect_warning(folder, CheckId.DATA_COLUMNS, train_on(file, **changes), *words)
