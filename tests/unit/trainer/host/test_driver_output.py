import io
from pathlib import Path

from raggrpo_trainer.host.driver_output import MAX_CHUNK, DriverOutput


def test_appended_lines_of_all_logs_are_copied_once(tmp_path: Path) -> None:
    output = io.BytesIO()
    copier = DriverOutput(lambda: tmp_path.glob("job-driver-*.log"), output)
    copier.copy()
    (tmp_path / "job-driver-small-a1.log").write_bytes(b"one\ntw")
    (tmp_path / "raylet.log").write_bytes(b"not this\n")
    copier.copy()
    copier.copy()
    assert output.getvalue() == b"one\n"

    with (tmp_path / "job-driver-small-a1.log").open("ab") as log:
        log.write(b"o\n")
    (tmp_path / "job-driver-small-a2.log").write_bytes(b"second attempt\n")
    copier.copy()

    assert output.getvalue() == b"one\ntwo\nsecond attempt\n"


def test_large_log_is_copied_completely(tmp_path: Path) -> None:
    text = b"x" * 999 + b"\n"
    (tmp_path / "job-driver-a.log").write_bytes(text * 3 * (MAX_CHUNK // 1000))
    output = io.BytesIO()

    DriverOutput(lambda: tmp_path.glob("*.log"), output).copy()

    assert output.getvalue() == text * 3 * (MAX_CHUNK // 1000)
