import json
from typing import Any

import pytest

from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.config_diff import (
    AttemptConfig,
    AttemptName,
    attempt_name,
    differences,
    pair,
)
from support.builders.operator.jobs import make_job

LONG_PROMPT = 16384
DERIVED_TOKENS = resolve(
    make_job({"data.maxPromptLength": LONG_PROMPT})
).spec.rollout.max_num_batched_tokens
A: dict[str, Any] = {
    "schemaDigest": "one",
    "attempt": {"number": 1},
    "rollout": {"n": 4, "stop": []},
    "rejectedCheckpoints": [],
}


def make_config(values: dict[str, Any], spec: dict[str, Any] | None = None) -> AttemptConfig:
    return AttemptConfig(values, resolve(make_job(spec or {})))


def test_configuration_differences_are_listed_by_path() -> None:
    b = {
        "schemaDigest": "two",
        "attempt": {"number": 2},
        "rollout": {"n": 8, "stop": ["</s>", "é"]},
        "rejectedCheckpoints": [],
        "skippedSteps": [3],
    }

    assert list(differences(make_config(A), make_config(b))) == [
        "rollout.n: 4 → 8",
        "rollout.stop: [] → –",
        'rollout.stop[0]: – → "</s>"',
        'rollout.stop[1]: – → "é"',
        "skippedSteps[0]: – → 3",
    ]


def test_equal_configurations_have_no_differences() -> None:
    assert [*differences(make_config(A), make_config(A | {"attempt": {"number": 2}}))] == []


def test_values_that_follow_from_others_are_omitted() -> None:
    a = make_config(
        {
            "algorithm": {"groupSize": 5},
            "rollout": {"n": 5, "maxNumBatchedTokens": 8192},
            "model": {"attention": "Auto"},
            "training": {"precision": "Auto"},
            "world": {"numRanks": 1},
        },
        {"rollout.n": 5, "training.precision": "Auto"},
    )
    b = make_config(
        {
            "algorithm": {"groupSize": 3},
            "rollout": {"n": 3, "maxNumBatchedTokens": DERIVED_TOKENS},
            "model": {"attention": "Eager"},
            "training": {"precision": "BF16"},
            "world": {"numRanks": 2},
            "facts": {"schemaDigest": "new", "rayVersion": "2.60.0"},
        },
        {"rollout.n": 3, "training.precision": "Auto", "data.maxPromptLength": LONG_PROMPT},
    )

    assert [*differences(a, b)] == ["rollout.n: 5 → 3"]


def test_mitigations_and_specified_values_are_listed() -> None:
    a = make_config({"training": {"tokensPerMicroBatch": 16384}, "model": {"attention": "Auto"}})
    b = make_config(
        {"training": {"tokensPerMicroBatch": 8192}, "model": {"attention": "Eager"}},
        {"model.attention": "Eager"},
    )

    assert [*differences(a, b)] == [
        "training.tokensPerMicroBatch: 16384 → 8192",
        'model.attention: "Auto" → "Eager"',
    ]


@pytest.mark.parametrize(
    ("path", "specified", "afterwards"),
    [
        ("training.weightDecay", 0.1, 0.0),
        ("algorithm.klCoefficient", 0.04, 0.0),
        ("training.warmupSteps", 10, 0),
        ("training.totalSteps", 50, 60),
        ("checkpoint.keepBest", True, False),
        ("training.precision", "BF16", "Auto"),
        ("training.precision", "BF16", "FP32"),
        ("model.attention", "Eager", "Auto"),
    ],
)
def test_removed_value_is_listed(path: str, specified: object, afterwards: object) -> None:
    newest = resolve(make_job({"resources.device": "CPU"}))
    block, name = path.split(".")
    a, b = (AttemptConfig({block: {name: value}}, newest) for value in (specified, afterwards))

    line = f"{path}: {json.dumps(specified)} → {json.dumps(afterwards)}"
    assert [*differences(a, b)] == [line]


def test_address_of_managed_retriever_is_omitted() -> None:
    spec = {"retrieval": {"endpoints": [{"name": "kb", "managed": {"corpus": "/mnt/c.jsonl"}}]}}
    a, b = (
        make_config(
            {"retrieval": {"endpoints": [{"url": f"http://127.0.0.1:{port}/retrieve"}]}},
            {"retrieval": spec["retrieval"]},
        )
        for port in (1, 2)
    )

    assert [*differences(a, b)] == []


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("small", AttemptName("small")),
        ("small@3", AttemptName("small", 3)),
        ("runs/a@home/small", AttemptName("runs/a@home/small")),
        ("runs/a@1/small@12", AttemptName("runs/a@1/small", 12)),
    ],
)
def test_attempt_name_is_parsed(text: str, name: AttemptName) -> None:
    assert attempt_name(text) == name


def test_attempt_name_is_formatted() -> None:
    assert str(AttemptName("small", 3)) == "small@3"
    assert attempt_name("small").number == 0


def test_job_without_second_name_is_compared_with_its_previous_attempt() -> None:
    newest = {"a": 5, "b": 2}
    a, b = AttemptName("a"), AttemptName("b")

    assert pair(a, None, newest) == (("a", 4), ("a", 5))
    assert pair(AttemptName("a", 3), None, newest) == (("a", 2), ("a", 3))
    assert pair(a, b, newest) == (("a", 5), ("b", 2))
    assert pair(AttemptName("a", 1), AttemptName("a", 2), newest) == (("a", 1), ("a", 2))


@pytest.mark.parametrize(
    ("name", "number", "has"), [("a", 0, "1 to 1"), ("a", 2, "1 to 1"), ("new", 0, "none yet")]
)
def test_unknown_attempt_error_lists_existing_attempts(name: str, number: int, has: str) -> None:
    with pytest.raises(ValueError, match=f"{name} has no attempt .*: its attempts are {has}"):
        pair(AttemptName(name, number), None, {"a": 1, "new": 0})


TOKEN = "hf_abcdefghijklmnopqrstuvwxyz01234"


@pytest.mark.parametrize(
    "values",
    [
        {"env": [{"name": "HF_TOKEN", "value": "{secret}"}]},
        {"retrieval": {"endpoints": [{"headers": [{"name": "X-Id", "value": "{secret}"}]}]}},
        {"judge": {"extraBody": {"credentials": {"password": "{secret}"}}}},
        {"url": "https://user:{secret}@host/x"}, {"url": "https://host/x?key={secret}"},
        {"model": {"path": "{secret}"}}, {"extraBody": {"{secret}": 1}},
    ],
)  # fmt: skip
def test_secrets_are_compared_but_not_shown(values: dict[str, Any]) -> None:
    text = json.dumps(values)
    a, b = (
        make_config(json.loads(text.replace("{secret}", TOKEN + digit))) for digit in ("1", "2")
    )
    lines = list(differences(a, b))
    assert lines
    assert TOKEN not in "".join(lines)
