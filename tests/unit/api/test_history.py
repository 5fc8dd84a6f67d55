import json
import time
import tracemalloc
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.trainer import history
from raggrpo_api.trainer.history import history_file, read_events, read_history, read_records
from raggrpo_api.trainer.history_values import usable_values


def write(folder: Path, epoch: int, records: list[dict[str, Any]], torn: str = "") -> None:
    text = "".join(json.dumps({**record, "epoch": epoch}) + "\n" for record in records)
    history_file(folder, epoch).write_text(text + torn)


def test_repeated_step_uses_record_of_newest_epoch(tmp_path: Path) -> None:
    write(tmp_path, 9, [{"step": step, "loss": 0.9} for step in (1, 2, 3, 4)])
    write(tmp_path, 10, [{"step": step, "loss": 0.1} for step in (3, 4, 5)])
    records = read_history(tmp_path)
    assert [(r["step"], r["epoch"]) for r in records] == [(1, 9), (2, 9), (3, 10), (4, 10), (5, 10)]


def test_history_keeps_old_steps_that_new_attempt_has_not_repeated(tmp_path: Path) -> None:
    write(tmp_path, 1, [{"step": step} for step in (1, 2, 3)])
    write(tmp_path, 2, [{"step": 1}])
    assert [r["epoch"] for r in read_history(tmp_path)] == [2, 1, 1]


def test_truncated_last_history_line_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, 1, [{"step": 1}], torn='{"step": 2, "lo')
    assert [r["step"] for r in read_history(tmp_path)] == [1]


def test_truncated_history_line_that_parses_as_json_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, 1, [{"step": 1}], torn="12")
    assert [r["step"] for r in read_history(tmp_path)] == [1]


def test_read_events_sorts_by_epoch_and_omits_step_records(tmp_path: Path) -> None:
    write(tmp_path, 10, [{"event": "start", "step": 2}])
    write(tmp_path, 9, [{"event": "start", "step": 0}, {"step": 1}, {"event": "end", "step": 1}])
    events = [(r["epoch"], r["event"]) for r in read_events(tmp_path)]
    assert events == [(9, "start"), (9, "end"), (10, "start")]
    assert [r["step"] for r in read_history(tmp_path)] == [1]


def test_history_is_empty_without_files(tmp_path: Path) -> None:
    (tmp_path / "metrics.e1.jsonl.bak").write_text('{"step": 1}\n')
    assert read_history(tmp_path) == []
    assert read_history(tmp_path / "missing") == []


def test_short_lines_count_for_their_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", 100_000)
    history_file(tmp_path, 1).write_bytes(b"\n" * 50_000)
    read = read_records(tmp_path)
    assert read.invalid < 500
    write(tmp_path, 1, [{"step": step} for step in range(300)])
    assert len(read_history(tmp_path)) == 300


def require_small_memory(folder: Path, limit: int) -> None:
    """Read a history that exceeds its limit, with less than `limit` bytes of memory."""
    tracemalloc.start()
    read = read_records(folder)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert "too many lines or values" in read.first_problem
    assert memory < limit


def test_numbers_with_different_names_stay_below_1_gib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 100
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", history.MAX_HISTORY_BYTES // share)
    names = (f"k{i}" for i in count())
    lines = [{"step": i, **dict.fromkeys(islice(names, 5000), 3.5)} for i in range(30)]
    write(tmp_path, 1, lines)
    require_small_memory(tmp_path, (1 << 30) // share)


def test_history_of_100_000_usual_steps_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 1000
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", history.MAX_HISTORY_BYTES // share)
    record = {f"some_metric_{i}": 0.123456789 for i in range(60)}
    write(tmp_path, 1, [{"step": step, **record} for step in range(100_000 // share)])
    assert read_records(tmp_path).problem == ""


def test_texts_with_wide_characters_stay_below_1_gib(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 100
    monkeypatch.setattr(history, "MAX_HISTORY_BYTES", history.MAX_HISTORY_BYTES // share)
    names = (f"name{i:08d}🎲" for i in count())
    lines = [
        {"event": "x", **dict.fromkeys(islice(names, 5000), "b" * 10 + "🎲")} for _ in range(30)
    ]
    text = "".join(json.dumps(each, ensure_ascii=False) + "\n" for each in lines)
    history_file(tmp_path, 1).write_text(text)
    require_small_memory(tmp_path, (1 << 30) // share)


def test_unusable_values_take_linear_time() -> None:
    def seconds(number: int) -> float:
        record = {"epoch": 1, "attempt": 1, "step": 1} | {f"k{i}": "" for i in range(number)}
        start = time.process_time()
        assert len(usable_values(record)[1]) == number
        return time.process_time() - start

    assert seconds(40_000) < 40 * min(seconds(4_000) for _ in range(3))
