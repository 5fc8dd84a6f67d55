"""Conditions under which a new driver reuses ranks; `test_restart.py` has whole runs."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

REUSED_RANKS = Path(__file__).with_name("reused_ranks.py")


@pytest.mark.row("B10")
def test_ranks_are_reused_only_with_matching_record_and_checksum() -> None:
    # Ray's socket paths must be shorter than pytest's folders allow.
    with tempfile.TemporaryDirectory(prefix="raggrpo-") as folder:
        ended = subprocess.run(
            [sys.executable, str(REUSED_RANKS), folder],
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
    results = json.loads(ended.stdout)
    reasons = {
        "another key": "another configuration",
        "one does not answer": "TimeoutError",
        "another parameter": "the checksum of their memory has changed",
        "one is in a step": "ranks were in a step",
        "one is lost": "rank-1-1",
    }
    reported = {state: results.pop(state) for state in reasons}
    assert all(reason in reported[state] for state, reason in reasons.items()), reported
    assert results == {
        "marked as left": True,
        "marked once adopted": False,
        "held": True,
        "same checksum": True,
        "driver that was superseded": "SUPERSEDED",
        "other checksum after a step": True,
        "record": True,
        "left over": [],
    }
