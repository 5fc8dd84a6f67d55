import asyncio
from dataclasses import replace
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.spec.retrieval import RetrievalMode, RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_trainer.call_failures import FailureCause
from raggrpo_trainer.retrieval.passage import Passage
from raggrpo_trainer.rewards.rewards import (
    Rewards,
    RewardSample,
    Score,
    final_answer,
    format_score,
    is_parsed,
    rag_score,
    term_names,
)
from raggrpo_trainer.sample_failures import RewardFailed
from support.servers.faulty_server import Received, serving


def make_passages(**scores: float) -> list[Passage]:
    return [Passage(key, f"text of {key}", score) for key, score in scores.items()]


def make_sample(completion: str = "Paris", **values: Any) -> RewardSample:
    return RewardSample("17/0", "Capital of France?", completion, ("Paris",), **values)


def make_reward_spec(*functions: dict[str, Any]) -> RewardSpec:
    return RewardSpec.model_validate({"functions": list(functions)})


SALES = RetrievalSpec.model_validate(
    {
        "mode": "Reward",
        "endpoints": [
            {
                "name": "reference-32b",
                "role": "Reference",
                "protocol": "RagChat",
                "scoreThreshold": 0.1,
            },
            {"name": "actor-8b", "role": "Actor", "protocol": "RagChat", "scoreThreshold": 0.6},
        ],
    }
)


async def score_sample(
    sample: RewardSample, *functions: dict[str, Any], retrieval: RetrievalSpec = RetrievalSpec()
) -> Score:
    async with Rewards(make_reward_spec(*functions), retrieval) as rewards:
        return await rewards.score(sample)


@pytest.mark.parametrize(
    ("actor", "reference", "threshold", "expected"),
    [
        # (0.9 + 0.5) of 0.9 + 0.6 + 0.5
        (make_passages(a=0.8, c=0.7), make_passages(a=0.9, b=0.6, c=0.5), 0.5, 1.4 / 2.0),
        # the score of c is below the threshold: 0.9 of 2.0
        (make_passages(a=0.8, c=0.7), make_passages(a=0.9, b=0.6, c=0.5), 0.75, 0.9 / 2.0),
        # a score equal to the threshold counts
        (make_passages(a=0.75), make_passages(a=0.3), 0.75, 1.0),
        (make_passages(x=1.0), make_passages(a=0.9), 0.0, 0.0),
        (make_passages(), make_passages(a=0.9), 0.0, 0.0),
        (make_passages(a=1.0), make_passages(), 0.0, 0.0),
        # negative scores have zero weight: 0.5 of 0.5
        (make_passages(a=1.0), make_passages(a=0.5, b=-2.0), 0.0, 1.0),
        (make_passages(a=1.0), make_passages(a=-1.0), 0.0, 0.0),
    ],
)
def test_rag_score_equals_hand_computed_values(
    actor: list[Passage], reference: list[Passage], threshold: float, expected: float
) -> None:
    assert rag_score(actor, reference, threshold) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("Paris", "Paris"),
        ("<search>x</search><answer>Lyon</answer> no: <answer>\nParis</answer>", "\nParis"),
        ("<answer>Paris", "<answer>Paris"),
    ],
)
def test_final_answer_is_last_answer_tag_or_whole_completion(
    completion: str, expected: str
) -> None:
    assert final_answer(completion) == expected


@pytest.mark.parametrize(
    ("completion", "expected"),
    [
        ("3 + 4 = 7\n#### 7", "7"),
        ("#### 5\nno, wait\n#### 7 \nthat is it", "7"),
        ("the answer is 7", ""),
        ("<answer>7</answer>", ""),
        ("", ""),
    ],
)
def test_final_answer_follows_last_marker(completion: str, expected: str) -> None:
    assert final_answer(completion, "####") == expected


async def test_custom_answer_marker_is_used() -> None:
    spec = RewardSpec.model_validate({"functions": [{"name": "ExactMatch"}], "answerMarker": "##"})
    async with Rewards(spec, RetrievalSpec()) as rewards:
        marked = await rewards.score(make_sample("I think so ## Paris"))
        bare = await rewards.score(make_sample("Paris"))
    assert (marked.total, marked.exact_match) == (1.0, 1.0)
    assert (bare.total, bare.exact_match) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("mode", "sample", "expected"),
    [
        (RetrievalMode.REWARD, make_sample(fields={"rewritten_query": "x"}), 1.0),
        (RetrievalMode.REWARD, make_sample("<answer>Paris</answer>", fields=None), 0.0),
        (RetrievalMode.SEARCH, make_sample("<answer>Paris</answer>"), 1.0),
        (RetrievalMode.SEARCH, make_sample("<answer> </answer>"), 0.0),
        (RetrievalMode.SEARCH, make_sample("Paris"), 0.0),
        (RetrievalMode.PROMPT, make_sample("Paris"), 1.0),
        (RetrievalMode.NONE, make_sample(" \n"), 0.0),
    ],
)
def test_format_reward_depends_on_retrieval_mode(
    mode: RetrievalMode, sample: RewardSample, expected: float
) -> None:
    assert format_score(sample, mode) == expected


@pytest.mark.parametrize(
    ("mode", "marker", "sample", "expected"),
    [
        (RetrievalMode.NONE, "####", make_sample("3 + 4 = 7\n#### 7"), True),
        (RetrievalMode.NONE, "####", make_sample("3 + 4 = 7"), False),
        (RetrievalMode.NONE, "####", make_sample("7 ####"), False),
        (RetrievalMode.SEARCH, "####", make_sample("#### 7"), True),
        (RetrievalMode.SEARCH, "", make_sample("#### 7"), False),
        (RetrievalMode.REWARD, "####", make_sample("#### 7", fields=None), False),
        (RetrievalMode.REWARD, "####", make_sample("{}", fields={"query": "x"}), True),
        (RetrievalMode.PROMPT, "", make_sample("Paris"), True),
        (RetrievalMode.PROMPT, "", make_sample(" \n"), False),
    ],
)
def test_completion_is_parsed_if_it_has_what_the_reward_reads(
    mode: RetrievalMode, marker: str, sample: RewardSample, expected: bool
) -> None:
    assert is_parsed(sample, mode, marker) is expected


async def test_reward_is_weighted_sum_of_unweighted_terms() -> None:
    sample = make_sample("It is <answer>Paris, France</answer>")
    score = await score_sample(
        sample,
        {"name": "F1", "weight": 2.0},
        {"name": "Contains", "weight": 0.5},
        {"name": "ExactMatch", "weight": 10.0},
    )

    assert score.parts == pytest.approx({"F1": 2 / 3, "Contains": 1.0, "ExactMatch": 0.0})
    assert score.total == pytest.approx(2.0 * 2 / 3 + 0.5)
    assert score.exact_match == 0.0


async def test_exact_match_is_reported_even_if_not_reward_term() -> None:
    score = await score_sample(make_sample("paris."), {"name": "Format"})
    assert score == Score(total=1.0, parts={"Format": 1.0}, exact_match=1.0)


async def test_exact_match_is_none_without_reference_answers() -> None:
    sample = replace(make_sample("paris."), answers=())
    score = await score_sample(sample, {"name": "Format"})
    assert score.exact_match is None


def test_rag_score_of_huge_scores_is_a_number() -> None:
    passages = [Passage(id_, "text", 1e308) for id_ in ("a", "b")]
    assert rag_score(passages[:1], passages, 0.0) == 0.5


async def test_rag_score_uses_actor_threshold() -> None:
    retrieved = {
        "Actor": make_passages(a=0.9, b=0.5, c=0.6),
        "Reference": make_passages(a=0.5, b=0.3, c=0.2),
    }
    sample = make_sample("{...}", fields={"rewritten_query": "x"}, retrieved=retrieved)
    score = await score_sample(sample, {"name": "RagScore"}, {"name": "Format"}, retrieval=SALES)
    assert score.parts == pytest.approx({"RagScore": 0.7, "Format": 1.0})


async def test_unparsable_output_scores_zero_without_call() -> None:
    sample = make_sample("no fields", fields=None, retrieved={})
    async with Rewards(
        make_reward_spec({"name": "RagScore"}, {"name": "Format"}), SALES
    ) as rewards:
        score = await rewards.score(sample)
    assert score.parts == {"RagScore": 0.0, "Format": 0.0}
    assert rewards.empty_references == 0


async def test_empty_reference_answer_scores_zero_and_is_counted() -> None:
    retrieved = {"Actor": make_passages(a=0.9), "Reference": make_passages()}
    sample = make_sample(fields={"rewritten_query": "x"}, retrieved=retrieved)
    async with Rewards(make_reward_spec({"name": "RagScore"}), SALES) as rewards:
        score = await rewards.score(sample)

    assert score.total == 0.0
    assert rewards.empty_references == 1


async def test_failed_reward_term_fails_sample_after_other_terms_finish() -> None:
    finished = asyncio.Event()

    async def respond(received: Received) -> Response:
        if received.body["prompt"] == "Capital of France?":
            await asyncio.sleep(0.05)  # longer than the other term takes to raise
            finished.set()
        return JSONResponse({"score": 1})

    async with serving(respond) as judge:
        spec = make_reward_spec(
            {"name": "Python", "python": "asyncio:sleep"}, {"name": "Http", "url": judge.url}
        )
        async with Rewards(spec, RetrievalSpec()) as rewards:
            with pytest.raises(RewardFailed) as failed:
                await rewards.score(make_sample())

    assert failed.value.name == "asyncio:sleep"
    assert failed.value.cause is FailureCause.RAISED
    assert finished.is_set()


def make_judge(model: str, prompt: str) -> dict[str, Any]:
    url = "http://judge:8000/v1/chat/completions"
    return {"name": "Judge", "url": url, "judge": {"model": model, "prompt": prompt}}


@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        ([{"name": "F1"}, {"name": "ExactMatch"}], ["F1", "ExactMatch"]),
        (
            [make_judge("grader", "Is it true?"), make_judge("grader", "Is it kind?")],
            ["Judge grader", "Judge grader [1]"],
        ),
        ([{"name": "F1"}, {"name": "ExactMatch"}, {"name": "F1"}], ["F1", "ExactMatch", "F1 [2]"]),
        (
            [{"name": "Http", "url": "http://a/?x=1"}, {"name": "Http", "url": "http://a/?x=2"}],
            ["Http http://a/", "Http http://a/ [1]"],
        ),
        (
            [make_judge("grader", "1"), make_judge("grader [2]", "2"), make_judge("grader", "3")],
            ["Judge grader", "Judge grader [2]", "Judge grader [2] [2]"],
        ),
    ],
)
def test_reward_term_names_are_unique(functions: list[dict[str, Any]], expected: list[str]) -> None:
    assert term_names(RewardSpec.model_validate({"functions": functions}).functions) == expected


async def test_reward_terms_of_same_kind_are_reported_separately() -> None:
    f1 = {"name": "F1"}
    score = await score_sample(make_sample("Paris, France"), f1, f1 | {"weight": 2.0})
    assert score.parts == pytest.approx({"F1": 2 / 3, "F1 [1]": 2 / 3})
    assert score.total == pytest.approx(2.0)
