"""What ranks must prove to a driver that finds them; whole runs are in `test_restart.py`."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

OLDER_RANKS = Path(__file__).with_name("reused_ranks.py")


@pytest.mark.row("B10")
def test_ranks_are_continued_only_if_they_prove_what_they_hold() -> None:
    # Ray's sockets need a shorter path than pytest's folders have.
    with tempfile.TemporaryDirectory(prefix="raggrpo-") as folder:
        ended = subprocess.run(
            [sys.executable, str(OLDER_RANKS), folder],
            env={
                **os.environ,
                "RAY_AUTH_MODE": "disabled",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=False,
        )

    assert ended.returncode == 0, ended.stderr
    came = json.loads(ended.stdout)
    reasons = {
        "another key": "another configuration",
        "one does not answer": "TimeoutError",
        "another parameter": "not what they held",
        "one is in a step": "in the middle of a step",
        "one is lost": "rank-1-1",
    }
    told = {state: came.pop(state) for state in reasons}
    assert all(reason in told[state] for state, reason in reasons.items()), told
    assert came == {
        "marked as left": True,
        "marked once adopted": False,
        "held": True,
        "same checksum": True,
        "driver that was superseded": "SUPERSEDED",
        "other checksum after a step": True,
        "record": True,
        "left over": [],
    }
