"""Checks of data files whose rows are made to exhaust memory."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_trainer.preflight import data
from support.builders.trainer.reports import make_config
from support.hostile.memory import peak_memory


def large_texts() -> Iterator[str]:
    """Yield rows with a text of 2 MB that the job does not use."""
    for _ in range(20):
        yield json.dumps({"prompt": "a", "answer": "b", "x": "c" * 2_000_000})


def many_values() -> Iterator[str]:
    """Yield a row whose values need more than the limit of training's reader."""
    yield '{"prompt": "a", "answer": "b", "x": [' + "[]," * 3_000_000 + "[]]}"


@pytest.mark.parametrize("rows", [large_texts(), many_values()], ids=["texts", "values"])
def test_hostile_rows_need_little_memory(tmp_path: Path, rows: Iterator[str]) -> None:
    path = tmp_path / "rows.jsonl"
    with path.open("w") as file:
        file.writelines(f"{row}\n" for row in rows)
    config = make_config(tmp_path, {"data.trainFiles": [str(path)]})

    assert peak_memory(lambda: data.check_data(config)) < 30_000_000


def test_rows_with_many_different_columns_are_not_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"first": 0, "second": 0}\n{"third": 0}\n')
    monkeypatch.setattr(data, "MAX_COLUMNS", 1)
    config = make_config(tmp_path, {"data.trainFiles": [str(path)]})

    _, columns = data.check_data(config).findings

    assert "first, second" in columns.evidence
    assert "third" not in columns.evidence
