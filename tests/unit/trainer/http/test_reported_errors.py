import math
from typing import Any

import pytest

from raggrpo_trainer.http.reported_errors import reported_error, reported_failure


@pytest.mark.parametrize(
    ("answer", "detail", "transient"),
    [
        ({"code": 503, "msg": "loading"}, "503 loading", True),
        ({"code": -1, "msg": "busy"}, "-1 busy", False),
        ({"errno": "7", "info": ""}, "7 no reason given", False),
        ({"status": {"code": 5, "message": "no such index"}}, "5 no such index", False),
        ({"header": {"code": 10013, "message": "blocked"}}, "10013 blocked", False),
        ({"success": "false", "message": "blocked"}, "blocked", False),
        ({"ret": -1, "msg": "not successful"}, "-1 not successful", False),
        ({"code": 7, "msg": "unsuccessful"}, "7 unsuccessful", False),
        ({"responses": [{"status": 404, "error": {"reason": "gone"}}]}, "404 gone", False),
        ({"isError": True, "content": [{"type": "text", "text": "down"}]}, "down", False),
        ({"status": "unavailable", "message": "loading"}, "loading", False),
        ({"status": "Failed.", "reason": "blocked"}, "blocked", False),
    ],
)
def test_stated_failure_contains_code_and_words_of_service(
    answer: Any, detail: str, transient: bool
) -> None:
    failure = reported_failure(answer)
    assert failure is not None
    assert failure.detail == f"the service reports an error: {detail}"
    assert failure.transient is transient


@pytest.mark.parametrize(
    "answer",
    [
        {"code": 0},
        {"code": 204},
        {"code": "0000"},
        {"code": 1, "msg": "OK"},
        {"code": 10000, "message": "查询成功"},
        {"code": 1, "message": "Query executed successfully."},
        {"ret": 0, "response": {"docs": [], "numFound": 0}},
        {"status": 1, "results": []},
        {"status": "done"},
        {"code": math.nan, "errno": math.inf, "status": -math.inf},
        {"_shards": {"total": math.nan, "successful": math.inf}},
        {"_shards": {"failed": math.inf}},
        {"status": {"code": math.nan}},
        {"success": True, "code": None},
        {"_shards": {"total": 5, "successful": 5, "skipped": 3, "failed": 0}, "timed_out": False},
        {"results": [{"code": 7, "status": "error", "timed_out": True}]},
        [],
        "error",
    ],
)
def test_success_and_fields_of_results_state_no_failure(answer: Any) -> None:
    assert reported_failure(answer) is None
    assert reported_error(answer) is None


@pytest.mark.parametrize(
    "answer",
    [
        {"error": "the reranker failed"},
        {"code": "SlowDown", "message": "slow down"},
        {"status": -1},
        {"err": "x"},
        {"errMsg": "quota"},
    ],
)
def test_error_without_failed_status_counts_only_without_results(answer: Any) -> None:
    assert reported_failure(answer) is None
    assert reported_error(answer) is not None
