import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raggrpo_trainer.driver.driver_log import LogCopy

SECONDS = 10.0
PRINTING = """
import pathlib, sys
from raggrpo_trainer.driver.driver_log import mirrored_output
print("before", flush=True)
with mirrored_output(pathlib.Path(sys.argv[1])):
    print("during", flush=True)
"""


def wait_for_content(path: Path, text: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no file"
        time.sleep(0.01)


def test_log_copy_follows_growing_log_and_is_complete_after_close(tmp_path: Path) -> None:
    source, target = tmp_path / "ray.log", tmp_path / "attempts" / "1" / "driver.log"
    source.write_text("one\n")
    copy = LogCopy(source, target, every_seconds=0.01)
    copy.start()
    wait_for_content(target, "one\n")

    with source.open("a") as more:
        more.write("two\n")
    wait_for_content(target, "one\ntwo\n")
    with source.open("a") as more:
        more.write("three\n")
    copy.close()

    assert target.read_text() == "one\ntwo\nthree\n"


def test_driver_log_of_deleted_job_is_overwritten(tmp_path: Path) -> None:
    source, target = tmp_path / "ray.log", tmp_path / "driver.log"
    source.write_text("new\n")
    target.write_text("a much longer log of a deleted job\n")
    copy = LogCopy(source, target)
    copy.start()
    copy.close()

    assert target.read_text() == "new\n"


def test_unwritable_folder_is_logged_and_training_continues(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "ray.log"
    source.write_text("one\n")
    copy = LogCopy(source, source / "driver.log")
    with caplog.at_level(logging.ERROR):
        copy.start()
        copy.close()

    assert "cannot copy the driver's log: [Errno 17]" in caplog.text
    assert "training continues" in caplog.text


def test_driver_output_is_mirrored_only_if_stdout_is_file(tmp_path: Path) -> None:
    output = tmp_path / "out"
    mirror = tmp_path / "mirror"
    mirror_of_pipe = tmp_path / "mirror-of-pipe"
    with output.open("ab") as file:
        subprocess.run([sys.executable, "-c", PRINTING, str(mirror)], stdout=file, check=True)
    subprocess.run(
        [sys.executable, "-c", PRINTING, str(mirror_of_pipe)], stdout=subprocess.PIPE, check=True
    )

    assert mirror.read_text() == "before\nduring\n"
    assert not mirror_of_pipe.exists()
