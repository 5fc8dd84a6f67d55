"""Layout of the report in a headless browser, at the width of a phone and of a desktop."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.conditions import Condition, ConditionType, Phase
from raggrpo_api.status.job_status import JobStatus, ProgressStatus
from raggrpo_operator.reporting.report import write_report
from support.builders.operator.runs import write_steps

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
PHONE, DESKTOP = 375, 1280
LONG_PATH = "/mnt/checkpoints/" + "sales-rag-experiment-" * 8
# Lists the elements whose content is wider than they are, and the first headings with their place.
MEASURE = """
<script>
document.querySelector('iframe').onload = (event) => {
  const page = event.target.contentDocument;
  const wide = [...page.querySelectorAll('body, main, .problem, .tile, .tile b, figure')]
    .filter((element) => element.scrollWidth > element.clientWidth + 1 && element.clientWidth)
    .map((element) => element.className || element.tagName);
  const top = (selector) => page.querySelector(selector).getBoundingClientRect().top;
  const result = {wide, problem: top('.problem'), tiles: top('.tiles'), charts: top('.charts')};
  document.querySelector('pre').textContent = JSON.stringify(result);
};
</script>
"""


def measure(report: Path, width: int) -> dict[str, Any]:
    page = html.escape(report.read_text(), quote=True)
    harness = report.with_name("harness.html")
    frame = f'<iframe width="{width}" height="2000" srcdoc="{page}"></iframe><pre></pre>'
    # The frame is inserted after its handler, so that the handler sees the load event.
    script = MEASURE.replace("<script>", f"<script>document.body.innerHTML = {json.dumps(frame)};")
    script = script.replace("</iframe>", r"<\/iframe>").replace("</pre>", r"<\/pre>")
    harness.write_text(f"<!doctype html><meta charset=utf-8><body>{script}</body>")
    assert BROWSER is not None
    done = subprocess.run(
        [
            *(BROWSER, "--headless", "--no-sandbox", "--disable-gpu"),
            *("--virtual-time-budget=10000", f"--user-data-dir={report.parent / 'profile'}"),
            *("--dump-dom", harness.as_uri()),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    match = re.search(r"<pre>(\{.*?\})</pre>", done.stdout, re.DOTALL)
    assert match, done.stdout[-2000:]
    result: dict[str, Any] = json.loads(html.unescape(match[1]))
    return result


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
@pytest.mark.parametrize("width", [PHONE, DESKTOP])
def test_report_fits_screen_and_starts_with_problem(tmp_path: Path, width: int) -> None:
    failed = Condition(
        type=ConditionType.FAILED,
        status="True",
        reason=Cause.VOLUME_FULL,
        message=f"{LONG_PATH} is full: remove checkpoints",
    )
    status = JobStatus(
        phase=Phase.FAILED,
        conditions=[failed],
        progress=ProgressStatus(step=123456, total_steps=1234567),
        attempts=[AttemptRecord(number=1, cause=Cause.VOLUME_FULL, message=failed.message)],
        effective_training_time_ratio="0.83",
    )
    changes = {
        "reward_mean": -0.000123456,
        "reward_parts": {"ExactMatch": 0.1, "python:my_reward_function": 0.2},
        "step_seconds": 12345.678,
    }
    write_steps(tmp_path, 1, range(1, 30), changes)

    measured = measure(write_report(tmp_path, tmp_path, status, name=LONG_PATH[1:]), width)

    assert measured["wide"] == []
    assert measured["problem"] < measured["tiles"] < measured["charts"]
