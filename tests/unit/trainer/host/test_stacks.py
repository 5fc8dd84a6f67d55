import faulthandler
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from raggrpo_trainer.host.stacks import register
from support.waiting import wait_for


@pytest.fixture(autouse=True)
def unregistered() -> Iterator[None]:
    yield
    faulthandler.unregister(signal.SIGUSR1)


def test_stacks_are_written_when_asked_for(tmp_path: Path) -> None:
    register(tmp_path / "attempts/1", "rank-0")
    os.kill(os.getpid(), signal.SIGUSR1)  # any of the process's threads may take it

    stacks = tmp_path / "attempts/1/stacks-rank-0.txt"
    wait_for(lambda: "most recent call first" in stacks.read_text(), 30)


def test_a_log_folder_that_cannot_be_written_ends_no_process(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "attempts").write_text("a file where the folder should be")

    register(tmp_path / "attempts/1", "driver")

    assert "stacks of driver go to its own output" in caplog.text
