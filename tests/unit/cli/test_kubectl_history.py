from pathlib import Path

from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_cli.kubectl.history import write_history

CONTENT = b"""\
{"step": 1, "epoch": 10, "reward_mean": 0.5}
{"step": 2, "epoch": 10, "reward_mean": 0.6}
{"event": "start", "epoch": 2}
{"step": 1, "epoch": 2, "reward_mean": 0.1}
{"step": 2, "ep"""


def test_records_of_several_attempts_are_read_as_on_the_volume(tmp_path: Path) -> None:
    write_history(CONTENT, tmp_path)

    assert [r["reward_mean"] for r in read_history(tmp_path)] == [0.5, 0.6]
    assert [r["event"] for r in read_events(tmp_path)] == ["start"]


def test_missing_history_is_empty(tmp_path: Path) -> None:
    write_history(b"", tmp_path)

    assert read_history(tmp_path) == []
