import json
import logging
import sys
from typing import Any

from raggrpo_operator.kubernetes_runtime.process.json_logs import JsonFormatter, log_context


def make_record(**more: Any) -> logging.LogRecord:
    record = logging.makeLogRecord(
        {"name": "raggrpo_operator", "levelname": "INFO", "msg": "step %d", "args": (3,), **more}
    )
    record.created = 1_000_000_000.25
    return record


def test_log_line_has_context_without_kopf_fields() -> None:
    with log_context(job="team-a/demo", reconcileID="f00"), log_context(attempt=2):
        line = JsonFormatter().format(make_record(k8s_ref={"uid": "1"}, settings=object()))

    assert json.loads(line) == {
        "time": "2001-09-09T01:46:40.250+00:00",
        "level": "INFO",
        "logger": "raggrpo_operator",
        "message": "step 3",
        "job": "team-a/demo",
        "reconcileID": "f00",
        "attempt": 2,
    }


def test_log_context_is_reset_on_exit() -> None:
    with log_context(job="team-a/demo"):
        pass

    assert "job" not in json.loads(JsonFormatter().format(make_record()))


def test_exception_is_logged_on_one_line() -> None:
    try:
        raise ValueError("no such step")
    except ValueError:
        line = JsonFormatter().format(make_record(exc_info=sys.exc_info()))

    assert "\n" not in line
    assert json.loads(line)["traceback"].endswith("ValueError: no such step")
