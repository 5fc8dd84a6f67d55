"""The sample script that stops, changes and continues a run, with a replaced `raggrpo`."""

import json
import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[3] / "crds" / "samples" / "change-a-run.sh"
PROGRAM = """#!/usr/bin/env python3
import json, signal, sys, time
from pathlib import Path

calls = Path(__file__).parent / "calls"
if sys.argv[1] == "status":
    print(json.dumps({"progress": {"step": 2 if calls.exists() else 0}}))
    sys.exit()
is_first = not calls.exists()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))
with calls.open("a") as file:
    print(json.dumps(sys.argv[1:]), file=file)
if is_first:
    time.sleep(60)
"""


def test_remaining_arguments_are_passed_to_both_runs(tmp_path: Path) -> None:
    program = tmp_path / "raggrpo"
    program.write_text(PROGRAM)
    program.chmod(0o755)
    options = ["--mount", "work=/a folder", "--endpoint", "kb=http://127.0.0.1:1"]

    subprocess.run(
        [SCRIPT, "job.yaml", "runs/a", "2", "rollout.n=5", "rollout.n=3", *options],
        check=True,
        timeout=60,
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
    )

    first, second, compare = map(json.loads, (tmp_path / "calls").read_text().splitlines())
    assert first == ["run", "job.yaml", "--dir", "runs/a", "--set", "rollout.n=5", *options]
    assert second == ["run", "job.yaml", "--dir", "runs/a", "--set", "rollout.n=3", *options]
    assert compare == ["compare", "runs/a"]
