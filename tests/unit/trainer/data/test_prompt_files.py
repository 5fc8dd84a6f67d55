import json
import os
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raggrpo_api.data_files import DATA_SUFFIXES, is_data_file
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts, stage_files
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.rewards.text_match import exact_match

EXACT_MATCH = RewardSpec()
FORMAT = RewardSpec.model_validate({"functions": [{"name": "Format"}]})
NO_RETRIEVAL = RetrievalSpec()
IN_REWARD = RetrievalSpec.model_validate({"mode": "Reward"})
ROWS: list[dict[str, Any]] = [
    {"prompt": "Capital of Chad?", "answer": "N'Djamena", "context": "Africa", "q": "chad"},
    {"prompt": "1 + 1?", "answer": ["2", "two"], "context": "", "q": "sum"},
]


def make_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n\n".join(json.dumps(row) for row in rows) + "\n")
    return str(path)


def make_parquet(path: Path, rows: list[dict[str, Any]]) -> str:
    answers = [[a] if isinstance(a, str) else a for a in (row["answer"] for row in rows)]
    table = pa.Table.from_pylist([r | {"answer": a} for r, a in zip(rows, answers, strict=True)])
    pq.write_table(table, path, row_group_size=1)
    return str(path)


def read(
    files: list[str],
    retrieval: RetrievalSpec = NO_RETRIEVAL,
    reward: RewardSpec | None = EXACT_MATCH,
    **data: Any,
) -> list[Prompt]:
    spec = DataSpec.model_validate({"trainFiles": files or ["/none"], **data})
    return read_prompts(files, spec, retrieval, reward)


def test_prompts_are_equal_from_jsonl_and_parquet(tmp_path: Path) -> None:
    expected = [
        Prompt(0, "Capital of Chad?", "Capital of Chad?", ("N'Djamena",), "Africa"),
        Prompt(1, "1 + 1?", "1 + 1?", ("2", "two"), ""),
    ]

    assert read([make_jsonl(tmp_path / "a.jsonl", ROWS)]) == expected
    assert read([make_parquet(tmp_path / "a.parquet", ROWS)]) == expected


def test_column_mapping_supports_renaming_and_separate_query(tmp_path: Path) -> None:
    file = make_jsonl(tmp_path / "a.jsonl", [{"Frage": "Wie?", "Antwort": "So", "q": "wie"}])
    [prompt] = read([file], columns={"prompt": "Frage", "answer": "Antwort", "query": "q"})
    assert prompt == Prompt(0, "Wie?", "wie", ("So",), "")


def test_rows_are_numbered_across_files_and_limited_by_max_samples(tmp_path: Path) -> None:
    files = [make_jsonl(tmp_path / f"{i}.jsonl", ROWS) for i in range(2)]
    assert [p.index for p in read(files)] == [0, 1, 2, 3]
    assert [p.index for p in read(files, maxSamples=3)] == [0, 1, 2]


def test_rows_after_max_samples_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text(json.dumps(ROWS[0]) + "\n{broken\n")
    assert len(read([str(file), "/missing.jsonl"], maxSamples=1)) == 1


def test_prompts_are_empty_without_data_files() -> None:
    assert read([]) == []


def test_unused_columns_may_be_missing_or_null(tmp_path: Path) -> None:
    file = make_jsonl(tmp_path / "a.jsonl", [{"prompt": "a"}, {"prompt": "b", "answer": None}])
    assert [p.answer for p in read([file], reward=FORMAT)] == [(), ()]


def case(name: str, content: bytes, expected: str, **changes: Any) -> Any:
    return pytest.param(name, content, expected, changes, id=expected[:40])


def make_judge_spec(column: str) -> RewardSpec:
    judge = {"model": "m", "prompt": f"{{{column}}} {{completion}}"}
    term = {"name": "Judge", "url": "http://grader/v1/chat/completions", "judge": judge}
    return RewardSpec.model_validate({"functions": [term]})


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_templates_refer_to_nested_columns_by_path(tmp_path: Path, kind: str) -> None:
    rows = [{"prompt": "x", "extra_info": {"rubric": "short", "level": level}} for level in (3, 4)]
    file = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), file)
    else:
        file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))

    prompts = read([str(file)], reward=make_judge_spec("extra_info.level"))
    assert [prompt.columns for prompt in prompts] == [
        {"extra_info.level": 3},
        {"extra_info.level": 4},
    ]
    with pytest.raises(TrainerError, match=r"does not exist, but reward.*of: .*extra_info\.rubric"):
        read([str(file)], reward=make_judge_spec("extra_info.grade"))


GOOD = b'{"prompt": "x", "answer": "y"}\n'


@pytest.mark.row("D4")
@pytest.mark.parametrize(
    ("name", "content", "expected", "changes"),
    [
        case("a.jsonl", GOOD + b"\n{oops\n", ", line 3: not JSON (Expecting property name"),
        case("a.jsonl", GOOD + b"\xff\n", ", line 2: not UTF-8, likely Windows-1252; convert"),
        case("a.jsonl", b"[1]\n", ": contains one JSON array; expected one object per line"),
        case("a.jsonl", b"1\n", ", line 1: not a JSON object; write one object per line"),
        case("a.jsonl", b"\n", ": no rows; add one row per prompt"),
        case("a.jsonl", b'{"text": "x", "id": 3}\n', ", line 1: there is no column 'prompt'; set "
            "data.columns.prompt to one of: id, text"),
        case("a.jsonl", GOOD + b'{"prompt": "x"}\n', ", line 2: there is no column 'answer'; set "
            "data.columns.answer to one of: prompt"),
        case("a.jsonl", GOOD, ", line 1: there is no column 'context'; set data.columns.context to "
            "one of: answer, prompt", retrieval=IN_REWARD),
        case("a.jsonl", GOOD, ", line 1: there is no column 'q'; set data.columns.query to one of: "
            "answer, prompt", columns={"query": "q"}),
        case("a.jsonl", b'{"prompt": "x", "answer": null}\n', ", line 1: column 'answer' is null; "
            "fill in the column, or drop the row"),
        case("a.jsonl", b'{"prompt": " ", "answer": "y"}\n', ", line 1: column 'prompt' is blank; "
            "drop the row"),
        case("a.jsonl", b'{"prompt": ["x"], "answer": "y"}\n', ", line 1: column 'prompt' is a "
            "list whose item 1 is str 'x' instead of a string or a message; use a string "),
        case("a.jsonl", b'{"prompt": "x", "answer": 72}\n', ", line 1: column 'answer' is int 72 "
            "instead of a string or a list of strings; convert it"),
        case("a.jsonl", b'{"prompt": "x", "answer": []}\n', ", line 1: column 'answer' is list []"),
        case("a.jsonl", b'{"prompt": "x", "answer": ["y", 1]}\n', ", line 1: column 'answer' is "),
        case("a.jsonl", b'{"prompt": "x", "answer": " "}\n', ", line 1: column 'answer' is blank;"),
        case("a.jsonl", GOOD + b'{"prompt": "x\\ud83d", "answer": "y"}\n', ", line 2: "
            "contains a lone surrogate (\\ud…); write the text as UTF-8"),
        case("a.jsonl", b'{"prompt": ' + b"[" * 99_999 + b"\n", ", line 1: nested too deeply; "),
        case("a.csv", GOOD, ": unsupported file type; use .parquet or .jsonl"),
        case("a.parquet", b"PAR1 cut short", ": cannot be read as Parquet ("),
    ],
)  # fmt: skip
def test_invalid_data_is_rejected_with_file_row_column_and_remedy(
    tmp_path: Path, name: str, content: bytes, expected: str, changes: dict[str, Any]
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(TrainerError) as raised:
        read([str(file)], **changes)

    assert raised.value.exit_code is ExitCode.DATA_ERROR
    assert str(raised.value).startswith(f"{file}{expected}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("suffix", DATA_SUFFIXES)
@pytest.mark.parametrize("change", [str, str.upper])
def test_selected_suffixes_are_read(
    tmp_path: Path, suffix: str, change: Callable[[str], str]
) -> None:
    file = tmp_path / f"rows{change(suffix)}"
    if suffix == ".parquet":
        pq.write_table(pa.table({"prompt": ["x"], "answer": ["y"]}), file)
    else:
        file.write_bytes(GOOD)
    assert is_data_file(PurePath(file.name))
    assert len(read([str(file)])) == 1


def test_folder_is_rejected_as_data_file(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").mkdir()
    with pytest.raises(TrainerError, match="is a folder; list its files in"):
        read([str(tmp_path / "train.jsonl")])


def test_blank_answer_among_others_is_retained(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'{"prompt": "x \\ud83d\\ude00", "answer": ["Ada", ""]}\n')
    [prompt] = read([str(file)])
    assert prompt.text == "x \U0001f600"
    assert [exact_match(text, prompt.answer) for text in ("", "ada")] == [0.0, 1.0]


def test_missing_parquet_column_lists_all_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"question": ["x"], "answer": ["y"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(TrainerError, match=r"row 1: there is no column 'prompt'; .*answer, n, que"):
        read([str(tmp_path / "a.parquet")])


def test_corrupt_parquet_file_is_named_in_error(tmp_path: Path) -> None:
    file = Path(make_parquet(tmp_path / "a.parquet", ROWS))
    content = bytearray(file.read_bytes())
    metadata = pq.ParquetFile(file).metadata.row_group(1).column(0)
    start = metadata.dictionary_page_offset or metadata.data_page_offset
    content[start : start + metadata.total_compressed_size] = bytes(metadata.total_compressed_size)
    file.write_bytes(content)

    with pytest.raises(
        TrainerError, match=r"a.parquet: cannot be read as Parquet \(.*; write the file again"
    ):
        read([str(file)])


def test_missing_data_file_is_named_in_error() -> None:
    with pytest.raises(TrainerError, match=r"^/no/a.jsonl: no such file; mount its volume, or"):
        read(["/no/a.jsonl"])


# --- staging ----------------------------------------------------------------------------------


@pytest.mark.row("A6")
def test_staged_files_are_reused_until_source_changes(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    files = [
        make_jsonl(tmp_path / "a.jsonl", ROWS),
        make_jsonl(tmp_path / "x" / "a.jsonl", ROWS[:1]),
    ]
    staged = stage_files(files, tmp_path / "fast" / "disk")

    assert [Path(s).read_bytes() for s in staged] == [Path(f).read_bytes() for f in files]
    assert all(Path(s).parent == tmp_path / "fast" / "disk" for s in staged)
    before = [Path(s).stat().st_ino for s in staged]
    os.utime(files[1], (1, 1))
    assert stage_files(files, tmp_path / "fast" / "disk") == staged
    after = [Path(s).stat().st_ino for s in staged]
    assert after[0] == before[0]
    assert Path(staged[1]).stat().st_mtime == 1
    assert len(list((tmp_path / "fast" / "disk").iterdir())) == 2


@pytest.mark.parametrize("name", ["missing.jsonl", "a.jsonl"])
def test_staging_failure_names_file_and_field(tmp_path: Path, name: str) -> None:
    make_jsonl(tmp_path / "a.jsonl", ROWS)
    (tmp_path / "blocked").write_text("")
    with pytest.raises(TrainerError, match=rf"{name}: cannot be copied .*stageToLocalDisk: false"):
        stage_files([str(tmp_path / name)], tmp_path / "blocked" / "folder")
