"""Parquet files whose footer exhausts memory or aborts the process that reads it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raggrpo_api import parquet_footer
from raggrpo_api.foreign_files import UnsuitableFile
from raggrpo_api.parquet_footer import MAX_UNTRIED_BYTES, parquet_metadata
from raggrpo_retriever.corpus import load_corpus
from raggrpo_trainer.data.rows import read_rows
from raggrpo_trainer.preflight.data import check_data
from raggrpo_trainer.preflight.embedding import count_passages
from support.builders.trainer.reports import make_config
from support.hostile.limited_process import Make, outcomes, run_limited
from support.hostile.parquet_footer import footer, repeated_text

NAMES = ("prompt", "answer", "id", "text")


def sparse_footer(path: Path) -> None:
    """Write a file whose footer of 2 GB takes no space on the disk."""
    path.touch()
    os.truncate(path, (2 << 30) + 100)
    with path.open("ab") as file:
        file.write((2 << 30).to_bytes(4, "little") + b"PAR1")


FOOTERS: dict[str, tuple[Make, str]] = {
    "more columns in a row group than in the schema": (
        footer(NAMES, columns=5),
        "row group 0 has 5 columns, its schema 4; write the file again",
    ),
    "no columns in a row group": (footer(NAMES, columns=0), "row group 0 has 0 columns"),
    "fewer rows than none": (
        footer(NAMES, columns=4, rows=-7),
        "it has -7 rows; write the file again",
    ),
    "fewer rows than none, no row group": (
        footer(NAMES, columns=4, groups=0, rows=-7),
        "it has -7 rows; write the file again",
    ),
    "one encrypted column": (
        footer(NAMES, columns=4, encrypted=1),
        "it has encrypted columns, or a damaged footer; write the file again without encryption",
    ),
    "2 GB": (sparse_footer, "its footer has 2,147,483,648 bytes, limit 67,108,864; write fewer"),
    "many column chunks": (
        footer(NAMES, columns=600_000, groups=4),
        "its footer of 7,200,106 bytes needs more memory than allowed; write fewer",
    ),
    "many columns": (
        footer([*NAMES, *map(str, range(50_000))], columns=4),
        "it has 50,004 columns, limit 10,000; drop columns",
    ),
}
"""Files with the reason of their rejection."""


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("footers")
    files = {name: folder / f"{name}.parquet" for name in FOOTERS}
    for name, path in files.items():
        FOOTERS[name][0](path)
    return files


@pytest.mark.parametrize("check", ["data", "corpus", "count"])
def test_hostile_footers_are_rejected_within_limits(paths: dict[str, Path], check: str) -> None:
    reports = outcomes(check, list(paths.values()))

    for name, path in paths.items():
        assert reports[str(path)].startswith("rejected: "), (name, reports[str(path)][-1500:])
        assert FOOTERS[name][1] in reports[str(path)], name


MEASURE = """
import resource, sys
from pathlib import Path
from raggrpo_retriever.corpus import CorpusError, load_corpus
from raggrpo_trainer.data.rows import read_rows
from raggrpo_trainer.errors import TrainerError

path = Path(sys.argv[1])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    list(load_corpus(path) if sys.argv[2] == "corpus" else read_rows(path, None))
except (CorpusError, TrainerError) as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize(
    ("read", "names"), [("corpus", ("contents", "id")), ("data", ("prompt", "answer"))]
)
def test_understated_size_of_repeated_text_does_not_exhaust_memory(
    tmp_path: Path, read: str, names: tuple[str, str]
) -> None:
    path = tmp_path / "rows.parquet"
    repeated_text(names, size=8_000_000, rows=200)(path)

    done = run_limited(["-c", MEASURE, str(path), read], memory=8 << 30)

    assert done.returncode == 0, done.stderr[-1000:]
    problem, memory = done.stdout.splitlines()
    assert f"{path}: its rows need more than 134,217,728 bytes of memory; " in problem
    assert int(memory) < 1000


def test_preflight_rejects_row_group_with_other_columns(paths: dict[str, Path]) -> None:
    path = paths["no columns in a row group"]
    config = make_config(path.parent, {"data.trainFiles": [str(path)]})

    readable, _ = check_data(config).findings

    assert "row group 0 has 0 columns" in readable.evidence


@pytest.mark.parametrize(
    "read",
    [
        lambda path: list(read_rows(path, None)),
        load_corpus,
        lambda path: [None] * count_passages(path),
    ],
)
def test_large_footer_of_statistics_is_read(
    tmp_path: Path, read: Callable[[Path], list[object]]
) -> None:
    path = tmp_path / "rows.parquet"
    numbers = [str(number) for number in range(400)]
    texts = [number + "x" * 4000 for number in numbers]
    pq.write_table(pa.table({"id": numbers, "text": texts}), path, row_group_size=1)
    assert pq.read_metadata(path).serialized_size > MAX_UNTRIED_BYTES

    assert len(read(path)) == len(numbers)


def failing_child(monkeypatch: pytest.MonkeyPatch, code: int, errors: str) -> None:
    """Let the next child exit with a code before it starts."""
    run = subprocess.run
    end = f"kill {code} $$" if code < 0 else f"exit {code}"
    remaining = [["sh", "-c", f"printf '{errors}' >&2; {end}"]]

    def failing_run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        return run(remaining.pop() if remaining else command, **options)

    monkeypatch.setattr(subprocess, "run", failing_run)


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": ["1"], "text": ["a"]}), path)
    return path


@pytest.mark.parametrize(
    ("code", "errors", "problem"),
    [
        (
            1,
            "Traceback\nImportError: no lib",
            r"bytes could not start \(ImportError: no lib\); check",
        ),
        (1, "", r"bytes could not start \(exit code 1\); check the installation of pyarrow"),
        (-6, "out of memory", r"bytes could not start \(out of memory\); check"),
        (-9, "", "bytes was killed, usually because memory ran out; free or request more memory"),
    ],
)
def test_failure_of_the_child_is_reported_and_not_cached(
    small: Path, monkeypatch: pytest.MonkeyPatch, code: int, errors: str, problem: str
) -> None:
    failing_child(monkeypatch, code, errors)
    with pytest.raises(UnsuitableFile, match=f"the process that reads its footer of .*{problem}"):
        parquet_metadata(small, pq.read_metadata)
    assert parquet_metadata(small, pq.read_metadata).num_rows == 1


def test_timeout_of_the_child_is_reported_and_not_cached(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(parquet_footer, "_TRIAL_SECONDS", 0.001)
        with pytest.raises(UnsuitableFile, match=r"takes more than 0\.001 s; write fewer columns"):
            parquet_metadata(small, pq.read_metadata)
    assert parquet_metadata(small, pq.read_metadata).num_rows == 1


def test_footer_is_read_with_a_lower_hard_limit_of_memory(small: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path; import pyarrow.parquet as pq; "
        "from raggrpo_api.parquet_footer import parquet_metadata; "
        "resource.setrlimit(resource.RLIMIT_DATA, (900 << 20, 900 << 20)); "
        "print(parquet_metadata(Path(sys.argv[1]), pq.read_metadata).num_rows)"
    )
    done = run_limited(["-c", code, str(small)], memory=8 << 30)
    assert done.stdout == "1\n", done.stderr[-1000:]


def test_child_reads_a_footer_once_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands = []
    run = subprocess.run

    def recording_run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(subprocess, "run", recording_run)
    path = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": ["1"], "text": ["a"]}), path)

    assert len(load_corpus(path)) == count_passages(path) == 1
    assert len(commands) == 1
    footer(NAMES, columns=4, encrypted=1)(path)
    with pytest.raises(UnsuitableFile, match="it has encrypted columns"):
        parquet_metadata(path, pq.read_metadata)
