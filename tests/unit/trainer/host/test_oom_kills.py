from pathlib import Path

import pytest

from raggrpo_trainer.host.oom_kills import oom_kills

V1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"
V2 = "low 0\nhigh 0\nmax 17\noom 2\noom_kill 2\noom_group_kill 0\n"


@pytest.mark.parametrize(("text", "kills"), [(V1, 3), (V2, 2), ("oom_kill_disable 0\n", 0)])
def test_oom_kill_counter_is_read_for_both_cgroup_versions(
    text: str, kills: int, tmp_path: Path
) -> None:
    (tmp_path / "memory.events").write_text(text)
    assert oom_kills([tmp_path / "absent", tmp_path / "memory.events"]) == kills


def test_oom_kill_count_is_zero_without_counter_file(tmp_path: Path) -> None:
    assert oom_kills([tmp_path / "absent"]) == 0
