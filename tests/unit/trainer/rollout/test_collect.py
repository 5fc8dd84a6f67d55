import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import EndpointOutage
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.data.sampler import sample_seed
from raggrpo_trainer.engines.generation import GenerationRequest
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.failure_ledger import FailureLedger
from raggrpo_trainer.rollout.samples import Rollouts, Sample, Sampling
from raggrpo_trainer.rollout.search_turn import NO_QUERY
from support.builders.trainer.reports import make_config
from support.builders.trainer.rollouts import collect_rollouts, make_collector, make_prompt
from support.fakes.fake_engine_pool import FakeEnginePool, Write, in_turn, text_of
from support.servers.faulty_server import (
    FaultyServer,
    Received,
    Respond,
    always,
    search_r1,
    serving,
)

# --- mode Reward: the sales flow

CONTEXT = "customer: what does a loan cost?"


def make_fields(query: str) -> str:
    values = {"user_profile": "a buyer", "rewritten_query": query, "history_summary": "asks"}
    return f"Here it is:\n```json\n{json.dumps(values)}\n```"


def make_sales_config(folder: Path, actor: str, reference: str, **retrieval: Any) -> TrainerConfig:
    token = {"name": "Authorization", "secretKeyRef": {"name": "rag", "key": "token"}}
    common = {"protocol": "RagChat", "headers": [token, {"name": "X-Team", "value": "sales"}]}
    actor_endpoint = {
        "name": "actor-8b",
        "role": "Actor",
        "url": actor,
        "scoreThreshold": 0.5,
        "topK": 2,
        "extraBody": {"tenant_id": "acme"},
        "cache": False,
    }
    reference_endpoint = {"name": "reference-32b", "role": "Reference", "url": reference}
    return make_config(
        folder,
        {
            "retrieval": {
                "mode": "Reward",
                "endpoints": [common | actor_endpoint, common | reference_endpoint],
                **retrieval,
            },
            "reward.functions": [{"name": "RagScore"}, {"name": "Format", "weight": 0.1}],
            "data.maxResponseLength": 256,
        },
    )


SECRETS = {"RAGGRPO_SECRET_RAG_TOKEN": "Bearer xyz"}
REFERENCE = always(
    {
        "results": [
            {"id": "rates", "text": "rates", "score": 0.9},
            {"id": "terms", "text": "terms", "score": 0.6},
        ]
    }
)


async def find_query(received: Received) -> Response:
    query = received.body["rewritten_query"]
    if query == "broken":
        return JSONResponse({"error": "out of luck"}, 500)
    if query == "odd":
        return JSONResponse({"answers": []})
    return JSONResponse({"results": [{"id": query, "text": query, "score": 0.8}]})


async def run_sales_step(
    folder: Path, *outputs: str, **retrieval: Any
) -> tuple[Collector, Rollouts, FaultyServer, FaultyServer]:
    async with serving(find_query) as actor, serving(REFERENCE) as reference:
        config = make_sales_config(folder, actor.url, reference.url, **retrieval)
        pool = FakeEnginePool(in_turn(*outputs))
        prompts = [make_prompt(7, "write the fields", CONTEXT)]
        collector, rollouts = await collect_rollouts(config, pool, prompts, len(outputs), SECRETS)
        return collector, rollouts, actor, reference


async def test_actor_receives_fields_and_reference_receives_only_context(
    tmp_path: Path,
) -> None:
    _, _, actor, reference = await run_sales_step(tmp_path, make_fields("rates"))

    [actor_request] = actor.requests
    assert actor_request.body == {
        "context": CONTEXT,
        "user_profile": "a buyer",
        "rewritten_query": "rates",
        "history_summary": "asks",
        "score_threshold": 0.5,
        "top_k": 2,
        "tenant_id": "acme",
    }
    [reference_request] = reference.requests
    assert reference_request.body == {"context": CONTEXT, "score_threshold": 0.95, "top_k": 3}
    for received in (actor_request, reference_request):
        assert received.headers["authorization"] == "Bearer xyz"
        assert received.headers["x-team"] == "sales"


async def test_rag_score_is_recall_and_unparsable_output_scores_zero(
    tmp_path: Path,
) -> None:
    collector, rollouts, actor, reference = await run_sales_step(
        tmp_path,
        make_fields("rates"),
        make_fields("terms"),
        make_fields("weather"),
        "no fields at all",
    )

    # recall 0.9 / 1.5, 0.6 / 1.5 and 0, each plus 0.1 for the format
    assert [s.reward for s in rollouts.samples] == pytest.approx([0.7, 0.5, 0.1, 0.0])
    assert [s.parts["Format"] for s in rollouts.samples] == [1.0, 1.0, 1.0, 0.0]
    queries = sorted(r.body["rewritten_query"] for r in actor.requests)
    assert queries == ["rates", "terms", "weather"]
    assert len(reference.requests) == 1  # one request per context
    [group] = collector.groups(rollouts)
    assert sum(group.advantages) == pytest.approx(0, abs=1e-6)


@pytest.mark.row("A13")
async def test_failed_call_drops_only_its_sample(tmp_path: Path) -> None:
    collector, rollouts, _, _ = await run_sales_step(
        tmp_path,
        make_fields("rates"),
        make_fields("broken"),
        make_fields("weather"),
        maxFailureRatio=0.5,
    )

    kept, lost, other = rollouts.samples
    assert lost.failure.startswith("endpoint actor-8b: HttpStatus")
    assert lost.reward is None
    assert rollouts.scored == [kept, other]
    [group] = collector.groups(rollouts)
    assert len(group.completions) == 2
    assert group.advantages[0] == pytest.approx(-group.advantages[1])
    collector.check_failures(rollouts)


async def test_failed_sample_scores_zero_when_on_failure_is_zero_reward(tmp_path: Path) -> None:
    collector, rollouts, _, _ = await run_sales_step(
        tmp_path, make_fields("rates"), make_fields("broken"), onFailure="ZeroReward"
    )

    [group] = collector.groups(rollouts)
    assert len(group.completions) == 2
    assert group.advantages[0] > 0 > group.advantages[1]


@pytest.mark.row("A13")
async def test_attempt_fails_with_counts_and_example_when_failures_exceed_limit(
    tmp_path: Path,
) -> None:
    outputs = [make_fields(query) for query in ("rates", "broken", "broken", "odd")]
    collector, rollouts, _, _ = await run_sales_step(tmp_path, *outputs, maxFailureRatio=0.7)

    with pytest.raises(TrainerError) as raised:
        collector.check_failures(rollouts)

    assert raised.value.exit_code is ExitCode.RETRIEVAL_UNAVAILABLE
    message = str(raised.value)
    assert "too many calls of a step failed (maxFailureRatio 0.7)" in message
    assert "3 of 4 calls failed" in message
    assert "endpoint actor-8b" in message
    assert "HttpStatus 2, MissingField 1" in message
    assert "e.g. sample 7/1: " in message
    assert "out of luck" in message
    assert "reference-32b" not in message
    assert rollouts.ledger.causes("endpoint actor-8b") == {
        FailureCause.HTTP_STATUS: 2,
        FailureCause.MISSING_FIELD: 1,
    }


async def test_refused_calls_fail_attempt_when_most_samples_make_no_call(tmp_path: Path) -> None:
    outputs = [make_fields("broken"), *["no fields at all"] * 9]
    collector, rollouts, _, _ = await run_sales_step(tmp_path, *outputs)

    with pytest.raises(TrainerError, match="actor-8b: 1 of 1 calls failed"):
        collector.check_failures(rollouts)


async def test_rag_calls_of_reward_count_as_retrieval_seconds(tmp_path: Path) -> None:
    time = 0.0

    async def respond_slowly(received: Received) -> Response:
        nonlocal time
        time += 5.0
        return await find_query(received)

    async with serving(respond_slowly) as actor, serving(REFERENCE) as reference:
        config = make_sales_config(tmp_path, actor.url, reference.url)
        pool = FakeEnginePool(in_turn(make_fields("rates")))
        async with make_collector(config, pool, SECRETS, clock=lambda: time) as collector:
            prompts = [make_prompt(7, "write the fields", CONTEXT)]
            batch = await collector.prepare(1, prompts, Sampling(1, temperature=1.0, top_p=1.0))
            rollouts = await collector.collect(batch)

    assert rollouts.seconds_since(0.0) == {
        "data": 0.0,
        "retrieve": 5.0,
        "generate": 0.0,
        "reward": 0.0,
    }


async def test_reading_and_composing_prompts_count_as_data_seconds(tmp_path: Path) -> None:
    times = iter([2.0, 7.0, 10.0, *[11.0] * 9])  # prompts read, passages, prompts composed, rest
    async with serving(REFERENCE) as actor, serving(REFERENCE) as reference:
        config = make_sales_config(tmp_path, actor.url, reference.url)
        pool = FakeEnginePool(in_turn(make_fields("rates")))
        async with make_collector(config, pool, SECRETS, clock=lambda: next(times)) as collector:
            prompts = [make_prompt(7, "write the fields", CONTEXT)]
            batch = await collector.prepare(1, prompts, Sampling(1, temperature=1.0, top_p=1.0))
            rollouts = await collector.collect(batch)

    seconds = rollouts.seconds_since(1.5)
    assert seconds["data"] == 0.5 + 3.0
    assert seconds["retrieve"] == 5.0
    assert rollouts.seconds_since(9.0)["data"] == 1.0


def test_stage_seconds_exclude_time_before_wait() -> None:
    ends = [("retrieve", 1.0), ("generate", 4.0), ("retrieve", 6.0), ("reward", 6.5)]
    rollouts = Rollouts((), ends, FailureLedger())

    assert rollouts.seconds_since(0.0) == {"retrieve": 3.0, "generate": 3.0, "reward": 0.5}
    assert rollouts.seconds_since(5.0) == {"retrieve": 1.0, "generate": 0.0, "reward": 0.5}
    assert rollouts.seconds_since(9.0) == {"retrieve": 0.0, "generate": 0.0, "reward": 0.0}


# --- mode Search: retrieval inside the completion

SEARCH = "<search>loans</search>"
RESULT = "<information>[1] about loans\n</information>"


def make_search_config(folder: Path, url: str, length: int, **retrieval: Any) -> TrainerConfig:
    return make_config(
        folder,
        {
            "retrieval": {
                "mode": "Search",
                "endpoints": [{"name": "kb", "url": url, "cache": False}],
                "maxPassageTokens": 64,
                **retrieval,
            },
            "data.maxResponseLength": length,
        },
    )


async def run_search(
    config: TrainerConfig, write: Write, carried: str = ""
) -> tuple[Sample, list[GenerationRequest]]:
    pool = FakeEnginePool(write, carried=carried)
    _, rollouts = await collect_rollouts(config, pool, [make_prompt(0, "question ")], n=1)
    [sample] = rollouts.samples
    return sample, pool.requests


def search_once(text: str) -> str:
    return "<answer>right</answer>" if "<information>" in text else f"I look it up {SEARCH}"


async def test_retrieved_passage_tokens_are_marked_as_not_sampled(tmp_path: Path) -> None:
    async with serving(search_r1()) as kb:
        sample, requests = await run_search(make_search_config(tmp_path, kb.url, 256), search_once)

    assert [r.body["queries"] for r in kb.requests] == [["loans"]]
    assert text_of(sample.token_ids) == f"I look it up {SEARCH}{RESULT}<answer>right</answer>"
    inserted = [
        t for t, sampled in zip(sample.token_ids, sample.sampled, strict=True) if not sampled
    ]
    assert text_of(inserted) == RESULT
    assert set(zip(sample.sampled, sample.logprobs, strict=True)) == {(True, -0.5), (False, 0.0)}
    assert sample.text == f"I look it up {SEARCH}<answer>right</answer>"
    assert sample.passages == ("about loans",)
    assert sample.reward == 1.0
    assert text_of(requests[1].prompt_ids) == f"question I look it up {SEARCH}{RESULT}"
    assert sample.completion().sampled == tuple(sample.sampled)


@pytest.mark.row("D9")
@pytest.mark.parametrize("carried", [".", "<", "\n<"])
async def test_search_is_triggered_by_stop_text_inside_longer_token(
    carried: str, tmp_path: Path
) -> None:
    async with serving(search_r1()) as kb:
        config = make_search_config(tmp_path, kb.url, 256)
        sample, _ = await run_search(config, search_once, carried)

    assert [r.body["queries"] for r in kb.requests] == [["loans"]]
    own = f"I look it up {SEARCH}{carried}"
    assert text_of(sample.token_ids) == f"{own}{RESULT}<answer>right</answer>"


@pytest.mark.row("D9")
@pytest.mark.parametrize("stray", ["loans</search>", "<search> </search>", "</search>"])
async def test_search_turn_without_query_continues_with_hint(stray: str, tmp_path: Path) -> None:
    def write(text: str) -> str:
        return "<answer>right</answer>" if "<information>" in text else stray

    async with serving(search_r1()) as kb:
        sample, requests = await run_search(make_search_config(tmp_path, kb.url, 256), write)

    assert not kb.requests
    assert text_of(sample.token_ids) == f"{stray}{NO_QUERY}<answer>right</answer>"
    assert len(requests) == 2
    assert sample.text == f"{stray}<answer>right</answer>"  # the hint is not part of the completion


async def test_answer_before_search_tag_ends_sample_without_search(tmp_path: Path) -> None:
    async with serving(search_r1()) as kb:
        config = make_search_config(tmp_path, kb.url, 256)
        sample, _ = await run_search(config, lambda _: f"<answer>right</answer> {SEARCH}")

    assert not kb.requests
    assert sample.reward == 1.0


async def test_search_stop_text_is_not_used_after_max_turns(tmp_path: Path) -> None:
    async with serving(search_r1()) as kb:
        config = make_search_config(tmp_path, kb.url, 1000, maxTurns=2)
        sample, requests = await run_search(config, lambda _: SEARCH)

    assert len(kb.requests) == 2
    assert text_of(sample.token_ids) == f"{SEARCH}{RESULT}" * 2 + SEARCH
    assert [r.stop for r in requests] == [("</search>",), ("</search>",), ()]
    assert len({r.seed for r in requests}) == 3


@pytest.mark.row("C8")
@pytest.mark.parametrize("length", [len(SEARCH), len(SEARCH) + 1, 40, len(SEARCH + RESULT), 100])
async def test_search_results_stay_within_token_budget(length: int, tmp_path: Path) -> None:
    async with serving(search_r1()) as kb:
        config = make_search_config(tmp_path, kb.url, length, maxTurns=8)
        sample, requests = await run_search(config, lambda _: SEARCH)

    assert length - 1 <= len(sample.token_ids) <= length
    assert sample.sampled[-1]  # passages always leave room for an answer
    assert all(request.max_tokens >= 1 for request in requests)
    assert all(len(r.prompt_ids) - len("question ") + r.max_tokens == length for r in requests)


@pytest.mark.parametrize(
    ("length", "write", "is_truncated"),
    [
        (256, search_once, False),
        (20, search_once, True),  # within the first query
        (len(SEARCH) + 1, lambda _: SEARCH, True),  # no room for results
        (40, lambda _: SEARCH, True),  # within the second turn
        (256, lambda _: "<answer>right</answer>", False),
    ],
)
async def test_search_that_does_not_fit_is_truncated(
    length: int, write: Write, is_truncated: bool, tmp_path: Path
) -> None:
    async with serving(search_r1()) as kb:
        config = make_search_config(tmp_path, kb.url, length, maxTurns=8)
        sample, _ = await run_search(config, write)

    assert sample.is_truncated is is_truncated
    assert sample.is_parsed is not is_truncated


async def test_failed_search_drops_its_sample(tmp_path: Path) -> None:
    async with serving(always({"error": "gone"}, status=404)) as kb:
        config = make_search_config(tmp_path, kb.url, 256)
        pool = FakeEnginePool(lambda text: SEARCH if "ask" in text else "<answer>right</answer>")
        prompts = [make_prompt(0, "ask "), make_prompt(1, "know ")]
        _, rollouts = await collect_rollouts(config, pool, prompts, n=1)

    lost, kept = rollouts.samples
    assert lost.failure.startswith("endpoint kb: HttpStatus")
    assert lost.reward is None
    assert (kept.failure, kept.reward) == ("", 1.0)


# --- mode Prompt: retrieval before generation


async def fail_on_broken(received: Received) -> Response:
    if "broken" in received.body["queries"]:
        return JSONResponse({"error": "out of luck"}, 500)
    return await search_r1()(received)


async def test_failed_retrieval_drops_samples_of_its_prompt(tmp_path: Path) -> None:
    async with serving(fail_on_broken) as kb:
        retrieval = {
            "mode": "Prompt",
            "endpoints": [{"name": "kb", "url": kb.url}],
            "maxFailureRatio": 0.4,
        }
        config = make_config(tmp_path, {"retrieval": retrieval})
        pool = FakeEnginePool(in_turn("right", "wrong", "right", "wrong"))
        prompts = [make_prompt(i, text) for i, text in enumerate(["loans", "broken", "cars"])]
        collector, rollouts = await collect_rollouts(config, pool, prompts, n=2)

    assert [s.name for s in rollouts.samples if s.failure] == ["1/0", "1/1"]
    assert [s.reward for s in rollouts.samples] == [1.0, 0.0, None, None, 1.0, 0.0]
    assert len(pool.requests) == 4  # nothing is generated for the lost prompt
    assert "about loans" in text_of(pool.requests[0].prompt_ids)
    assert len(collector.groups(rollouts)) == 2
    collector.check_failures(rollouts)


# --- service outages


def down_at_first(calls: int, answer: Respond) -> Respond:
    """Reject the first `calls` requests, then answer."""

    async def respond(received: Received) -> Response:
        rejected = received.number < calls
        return JSONResponse("restarting", 503) if rejected else await answer(received)

    return respond


@pytest.mark.row("D10")
async def test_step_with_outage_has_same_result_as_undisturbed_step(
    tmp_path: Path,
) -> None:
    """Outages of retrieval before generation, and of a reward service after it."""

    async def score(received: Received) -> Response:
        return JSONResponse({"score": len(received.body["completion"]) / 10})

    async def step(
        reported: list[list[str]], *, rejected: int = 0, unscored: int = 0
    ) -> list[tuple[Any, ...]]:
        def record(outages: Sequence[EndpointOutage]) -> None:
            reported.append([each.name for each in outages])

        outages = Outages(record)
        async with (
            serving(down_at_first(rejected, search_r1())) as kb,
            serving(down_at_first(unscored, score)) as judge,
        ):
            config = make_config(
                tmp_path,
                {
                    "retrieval.mode": "Prompt",
                    "retrieval.endpoints": [{"name": "kb", "url": kb.url}],
                    "reward.functions": [{"name": "Http", "url": judge.url}],
                },
            )
            pool = FakeEnginePool(in_turn("right", "wrong again", "right", "no"))
            prompts = [make_prompt(1, "tea"), make_prompt(2, "milk")]
            async with make_collector(config, pool, outages=outages) as collector:
                with outages.reporting():
                    batch = await collector.prepare(1, prompts, Sampling(2, 1.0, 1.0))
                    rollouts = await collector.collect(batch)
        assert rollouts.ledger.message() == ""
        return [(s.prompt_ids, s.token_ids, s.reward, s.failure) for s in rollouts.samples]

    undisturbed: list[list[str]] = []
    disturbed: list[list[str]] = []
    # Two prompts in one call and a probe; four samples and a probe.
    assert await step(disturbed, rejected=2, unscored=5) == await step(undisturbed)
    assert not any(undisturbed)
    names = [name for reported in disturbed for name in reported]
    assert names[0] == "endpoint kb"
    assert names[-1].startswith("reward Http http://127.0.0.1")


@pytest.mark.row("D4")
async def test_repeated_prompt_in_batch_has_two_groups_with_different_seeds(
    tmp_path: Path,
) -> None:
    twice, once = make_prompt(4, "twice"), make_prompt(5, "once")
    pool = FakeEnginePool(in_turn("right", "wrong", "right", "wrong", "wrong", "wrong"))

    config = make_config(tmp_path, {})
    collector, rollouts = await collect_rollouts(config, pool, [twice, once, twice], n=2)

    groups = collector.groups(rollouts)
    assert [len(group.completions) for group in groups] == [2, 2, 2]
    assert groups[2].advantages == (0.0, 0.0)  # separate baseline
    assert len({request.seed for request in pool.requests}) == 6
    assert [s.name for s in rollouts.samples] == ["4/0", "4/1", "5/0", "5/1", "4/2", "4/3"]


async def test_seeds_of_first_group_depend_on_prompt_and_sample_number(
    tmp_path: Path,
) -> None:
    pool = FakeEnginePool(in_turn("right", "wrong"))
    config = make_config(tmp_path, {})
    await collect_rollouts(config, pool, [make_prompt(4, "once")], n=2)
    seed = config.training.seed
    assert [r.seed for r in pool.requests] == [sample_seed(seed, 1, 4, key) for key in (0, 64)]


# --- rewards in user code

CODE = """
def by_text(sample):
    if sample["completion"] == "raise":
        return 1 / 0
    return {"none": None, "text": "0.5"}.get(sample["completion"], 1.0)
"""


def write_code(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "code_of_user.py").write_text(CODE)


async def run_python_reward(folder: Path, *outputs: str) -> None:
    """Collect one step with a Python reward and check its failures."""
    write_code(folder)
    functions = [{"name": "Python", "python": "code_of_user:by_text"}, {"name": "Format"}]
    config = make_config(
        folder,
        {"reward.functions": functions, "reward.codeFrom": {"path": str(folder)}},
    )
    prompts = [make_prompt(index, f"question {index}") for index in range(len(outputs) // 4)]
    collector, rollouts = await collect_rollouts(
        config, FakeEnginePool(in_turn(*outputs)), prompts, n=4
    )
    collector.check_failures(rollouts)


@pytest.mark.row("D15")
@pytest.mark.parametrize(
    ("outputs", "expected"),
    [
        (
            [*["fine"] * 7, "none"],
            "reward code_of_user:by_text: 1 of 8 calls failed (WrongType 1), e.g. sample 1/3: "
            "returned None (NoneType), expected a function of one dict, the sample, that returns a "
            "number; correct the function",
        ),
        (
            [*["fine"] * 3, *["text"] * 5],
            "5 of 8 calls failed (WrongType 5), e.g. sample 0/3: returned '0.5' (str)",
        ),
        (
            [*["fine"] * 6, *["raise"] * 2],
            "2 of 8 calls failed (Raised 2), e.g. sample 1/2: ZeroDivisionError",
        ),
    ],
)
async def test_faulty_python_reward_ends_attempt_as_reward_code_error(
    tmp_path: Path, outputs: list[str], expected: str
) -> None:
    with pytest.raises(TrainerError) as raised:
        await run_python_reward(tmp_path, *outputs)
    assert raised.value.exit_code is ExitCode.REWARD_CODE_ERROR
    assert expected in str(raised.value)


@pytest.mark.row("D15")
async def test_rare_exception_of_python_reward_drops_only_its_sample(tmp_path: Path) -> None:
    await run_python_reward(tmp_path, *["fine"] * 7, "raise")
