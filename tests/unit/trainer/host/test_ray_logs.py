from pathlib import Path

from raggrpo_trainer.host.ray_logs import TAIL_BYTES, RayLogs


def test_ray_log_tail_is_copied_when_changed(tmp_path: Path) -> None:
    source = tmp_path / "logs"
    target = tmp_path / "copies"
    source.mkdir()
    (source / "raylet.out").write_bytes(b"x" * TAIL_BYTES + b"first\n")
    (source / "raylet.err").touch()
    logs = RayLogs(source, "pod-1")

    logs.copy(target)
    copy = target / "pod-1" / "raylet.out"
    assert copy.read_bytes() == b"x" * (TAIL_BYTES - 6) + b"first\n"
    assert [file.name for file in copy.parent.iterdir()] == ["raylet.out"]

    copy.unlink()
    logs.copy(target)
    assert not copy.exists()  # unchanged
    with (source / "raylet.out").open("ab") as file:
        file.write(b"node was killed\n")
    logs.copy(target)
    assert copy.read_bytes().endswith(b"first\nnode was killed\n")
    logs.copy(tmp_path / "next attempt")
    assert (tmp_path / "next attempt" / "pod-1" / "raylet.out").exists()


def test_ray_log_copier_holds_lock_until_closed(tmp_path: Path) -> None:
    (tmp_path / "gcs_server.out").write_text("started\n")
    first = RayLogs(tmp_path, "pod-1")
    second = RayLogs(tmp_path, "pod-1")
    first.copy(tmp_path / "a")
    second.copy(tmp_path / "b")
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
    first.close()
    second.copy(tmp_path / "b")
    assert (tmp_path / "b" / "pod-1" / "gcs_server.out").read_text() == "started\n"
