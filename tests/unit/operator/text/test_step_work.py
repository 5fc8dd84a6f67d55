from typing import Any

import pytest

from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.step_work import equal_group_share, step_work, work_lines
from support.builders.operator.jobs import make_job

ACTOR = {"name": "actor", "role": "Actor", "protocol": "RagChat", "url": "http://rag.example/a"}
REFERENCE = ACTOR | {"name": "reference", "role": "Reference"}
KB = {"name": "kb", "url": "http://kb.example/retrieve"}
BASE = {
    "data.trainBatchSize": 8,
    "data.maxPromptLength": 512,
    "data.maxResponseLength": 64,
    "rollout.n": 5,
}


@pytest.mark.parametrize(
    ("retrieval", "calls"),
    [
        ({"mode": "None"}, 0),
        ({"mode": "Prompt", "endpoints": [KB, KB | {"name": "other"}]}, 16),
        ({"mode": "Search", "endpoints": [KB], "maxTurns": 3}, 8 * 5 * 3),
        ({"mode": "Reward", "endpoints": [ACTOR, REFERENCE]}, 8 * 5 + 8),
        ({"mode": "Reward", "endpoints": [ACTOR, REFERENCE | {"cache": False}]}, 2 * 8 * 5),
    ],
)
def test_retrieval_calls_depend_on_mode(retrieval: dict[str, Any], calls: int) -> None:
    spec = resolve(make_job(BASE | {"retrieval": retrieval})).spec
    assert step_work(spec, 5).retrieval_calls == calls


def test_step_work_counts_completions_tokens_and_reward_calls() -> None:
    judge = {"name": "Http", "url": "http://reward.example/"}
    changes = {"reward": {"functions": [{"name": "F1"}, judge]}}
    work = step_work(resolve(make_job(BASE | changes)).spec, 3)

    assert (work.prompts, work.completions) == (8, 24)
    assert (work.prompt_tokens, work.sampled_tokens) == (8 * 512, 24 * 64)
    assert work.reward_calls == 24


@pytest.mark.parametrize(
    ("rate", "n", "share"), [(0.5, 2, 0.5), (0.5, 4, 0.125), (0.1, 4, 0.6562), (0.0, 8, 1.0)]
)
def test_equal_group_share_is_probability_of_equal_rewards(
    rate: float, n: int, share: float
) -> None:
    assert equal_group_share(rate, n) == pytest.approx(share)


def test_work_lines_show_effect_of_other_values_of_n() -> None:
    lines = [*work_lines(resolve(make_job(BASE)).spec)]
    table = [line.split() for line in lines[-3:]]

    assert [row[0] for row in table] == ["3", "5", "10"]
    assert [row[1] for row in table] == ["24", "40", "80"]
    assert table[1][2] == "2,560"
    assert max(map(len, lines)) <= 100
