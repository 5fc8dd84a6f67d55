"""Reported cases about the answers of retrieval services, judges and reward services."""

import asyncio
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api import names
from raggrpo_api.spec.retrieval import ActorOutput, RetrievalEndpoint, RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.history import read_events, read_history
from raggrpo_api.trainer.progress import Progress
from raggrpo_operator.reporting.report import write_report
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.driver.loop import TrainState, train
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import ONE_TRY
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.retrieval.client import Passages, RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample
from raggrpo_trainer.sample_failures import RetrievalFailed
from support.builders.trainer.reports import Published, make_config
from support.fakes.fake_engine_pool import in_turn
from support.fakes.fake_training_loop import EndingStore, FakePool, make_components
from support.reported_cases.case import case
from support.servers.faulty_server import always, serving
from support.servers.private_authority import Certificate, make_certificate

HIT = {"id": "1", "text": "Tea", "score": 1.0}
PARTIAL_RESULTS: list[tuple[Any, str]] = [
    (
        {
            "timed_out": False,
            "_shards": {"total": 5, "successful": 3, "failed": 2},
            "hits": {"hits": []},
        },
        "2 of 5 shards failed",
    ),
    (
        {"_shards": {"total": 2, "failed": 1, "failures": [{"reason": {"reason": "disk full"}}]},
         "hits": {"hits": [{"_id": "1", "_score": 1, "_source": {"text": "Tea"}}]}},
        "1 of 2 shards failed: disk full",
    ),
    ({"timed_out": True, "hits": {"hits": []}}, "the search timed out"),
    ({"timed_out": "true", "hits": {"hits": []}}, "the search timed out"),
    ({"timed_out": 1, "hits": {"hits": []}}, "the search timed out"),
    (
        {"_shards": {"total": 5, "successful": 3}, "hits": {"hits": []}},
        "2 of 5 shards failed",
    ),
    ({"responses": [{"timed_out": True, "hits": {"hits": []}}]}, "the search timed out"),
]  # fmt: skip
"""Answers of search servers that miss results, and the words that the failure must contain."""
STATED_FAILURES: list[tuple[Any, str]] = [
    ({"code": -1, "msg": "busy", "data": []}, "-1 busy"),
    ({"code": 109, "message": "invalid key"}, "109 invalid key"),
    ({"code": "109", "message": "invalid key", "data": [HIT]}, "109 invalid key"),
    ({"status": "error", "error": "no such index"}, "no such index"),
    ({"status": "failed", "detail": "no such index", "results": [HIT]}, "no such index"),
    ({"ok": False}, "no reason given"),
    ({"ok": False, "description": "no such index", "results": []}, "no such index"),
    ({"errcode": 40001, "errmsg": "invalid credential"}, "40001 invalid credential"),
    ({"errCode": 40001, "errMsg": "invalid credential", "data": []}, "invalid credential"),
    ({"base_resp": {"err_msg": "quota"}, "results": []}, "quota"),
    ({"base_resp": {"status_code": 1004, "status_msg": "not logged in"}}, "1004 not logged in"),
    ({"code": "InvalidApiKey", "message": "unknown key"}, "unknown key"),
    ({"error": "expected ok, received 500", "results": []}, "received 500"),
    ({"errmsg": "no failover available", "results": []}, "no failover"),
    ({"status": "HTTP 500 error", "message": "x", "results": []}, "x"),
    *(
        ({"status": status, "message": "x", "results": []}, "x")
        for status in (
            "internal_error",
            "bad_request",
            "NOT_OK",
            "err",
            "ko",
            "rate_limited",
            "throttled",
            "cancelled",
            "server error",
            "InternalServerError",
            "timed_out",
            "TOO_MANY_REQUESTS",
            "RESOURCE_EXHAUSTED",
            -1,
            False,
        )
    ),
    ({"errMsg": "quota", "results": []}, "quota"),
    ({"error_msg": "x", "results": []}, "x"),
    ({"err": "x", "results": []}, "x"),
    ({"exception": "x", "results": []}, "x"),
    ({"success": "no", "results": []}, "no reason given"),
]
"""Answers of status 200 that state a failure, and the words that the failure must contain."""
SUCCESSES: list[Any] = [
    {"code": 0, "msg": "ok", "data": [HIT]},
    {"code": 200, "message": "found", "data": [HIT]},
    {"code": "00000", "data": [HIT]},
    {"code": 20000, "message": "success", "data": [HIT]},
    {"errcode": 0, "errmsg": "ok", "data": [HIT]},
    {"ok": True, "status": "ok", "results": [HIT]},
    {"timed_out": False, "_shards": {"total": 5, "failed": 0}, "results": [HIT]},
    {"status": -1, "err": "x", "errMsg": "partly cached", "results": [HIT]},
    {"status": "ERROR_NONE", "timed_out": 0, "results": [HIT]},
    {"result": "An error of the pump has several causes", "results": [HIT]},
]
EMPTY_SUCCESSES: list[Any] = [
    {"errMsg": "query:ok", "results": []},
    {"errcode": 0, "errmsg": "done", "results": []},
    {"err": "none", "error_msg": "no error", "results": []},
    {"exception": None, "err": 0, "results": []},
    {"success": True, "code": None, "error": "No errors found", "results": []},
    {"status": "NO_ERROR", "results": []},
    {"status": "no_results", "results": []},
    {"status": "not_found", "results": []},
    {"success": "yes", "failed": "no", "timed_out": "false", "results": []},
    {"_shards": {"total": 5, "successful": 5}, "results": []},
]
"""Answers without results that state no failure."""
CHUNKS = [
    {"doc_id": "d1", "chunk_id": "c1", "text": "Tea", "score": 1.0},
    {"doc_id": "d1", "chunk_id": "c2", "text": "Milk", "score": 0.5},
]


@case("S1", fault="A search server returns only a part of the results", inputs=PARTIAL_RESULTS)
def partial_results_are_failed_calls(_folder: Path, given: tuple[Any, str]) -> None:
    """The call fails with the reason that the server gives."""
    answer, words = given
    assert_failure(answer, words, role="Retriever")


@case("S2", fault="An error is reported with status 200", inputs=STATED_FAILURES)
def stated_failures_are_failed_calls(_folder: Path, given: tuple[Any, str]) -> None:
    """The call fails with the words of the service."""
    answer, words = given
    assert_failure(answer, words)


@case("S2-success", fault="The number of a success is taken for an error", inputs=SUCCESSES)
def stated_successes_are_answers(_folder: Path, answer: Any) -> None:
    """The answer is used."""
    assert [each.text for each in retrieve(answer)] == ["Tea"]


@case("S2-empty", fault="An empty result is taken for an error", inputs=EMPTY_SUCCESSES)
def empty_successes_are_answers(_folder: Path, answer: Any) -> None:
    """The call succeeds without passages."""
    assert retrieve(answer) == ()


@case("S3", fault="A service ignores topK", inputs=["SearchR1", "RagChat", "Http"])
def surplus_passages_are_cut_with_one_warning(_folder: Path, protocol: str) -> None:
    """The first `topK` passages are used, and one warning names the numbers."""
    passages = [{"id": str(i), "text": f"text {i}", "score": 1 - i / 10} for i in range(8)]
    answer = {"result": [passages]} if protocol == "SearchR1" else {"results": passages}
    with pytest.MonkeyPatch.context() as patch:
        warnings: list[str] = []
        logger = logging.getLogger("raggrpo_trainer.retrieval.client")
        patch.setattr(logger, "warning", lambda text, *values: warnings.append(text % values))
        used = retrieve(answer, "tea", "milk", protocol=protocol, topK=2)
    assert [each.text for each in used] == ["text 0", "text 1"] * 2
    [warning] = warnings
    assert "returned 8 passages" in warning
    assert "topK 2" in warning


@case(
    "S4",
    fault="Chunks of one document are taken for one passage",
    inputs=[
        (CHUNKS, ["c1", "c2"]),
        ([{**each, "chunk_id": i} for i, each in enumerate(CHUNKS)], ["d1/0", "d1/1"]),
    ],
)
def chunks_of_a_document_have_different_ids(
    _folder: Path, given: tuple[list[Any], list[str]]
) -> None:
    """The id of a chunk takes precedence over the id of its document."""
    answer, ids = given
    assert [each.id for each in retrieve(answer)] == ids


@case("S5", fault="The certificate of a service is signed by a private authority")
def private_authority_is_trusted_if_specified(folder: Path) -> None:
    """Calls fail with the field as remedy, and succeed with the authority's certificate."""
    asyncio.run(_call_with_private_authority(make_certificate(folder)))


async def _call_with_private_authority(certificate: Certificate) -> None:
    answer = {"results": [HIT], "score": 0.5, "choices": [{"message": {"content": "Grade: 5"}}]}
    async with serving(always(answer), certificate) as server:
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv(names.ENV_CA_BUNDLE, raising=False)
            for failure in await _failures(server.url):
                assert failure.cause is FailureCause.TLS_FAILURE
                assert "spec.caBundle" in failure.detail
                assert not failure.transient
            assert server.requests == []
            patch.setenv(names.ENV_CA_BUNDLE, str(certificate.authority))
            assert await _failures(server.url) == []
            assert len(server.requests) == 3
            patch.setenv(names.ENV_CA_BUNDLE, str(certificate.key))
            assert [each.cause for each in await _failures(server.url)] == ["TlsFailure"] * 3


async def _failures(url: str) -> list[CallFailed]:
    """Return the failures of an endpoint, a judge and a reward service at `url`."""
    endpoint = RetrievalEndpoint.model_validate({"name": "kb", "protocol": "Http", "url": url})
    spec = RetrievalSpec(endpoints=[endpoint])
    judge = {"model": "grader", "prompt": "Grade {completion}", "retries": 0}
    failures: list[CallFailed] = []
    async with RetrievalClient(spec, {}, retry=ONE_TRY) as client:
        try:
            await client.retrieve("kb", "tea", sample="1")
        except CallFailed as failure:
            failures.append(failure)
    for term in ({"name": "Judge", "judge": judge}, {"name": "Http"}):
        reward = RewardSpec.model_validate({"functions": [{**term, "url": url}]})
        async with Rewards(reward, spec, ONE_TRY) as rewards:
            try:
                await rewards.score(RewardSample("1", "tea?", "tea"))
            except CallFailed as failure:
                failures.append(failure)
    return failures


@case("S6", fault="Refused calls are counted as answered, or not counted at all")
def refused_calls_end_the_run_and_are_reported(folder: Path) -> None:
    """The run ends, and its history and report show the calls of the step that failed."""
    progress = asyncio.run(_train_with_refused_calls(folder))
    logs = folder / "logs"
    assert read_history(logs) == []
    [failed] = [event for event in read_events(logs) if event["event"] == "failed_step"]
    calls = failed["retrieval"]["actor"]
    assert (failed["step"], calls["answered"], [*calls["failures"]]) == (1, 0, ["HttpStatus"])
    refused = calls["failures"]["HttpStatus"]
    assert refused >= 8
    report = write_report(folder, logs, JobStatus()).read_text()
    assert f'<td>actor</td><td class="n">0</td><td>HttpStatus {refused}</td>' in report
    shown = {metric.name: metric.value for metric in progress.metrics}
    assert shown["retrieval/actor/failures"] == str(refused)


async def _train_with_refused_calls(folder: Path) -> Progress:
    output = json.dumps(dict.fromkeys(ActorOutput().fields, "tea"))
    async with serving(always({"detail": "top_k: not allowed"}, 422)) as server:
        common = {"protocol": "RagChat", "url": server.url, "cache": False}
        endpoints = [
            {"name": "actor", "role": "Actor", **common},
            {"name": "reference", "role": "Reference", **common},
        ]
        values = {"mode": "Reward", "endpoints": endpoints, "maxFailureRatio": 0.9}
        config = make_config(
            folder,
            {
                "retrieval": values,
                "reward.functions": [{"name": "RagScore"}],
                "data.trainBatchSize": 4,
                "data.maxResponseLength": 128,
                "rollout.n": 2,
                "algorithm.groupSize": 2,
            },
        )
        published = Published()
        reporter = Reporter(config, 1, publish=published)
        pool = FakePool(in_turn(*[output] * 64))
        async with (
            RetrievalClient(config.retrieval, {}, retry=ONE_TRY) as retrieval,
            Rewards(config.reward, config.retrieval) as rewards,
        ):
            with (
                make_components(
                    config, "abcd", reporter, retrieval, rewards, EndingStore(), pool=pool
                ) as components,
                pytest.raises(TrainerError, match="endpoint actor: 8 of 8 calls failed") as caught,
            ):
                await train(components, TrainState())
        assert caught.value.exit_code is ExitCode.RETRIEVAL_UNAVAILABLE
        reporter.close()
    return published.progresses[-1]


def retrieve(answer: Any, *queries: str, **fields: Any) -> Passages:
    """Return the passages that the client reads from `answer` for each query."""
    return asyncio.run(_retrieve(answer, queries or ("tea",), fields))


async def _retrieve(answer: Any, queries: tuple[str, ...], fields: dict[str, Any]) -> Passages:
    async with serving(always(answer)) as server:
        endpoint = RetrievalEndpoint.model_validate(
            {"name": "kb", "protocol": "RagChat", "role": "Reference", "url": server.url, **fields}
        )
        spec = RetrievalSpec(endpoints=[endpoint])
        async with RetrievalClient(spec, {}, retry=ONE_TRY) as client:
            results = [await client.retrieve("kb", query, sample="1") for query in queries]
    return tuple(passage for result in results for passage in result)


def assert_failure(answer: Any, words: str, **fields: Any) -> None:
    """Assert that a call with this answer fails with the words of the service."""
    with pytest.raises(RetrievalFailed) as caught:
        retrieve(answer, **fields)
    assert caught.value.cause is FailureCause.SERVICE_ERROR
    assert words in caught.value.detail
