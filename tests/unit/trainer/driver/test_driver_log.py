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
from raggrpo_trainer.driver.driver_log import kept_output
print("before", flush=True)
with kept_output(pathlib.Path(sys.argv[1])):
    print("during", flush=True)
"""


def until_holds(path: Path, text: str) -> None:
    deadline = time.monotonic() + SECONDS
    while not path.exists() or path.read_text() != text:
        assert time.monotonic() < deadline, path.read_text() if path.exists() else "no file"
        time.sleep(0.01)


def test_a_log_is_copied_while_it_grows_and_whole_at_the_end(tmp_path: Path) -> None:
    source, target = tmp_path / "ray.log", tmp_path / "attempts" / "1" / "driver.log"
    source.write_text("one\n")
    copy = LogCopy(source, target, every_seconds=0.01)
    copy.start()
    until_holds(target, "one\n")

    with source.open("a") as more:
        more.write("two\n")
    until_holds(target, "one\ntwo\n")
    with source.open("a") as more:
        more.write("three\n")
    copy.close()

    assert target.read_text() == "one\ntwo\nthree\n"


def test_a_log_that_a_deleted_job_left_gives_way(tmp_path: Path) -> None:
    source, target = tmp_path / "ray.log", tmp_path / "driver.log"
    source.write_text("new\n")
    target.write_text("a much longer log of a job that was deleted\n")
    copy = LogCopy(source, target)
    copy.start()
    copy.close()

    assert target.read_text() == "new\n"


def test_a_read_only_folder_ends_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = tmp_path / "ray.log"
    source.write_text("one\n")
    copy = LogCopy(source, source / "driver.log")
    with caplog.at_level(logging.ERROR):
        copy.start()
        copy.close()

    assert "the log is not kept: [Errno 17]" in caplog.text
    assert "training goes on" in caplog.text


def test_output_that_goes_to_a_file_is_kept_and_that_of_a_pipe_is_not(tmp_path: Path) -> None:
    output, kept, of_pipe = (tmp_path / name for name in ("out", "kept", "of-pipe"))
    with output.open("ab") as file:
        subprocess.run([sys.executable, "-c", PRINTING, str(kept)], stdout=file, check=True)
    subprocess.run(
        [sys.executable, "-c", PRINTING, str(of_pipe)], stdout=subprocess.PIPE, check=True
    )

    assert kept.read_text() == "before\nduring\n"
    assert not of_pipe.exists()
