"""Language models as judges: requests, parsed grades and failures."""

from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import JudgeSpec, RewardSpec
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.rewards.grades import parse_grade
from raggrpo_trainer.rewards.judge import JSON_FORMAT
from raggrpo_trainer.rewards.rewards import Rewards, RewardSample
from raggrpo_trainer.sample_failures import RewardFailed
from support.servers.faulty_server import FaultyServer, Received, Respond, serving

SAMPLE = RewardSample("1/0", "Capital?", "It is Paris.", ("Paris", "paris"), columns={"lang": "fr"})
PROMPT = "{lang}: {prompt} {answer} -> {completion} {{completion}}"


def reply_with(text: Any) -> Respond:
    async def respond(_: Received) -> Response:
        return JSONResponse({"choices": [{"message": {"role": "assistant", "content": text}}]})

    return respond


async def grade_samples(
    respond: Respond, *samples: RewardSample, **judge: Any
) -> tuple[FaultyServer, list[float]]:
    async with serving(respond) as server:
        fields = {"model": "grader", "prompt": PROMPT, **judge}
        term = {"name": "Judge", "url": server.url, "timeoutSeconds": 5, "judge": fields}
        spec = RewardSpec.model_validate({"functions": [term]})
        headers = {0: {"Authorization": "Bearer s3cr3t-token"}}
        async with Rewards(spec, RetrievalSpec(), headers=headers) as rewards:
            return server, [(await rewards.score(s)).total for s in samples or (SAMPLE,)]


@pytest.mark.row("D14")
async def test_judge_receives_sample_fields_and_grade_is_scaled() -> None:
    server, [score] = await grade_samples(
        reply_with("Good. Grade: 7.5"), system="Be fair.", extraBody={"seed": 3, "stop": ["x"]}
    )
    assert score == 0.75
    [received] = server.requests
    assert received.body == {
        "model": "grader",
        "messages": [
            {"role": "system", "content": "Be fair."},
            {"role": "user", "content": "fr: Capital? Paris | paris -> It is Paris. {completion}"},
        ],
        "temperature": 0.0,
        "max_tokens": 256,
        "stream": False,
        "seed": 3,
        "stop": ["x"],
        "response_format": JSON_FORMAT,
    }
    assert received.headers["authorization"] == "Bearer s3cr3t-token"


def make_reply(text: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}}]}


def cut_reply(text: str) -> dict[str, Any]:
    return {"choices": [{"message": {"content": text}, "finish_reason": "length"}]}


@pytest.mark.row("D14")
@pytest.mark.parametrize(
    ("values", "reply", "expected"),
    [
        ({}, "10/10", 1.0),
        ({}, "I rate this answer 8/10.", 0.8),
        ({}, "Score: 3 out of 10", 0.3),
        ({}, "Grade: 7. The answer missed 2 facts.", 0.7),
        ({}, "**Grade**: 9\n1. correct\n2. concise", 0.9),
        ({}, "Score for style: 3. Final score is 8.5", 0.85),
        ({}, '{"score": 6, "facts": 2}', 0.6),
        ({}, "<think>The student wrote 5.</think>\n7", 0.7),
        ({}, "7 - a clear 7", 0.7),
        ({}, '{"reason": "A score of 10 needs sources, so 3", "grade": 7}', 0.7),
        ({}, 'Here: {"Score": "8/10", "facts": 2}', 0.8),
        ({}, '{"grade": "7,5"}', 0.75),
        ({"scorePath": "g"}, 'Here: {"g": 7}', 0.7),
        ({"highest": 2000.0}, "1,000", 0.5),
        ({"scorePattern": r"Grade: (\d+)"}, "<think>Grade: 0?</think>Grade: 4", 0.4),
        ({"scorePath": "grade"}, '<think>x</think> Here it is: ```json\n{"grade": 8}\n```.', 0.8),
        ({"scorePattern": r"Grade: (\d+)"}, "Grade: 4 of 10", 0.4),
        ({"scorePattern": r"\d"}, "7, sure", 0.7),
        ({"scorePath": "result.grade"}, '```json\n{"result": {"grade": 5}}\n```', 0.5),
        ({"lowest": 1.0, "highest": 5.0}, "3", 0.5),
        ({"lowest": -1.0, "highest": 1.0}, "-0.5", 0.25),
    ],
)
def test_grades_are_read_by_pattern_or_path(
    values: dict[str, Any], reply: str, expected: float
) -> None:
    spec = JudgeSpec.model_validate({"model": "m", "prompt": "{completion}", **values})
    assert parse_grade(spec, make_reply(reply)) == pytest.approx(expected)


@pytest.mark.row("D14")
@pytest.mark.parametrize(
    ("values", "answer", "cause", "detail"),
    [
        ({}, make_reply("No idea."), FailureCause.NOT_A_NUMBER, "no grade"),
        ({}, make_reply("Between 2 and 4, so 3"), FailureCause.NOT_A_NUMBER, "several numbers"),
        ({}, make_reply("gpt4 says fine"), FailureCause.NOT_A_NUMBER, "no grade"),
        ({}, cut_reply("<think>the student wrote 5"), FailureCause.NOT_A_NUMBER, "judge.maxTokens"),
        ({}, cut_reply("7 because of 3"), FailureCause.NOT_A_NUMBER, "judge.maxTokens"),
        ({"scorePattern": r"\d"}, make_reply("<think>4"), FailureCause.NOT_A_NUMBER,
            "scorePattern"),
        ({}, {"error": {"message": "no model g"}}, FailureCause.SERVICE_ERROR, "error: no model g"),
        ({}, {"choices": [{"message": {"content": None, "reasoning_content": "hm"}}]},
            FailureCause.MISSING_FIELD, "increase judge.maxTokens"),
        ({}, make_reply("42"), FailureCause.NOT_A_NUMBER, "42 is outside the range 0 to 10"),
        ({}, make_reply(None), FailureCause.MISSING_FIELD, "wrote no text"),
        ({}, {"choices": []}, FailureCause.MISSING_FIELD, "choices[0]"),
        ({}, [], FailureCause.BAD_JSON, "expected a JSON object"),
        ({}, make_reply('{"grade": "high"}'), FailureCause.NOT_A_NUMBER, "no grade"),
        ({}, make_reply('{"grade": null}'), FailureCause.NOT_A_NUMBER, "None"),
        ({}, make_reply('{"grade": true}'), FailureCause.NOT_A_NUMBER, "None"),
        ({}, make_reply('{"grade": 0, "grade": 1}'), FailureCause.NOT_A_NUMBER, "'grade' occurs"),
        ({}, make_reply('{"grade": 0, "GRADE": 1}'), FailureCause.NOT_A_NUMBER, "'grade' occurs"),
        ({}, make_reply('Grade: {"grade": 0, "x": {"a": 1, "a": 2}}'), FailureCause.NOT_A_NUMBER,
            "'a' occurs twice"),
        ({"scorePath": "g"}, make_reply('{"g": 0, "g": 1}'), FailureCause.NOT_A_NUMBER,
            "'g' occurs twice"),
        ({"scorePath": "g"}, make_reply("7"), FailureCause.NOT_A_NUMBER, "no value at g"),
        ({"scorePath": "g"}, make_reply("[" * 10_000), FailureCause.NOT_A_NUMBER, "not JSON"),
        ({"scorePath": "g"}, make_reply('{"g": NaN}'), FailureCause.NOT_A_NUMBER, "nan"),
        ({"scorePattern": "(a+)+b"}, make_reply("a" * 60 + "c"), FailureCause.NOT_A_NUMBER, ""),
    ],
)  # fmt: skip
def test_reply_without_grade_fails_sample(
    values: dict[str, Any], answer: Any, cause: FailureCause, detail: str
) -> None:
    spec = JudgeSpec.model_validate({"model": "m", "prompt": "{completion}", **values})
    with pytest.raises(CallFailed) as caught:
        parse_grade(spec, answer)
    assert caught.value.cause is cause
    assert detail in caught.value.detail


@pytest.mark.row("D14")
async def test_equal_samples_are_graded_once_unless_cache_is_disabled() -> None:
    other = RewardSample("2/0", "Capital?", "London.", columns={"lang": "fr"})
    server, scores = await grade_samples(reply_with("5"), SAMPLE, SAMPLE, other)
    assert (len(server.requests), scores) == (2, [0.5, 0.5, 0.5])
    server, _ = await grade_samples(reply_with("5"), SAMPLE, SAMPLE, cache=False)
    assert len(server.requests) == 2


@pytest.mark.row("D14")
async def test_busy_judge_is_retried_and_rejected_request_is_not() -> None:
    async def busy(received: Received) -> Response:
        return await reply_with("8")(received) if received.number else JSONResponse({}, 503)

    server, scores = await grade_samples(busy, retries=1)
    assert (len(server.requests), scores) == (2, [0.8])

    async def reject(_: Received) -> Response:
        return JSONResponse({"error": "model not found"}, 404)

    with pytest.raises(RewardFailed, match="reward Judge grader: HttpStatus: 404"):
        await grade_samples(reject)


async def test_judge_reply_excerpt_masks_api_key() -> None:
    with pytest.raises(RewardFailed, match=r"has no grade: 'I was asked with \*\*\*'"):
        await grade_samples(reply_with("I was asked with s3cr3t-token"))


async def test_failed_grade_is_not_cached() -> None:
    async def fail_first(received: Received) -> Response:
        return await reply_with("bad" if received.number == 0 else "6")(received)

    async with serving(fail_first) as server:
        judge = {"model": "m", "prompt": "{completion}"}
        term = {"name": "Judge", "url": server.url, "judge": judge}
        spec = RewardSpec.model_validate({"functions": [term]})
        async with Rewards(spec, RetrievalSpec()) as rewards:
            with pytest.raises(RewardFailed):
                await rewards.score(SAMPLE)
            assert (await rewards.score(SAMPLE)).total == 0.6


@pytest.mark.row("D14")
@pytest.mark.parametrize("cache", [True, False])
async def test_unavailable_judge_is_probed_with_earlier_request(
    cache: bool,
) -> None:
    first = SAMPLE
    lost = RewardSample("2/0", "Capital?", "London.", columns={"lang": "fr"})

    async def down_for_three_calls(received: Received) -> Response:
        is_down = 1 <= received.number <= 3
        return JSONResponse("loading", 503) if is_down else await reply_with("6")(received)

    reported: list[list[str]] = []
    outages = Outages(lambda down: reported.append([each.name for each in down]))
    async with serving(down_for_three_calls) as server:
        judge = {"model": "m", "prompt": "{completion}", "retries": 0, "cache": cache}
        term = {"name": "Judge", "url": server.url, "judge": judge}
        spec = RewardSpec.model_validate({"functions": [term]})
        async with Rewards(spec, RetrievalSpec(), outages=outages) as rewards:
            with outages.reporting():
                scores = [(await rewards.score(sample)).total for sample in (first, lost)]

    assert scores == [0.6, 0.6]
    prompts = [received.body["messages"][0]["content"] for received in server.requests]
    own, probe = lost.completion, first.completion
    assert prompts == [probe, own, probe, probe, probe, own]
    assert [f"reward Judge m at {server.url}"] in reported
    assert reported[-1] == []


@pytest.mark.row("D14")
async def test_judges_of_same_model_have_unique_names() -> None:
    async def by_prompt(received: Received) -> Response:
        text = received.body["messages"][0]["content"]
        if "kind" in text:
            return JSONResponse("no such model", 404)
        return await reply_with("8" if "true" in text else "4")(received)

    async with serving(by_prompt) as server:
        prompts = ("Is {completion} true?", "Is {completion} short?", "Is {completion} kind?")
        terms = [
            {"name": "Judge", "url": server.url, "judge": {"model": "m", "prompt": prompt}}
            for prompt in prompts
        ]
        two = RewardSpec.model_validate({"functions": terms[:2]})
        async with Rewards(two, RetrievalSpec()) as rewards:
            assert (await rewards.score(SAMPLE)).parts == {"Judge m": 0.8, "Judge m [1]": 0.4}
        three = RewardSpec.model_validate({"functions": terms})
        async with Rewards(three, RetrievalSpec()) as rewards:
            with pytest.raises(RewardFailed, match=r"reward Judge m \[2\]: HttpStatus: 404"):
                await rewards.score(SAMPLE)


@pytest.mark.row("D14")
@pytest.mark.parametrize(
    ("body", "status", "requests_json"),
    [
        ({"error": "response_format is not supported"}, 400, [True, False, False]),
        ({"detail": "extra fields not permitted"}, 422, [True, False, False]),
        ({"error": {"message": "unknown field response_format"}}, 200, [True, False, False]),
        ("Internal Server Error", 500, [True, False, True, False]),  # may be an outage
    ],
)
async def test_json_reply_is_requested_until_server_rejects_it(
    body: Any, status: int, requests_json: list[bool]
) -> None:
    async def reject_format(received: Received) -> Response:
        if "response_format" in received.body:
            return JSONResponse(body, status)
        return await reply_with("Grade: 8. Key points: 1.")(received)

    other = RewardSample("2/0", "Capital?", "London.", columns={"lang": "fr"})
    server, scores = await grade_samples(reject_format, SAMPLE, other, retries=0)
    assert scores == [0.8, 0.8]
    assert ["response_format" in each.body for each in server.requests] == requests_json


@pytest.mark.row("D14")
async def test_supported_json_format_is_kept_after_rejection() -> None:
    async def reject_second(received: Received) -> Response:
        if received.number == 1:
            return JSONResponse({"error": "prompt too long"}, 400)
        return await reply_with('{"grade": 6}')(received)

    with pytest.raises(RewardFailed, match="prompt too long"):
        await grade_samples(reject_second, SAMPLE, SAMPLE, cache=False)


@pytest.mark.row("D14")
@pytest.mark.parametrize(
    "judge",
    [
        {"scorePattern": r"(\d+)"},
        {"scorePath": "grade"},
        {"maxTokens": 8},
        {"extraBody": {"response_format": {"type": "json_object"}}},
        {"extraBody": {"structured_outputs": {"regex": "[0-9]"}}},
        {"extraBody": {"guided_json": {}}},
    ],
)
async def test_specified_reply_format_is_not_replaced(judge: dict[str, Any]) -> None:
    server, scores = await grade_samples(reply_with('{"grade": 6}'), **judge)
    assert scores == [0.6]
    [received] = server.requests
    specified = judge.get("extraBody", {}).get("response_format")
    assert received.body.get("response_format") == specified
