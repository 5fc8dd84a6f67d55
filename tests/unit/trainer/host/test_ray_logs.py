from pathlib import Path

from raggrpo_trainer.host.ray_logs import KEPT_BYTES, RayLogs


def test_the_end_of_a_log_is_kept_and_again_when_it_has_changed(tmp_path: Path) -> None:
    source, target = tmp_path / "logs", tmp_path / "kept"
    source.mkdir()
    (source / "raylet.out").write_bytes(b"x" * KEPT_BYTES + b"first\n")
    (source / "raylet.err").touch()
    logs = RayLogs(source, "pod-1")

    logs.copy(target)
    kept = target / "pod-1" / "raylet.out"
    assert kept.read_bytes() == b"x" * (KEPT_BYTES - 6) + b"first\n"
    assert [file.name for file in kept.parent.iterdir()] == ["raylet.out"]

    kept.unlink()
    logs.copy(target)
    assert not kept.exists()  # nothing has changed
    with (source / "raylet.out").open("ab") as file:
        file.write(b"node was killed\n")
    logs.copy(target)
    assert kept.read_bytes().endswith(b"first\nnode was killed\n")
    logs.copy(tmp_path / "of the next attempt")
    assert (tmp_path / "of the next attempt" / "pod-1" / "raylet.out").exists()


def test_one_process_of_a_pod_writes_and_the_next_one_when_it_has_ended(tmp_path: Path) -> None:
    (tmp_path / "gcs_server.out").write_text("begun\n")
    first, second = RayLogs(tmp_path, "pod-1"), RayLogs(tmp_path, "pod-1")
    first.copy(tmp_path / "a")
    second.copy(tmp_path / "b")
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
    first.close()
    second.copy(tmp_path / "b")
    assert (tmp_path / "b" / "pod-1" / "gcs_server.out").read_text() == "begun\n"
