"""Invalid job files: the command reports field and remedy."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_cli.main import app
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import make_raw_job
from support.builders.operator.wrong_jobs import (
    WRONG_FORMS,
    WRONG_VALUES,
    prompt_mode,
    rewards,
)
from support.builders.trainer.preflight import make_model_folder

CONFIG, DATA, PREFLIGHT = ExitCode.CONFIG_ERROR, ExitCode.DATA_ERROR, ExitCode.PREFLIGHT_FAILED


@dataclass(frozen=True)
class Result:
    """Exit code and output of a command."""

    code: int
    output: str


def raggrpo(*arguments: object) -> Result:
    invoked = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if not isinstance(invoked.exception, SystemExit | None):
        raise invoked.exception  # a user would see a traceback
    return Result(invoked.exit_code, invoked.output)


def assert_rejected(result: Result, texts: Sequence[str], code: int = CONFIG) -> None:
    """Assert that one line contains all texts: field, message and remedy belong together."""
    lines = result.output.splitlines()
    assert any(all(text in line for text in texts) for line in lines), result.output
    assert "Traceback" not in result.output
    assert result.code == code


def make_file(folder: Path, text: str) -> Path:
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def make_job_file(folder: Path, changes: Mapping[str, Any]) -> Path:
    return make_file(folder, yaml.safe_dump(make_raw_job(changes)))


# --- YAML

ANY = json.dumps(make_raw_job())


@pytest.mark.parametrize(
    ("text", "texts"),
    [
        pytest.param("", ["job.yaml is empty", "crds/samples"], id="empty file"),
        pytest.param("# later\n", ["job.yaml is empty", "crds/samples"], id="only a comment"),
        pytest.param("spec: [", ["job.yaml (file) line 1", "→ fix the YAML"], id="not YAML"),
        pytest.param(
            "kind: RagGrpoJob\nspec:\n  preset: Fast\n  preset: Debug\n",
            ["line 4", "'preset' is specified twice", "→ fix the YAML"],
            id="a key given twice",
        ),
        pytest.param(f"{ANY}\n---\n{ANY}\n", ["a file must contain one job"], id="two documents"),
        pytest.param("- a\n- b\n", ["(file)", "start with apiVersion"], id="a list"),
        pytest.param("just texts", ["(file)", "start with apiVersion"], id="a string"),
        pytest.param(
            "a: &a [*a]\n",
            ["line 1, column 8", "alias 'a' contains itself"],
            id="an alias of itself",
        ),
        pytest.param("[" * 5000, ["job.yaml", "nested too deeply"], id="absurd nesting"),
        pytest.param(f"spec: {'9' * 5000}", ["spec: '999", "is not an object"], id="huge integer"),
        pytest.param("spec: 2026-99-99", ["spec: '2026-99-99' is not an object"], id="a date"),
        pytest.param('a: "\\UFFFFFFFF"', ["a value cannot be read"], id="no character"),
    ],
)
def test_validate_rejects_file_without_job(text: str, texts: list[str], tmp_path: Path) -> None:
    assert_rejected(raggrpo("validate", make_file(tmp_path, text)), texts)


def test_validate_rejects_missing_file_and_folder(tmp_path: Path) -> None:
    missing = tmp_path / "jib.yaml"
    assert_rejected(raggrpo("validate", missing), [f"{missing}: no such file", "crds/samples"])
    assert_rejected(raggrpo("validate", tmp_path), [f"{tmp_path} is a folder", "job.yaml"])


def test_validate_rejects_binary_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(b"\xff\xfe\x00spec")
    assert_rejected(raggrpo("validate", path), [f"{path} cannot be read", "utf-8"])


def test_cli_module_rejects_invalid_job_without_traceback(tmp_path: Path) -> None:
    path = make_job_file(tmp_path, {"spec.rollout": {"n": "three"}})
    result = subprocess.run(
        [sys.executable, "-m", "raggrpo_cli.main", "validate", str(path)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert_rejected(Result(result.returncode, result.stderr), ["spec.rollout.n", "→ specify"])
    assert result.stdout == ""


# --- schema and rules


@pytest.mark.row("A1", "A22", "C1", "C3", "C9", "C10", "C11", "C14", "C15", "C16", "C19")
@pytest.mark.parametrize("row", WRONG_FORMS | WRONG_VALUES)
def test_validate_reports_field_and_remedy(row: str, tmp_path: Path) -> None:
    changes, texts = (WRONG_FORMS | WRONG_VALUES)[row]
    result = raggrpo("validate", make_job_file(tmp_path, changes))
    assert_rejected(result, texts)
    assert "abc" not in result.output  # secrets are not printed
    assert "me:word" not in result.output


def test_validate_accepts_unmodified_job(tmp_path: Path) -> None:
    assert raggrpo("validate", make_job_file(tmp_path, {})).code == ExitCode.DONE


@pytest.mark.row("B2")
def test_validate_reports_all_violations(tmp_path: Path) -> None:
    changes = {
        "spec.rollout.temperature": 0,
        "spec.checkpoint.keepLast": 1,
        "spec.training": {"offPolicySteps": 1},
    }

    result = raggrpo("validate", make_job_file(tmp_path, changes))

    assert "4 problems in the job file" in result.output
    for place in (
        "spec.rollout.temperature",
        "spec.checkpoint.keepLast",
        "spec.training.totalSteps",
        "spec.training.offPolicySteps",
    ):
        assert f"  {place}: " in result.output


# --- options

ON_CPU = ("--set", "resources.device=CPU")


@pytest.mark.parametrize(
    ("options", "texts"),
    [
        pytest.param(("--mount", "wrok=/tmp"),
            ["--mount wrok=/tmp", "claims: work", "--mount work=/tmp"], id="unknown claim"),
        pytest.param((), ["--mount work=/path/to/folder", "/mnt/runs"], id="missing mount"),
        pytest.param(("--mount", "work=/nowhere/at/all"),
            ["folder does not exist", "mkdir -p /nowhere/at/all"], id="mount of a missing folder"),
        pytest.param(("--mount", "work"), ["--mount work", "expected --mount CLAIM=DIR"],
            id="bad mount"),
        pytest.param(("--set", "rollout.temprature=1"),
            ["spec.rollout.temprature", "did you mean temperature?"], id="set of an unknown path"),
        pytest.param(("--set", "data.trainFiles[3]=/a"),
            ["--set data.trainFiles[3]=/a", "has 1 items; indices start at"], id="set beyond list"),
        pytest.param(("--set", "n"), ["--set n", "expected --set PATH=VALUE"], id="bad set"),
        pytest.param(("--endpoint", "kbs=http://127.0.0.1:9/"),
            ["--endpoint kbs=", "did you mean kb?"], id="unknown endpoint"),
        pytest.param(("--mount", "work=/tmp", "--set", "resources.nodes=2"),
            ["spec.resources.nodes is 2", "--set resources.nodes=1"],
            id="two nodes on one machine"),
        pytest.param(
            ("--mount", "work=/tmp", "--set", "env=[{name: A, secretKeyRef: {name: s, key: k}}]"),
            ["spec.env A refers to key k of Secret s", "export RAGGRPO_SECRET_S_K="],
            id="secret that nothing stands in for"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["check", "run"])
def test_invalid_option_error_suggests_valid_option(
    command: str, options: tuple[str, ...], texts: list[str], tmp_path: Path
) -> None:
    path = make_job_file(tmp_path, prompt_mode())
    folder = ("--dir", tmp_path / "job") if command == "run" else ()
    assert_rejected(raggrpo(command, path, *ON_CPU, *options, *folder), texts)
    assert not (tmp_path / "job").exists()


# --- preflight: one `check` for each file, several problems in each


def make_local_job(folder: Path, changes: Mapping[str, Any]) -> Path:
    model = make_model_folder(folder / "model")
    train = write_rows(
        folder / "train.jsonl", [{"prompt": f"question {i}", "answer": "A"} for i in range(8)]
    )
    fit = {
        "spec.volumes": [],
        "spec.model.path": str(model),
        "spec.data": {"trainFiles": [str(train)], "trainBatchSize": 4},
        "spec.checkpoint.path": str(folder / "checkpoints"),
        "spec.resources": {"device": "CPU"},
    }
    return make_job_file(folder, {**fit, **changes})


def make_job_with_missing_files(folder: Path) -> Path:
    (folder / "file").write_text("in the way")
    (folder / "table.csv").write_text("prompt,answer\n")
    return make_local_job(
        folder,
        {
            "spec.model.path": "/nowhere/model",
            "spec.data.trainFiles": ["/nowhere/train.jsonl", str(folder / "table.csv")],
            "spec.checkpoint.path": str(folder / "file" / "checkpoints"),
            **prompt_mode(url="http://127.0.0.1:9/retrieve"),
            **rewards({"name": "Python", "python": "no_such_module:score"}),
        },
    )


def make_job_with_bad_data(folder: Path) -> Path:
    (folder / "broken.parquet").write_bytes(b"PAR1 not really")
    (folder / "torn.jsonl").write_text('{"prompt": "p", "answer": "a"}\n{"prompt": "p", "ans')
    write_rows(folder / "empty.jsonl", [])
    write_rows(folder / "columns.jsonl", [{"question": "q", "answer": "a"}])
    names = ("broken.parquet", "torn.jsonl", "empty.jsonl", "columns.jsonl")
    return make_local_job(folder, {"spec.data.trainFiles": [str(folder / name) for name in names]})


def make_job_beyond_context(folder: Path) -> Path:
    return make_local_job(
        folder, {"spec.data.maxPromptLength": 4096, "spec.data.trainBatchSize": 64}
    )


def make_job_with_long_rows(folder: Path) -> Path:
    return make_local_job(folder, {"spec.data.maxPromptLength": 8})


PREFLIGHTS: dict[str, tuple[Callable[[Path], Path], int, dict[str, list[str]]]] = {
    "no files": (make_job_with_missing_files, DATA,
        {"missing model folder": ["model.path /nowhere/model", "mount its volume, or correct"],
            "unsupported file": ["table.csv: unsupported file type", "use .parquet or .jsonl"],
            "missing data file": ["/nowhere/train.jsonl", "mount its volume, or correct the path"],
            "checkpoint folder": ["checkpoint.path", "file/checkpoints", "not writable by user"],
            "endpoint down": ["endpoint kb", "ConnectionRefused", "the service is running"],
            "reward": ["no_such_module", "check reward.functions[].python"]}),
    "bad data": (make_job_with_bad_data, DATA,
        {"unreadable parquet": ["broken.parquet", "cannot be read as Parquet", "write the file"],
            "torn line": ["torn.jsonl, line 2: not JSON", "write one object per line"],
            "empty data": ["empty.jsonl: no rows", "add one row per prompt"],
            "missing column": ["columns.jsonl", "'prompt'", "set data.columns.prompt"]}),
    "beyond the model": (make_job_beyond_context, CONFIG,
        {"longer than the context": ["spec.data.maxPromptLength", "2048 tokens", "reduce their"],
            "more prompts than rows": ["spec.data.trainBatchSize", "8 rows", "8 or less"]}),
    "long rows": (make_job_with_long_rows, DATA,
        {"rows longer than allowed": ["maxPromptLength 8", "increase data.maxPromptLength"]}),
}  # fmt: skip


@pytest.fixture(scope="module")
def checks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Result]:
    """Check each job once, in its preflight process."""
    results: dict[str, Result] = {}

    def check(preflight: str) -> Result:
        if preflight not in results:
            make, _, _ = PREFLIGHTS[preflight]
            results[preflight] = raggrpo("check", make(tmp_path_factory.mktemp("preflight")))
        return results[preflight]

    return check


@pytest.mark.row("A12", "A19", "C6", "C17")
@pytest.mark.parametrize(
    ("preflight", "row"),
    [(preflight, row) for preflight in PREFLIGHTS for row in PREFLIGHTS[preflight][2]],
)
def test_preflight_reports_problem_and_remedy(
    preflight: str, row: str, checks: Callable[[str], Result]
) -> None:
    _, code, rows = PREFLIGHTS[preflight]
    result = checks(preflight)
    assert_rejected(result, rows[row], code)
    assert "FAILED" in result.output


def test_unreachable_endpoint_fails_preflight(tmp_path: Path) -> None:
    path = make_local_job(
        tmp_path,
        {**prompt_mode(url="http://127.0.0.1:9/retrieve"), "spec.data.maxPromptLength": 1024},
    )
    assert_rejected(
        raggrpo("check", path), ["FAILED", "endpoint kb", "its url and headers"], PREFLIGHT
    )


def test_unmodified_job_passes_preflight(tmp_path: Path) -> None:
    result = raggrpo("check", make_local_job(tmp_path, {}))
    assert (result.code, "FAILED" in result.output) == (ExitCode.DONE, False), result.output
