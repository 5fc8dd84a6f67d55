from typing import Any

import pytest

from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.start_from import StartFrom
from raggrpo_api.trainer.preflight import Facts
from raggrpo_api.trainer.resume import (
    Change,
    changes,
    incompatible,
    resume_values,
    without_derived,
)
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from support.builders.operator.jobs import make_job

DEPENDS_ON = """
data.trainBatchSize data.maxPromptLength data.maxResponseLength
data.maxSamples data.allowTruncation data.columns
algorithm.groupSize algorithm.clipRatioLow algorithm.clipRatioHigh algorithm.klCoefficient
algorithm.normalizeByStd algorithm.lossAggregation algorithm.importanceCap
rollout.n rollout.temperature rollout.topP
training.seed training.learningRate training.warmupSteps training.weightDecay
training.maxGradNorm training.miniBatchPrompts training.offPolicySteps
retrieval.mode retrieval.promptTemplate retrieval.passageTemplate retrieval.shufflePassages
retrieval.maxPassageTokens retrieval.maxTurns retrieval.actorOutput retrieval.onFailure
retrieval.endpoints reward.functions
"""
ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve", "topK": 5}
JOB = {"retrieval.mode": "Prompt", "retrieval.endpoints": [ENDPOINT]}


def make_spec() -> JobSpec:
    return resolve(make_job(JOB)).spec


def test_resume_values_contain_fields_that_affect_results() -> None:
    values = resume_values(make_spec())

    assert sorted(values) == sorted(DEPENDS_ON.split())
    assert values["data.trainBatchSize"] == 128
    assert values["retrieval.endpoints"] == [
        {"name": "kb", "role": "Retriever", "protocol": "SearchR1", "topK": 5}
        | {"scoreThreshold": 0.95}
    ]
    assert values["reward.functions"] == [{"name": "ExactMatch", "weight": 1.0, "python": ""}]


def test_resume_values_are_equal_for_spec_and_trainer_config() -> None:
    job = make_job(JOB)
    config = trainer_config(job, resolve(job), number=1)
    assert resume_values(config) == resume_values(make_spec())


def test_checkpoint_without_new_field_is_compatible_while_field_is_default() -> None:
    before = resume_values(make_spec())
    assert before["data.columns"] == {
        "prompt": "prompt",
        "answer": "answer",
        "context": "context",
        "query": "",
    }

    changes = {
        "data.systemPrompt": "Be brief.",
        "data.chatTemplate": "{{ messages }}",
        "data.tools": "[]",
        "data.columns.tools": "tools",
        "reward.answerMarker": "####",
    }
    for path, value in changes.items():
        changed = resume_values(resolve(make_job(JOB | {path: value})).spec)
        [place] = [place for place in changed if changed[place] != before.get(place)]
        assert path.startswith(place)


HTTP = ENDPOINT | {"protocol": "Http", "body": {"q": "{question}"}, "response": {"text": "body"}}
JUDGED = {
    "name": "Judge",
    "url": "http://judge:8000/v1/chat/completions",
    "judge": {"model": "grader", "prompt": "Grade {completion}"},
}


def after_an_edit(block: str, before: dict[str, Any], edit: dict[str, Any]) -> list[str]:
    """Return the differences after an edit of one endpoint or reward function."""
    places = {"endpoint": "retrieval.endpoints", "function": "reward.functions"}
    old, new = (
        resume_values(
            resolve(make_job({"retrieval.mode": "Prompt"} | {places[block]: [item]})).spec
        )
        for item in (before, before | edit)
    )
    return [str(change) for change in changes(old, new)]


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"prompt": "Be strict: {completion}"}, "prompt: "),
        ({"system": "Be fair."}, 'system: (unset) → "Be fair."'),
        ({"model": "another"}, 'model: "grader" → "another"'),
        ({"scorePattern": r"(\d)"}, "scorePattern: "),
        ({"scorePath": "grade"}, "scorePath: "),
        ({"lowest": 1.0}, "lowest: (unset) → 1.0"),
        ({"highest": 5.0}, "highest: (unset) → 5.0"),
        ({"temperature": 0.7}, "temperature: (unset) → 0.7"),
        ({"maxTokens": 9}, "maxTokens: (unset) → 9"),
        ({"extraBody": {"seed": 3}}, "extraBody: (unset) → "),
    ],
)
def test_judge_prompt_and_score_parsing_are_resume_values(
    edit: dict[str, Any], expected: str
) -> None:
    [change] = after_an_edit("function", JUDGED, {"judge": JUDGED["judge"] | edit})
    assert change.startswith(f"reward.functions[0].judge.{expected}")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        ({"body": {"q": "about {question}"}}, 'body.q: "{question}" → "about {question}"'),
        ({"extraBody": {"filter": [1, 2]}, "protocol": "RagChat", "body": None}, "extraBody"),
        ({"method": "GET", "body": None}, 'method: (unset) → "GET"'),
        ({"response": {"text": "title"}}, 'response.text: "body" → "title"'),
        ({"response": {}}, 'response: {"text": "body"} → (unset)'),
    ],
)
def test_endpoint_body_and_response_are_resume_values(edit: dict[str, Any], expected: str) -> None:
    differences = after_an_edit("endpoint", HTTP, edit)
    assert any(change.startswith(f"retrieval.endpoints[0].{expected}") for change in differences), (
        differences
    )


@pytest.mark.parametrize(
    ("block", "before", "edit"),
    [
        ("endpoint", HTTP, {"url": "https://elsewhere/", "timeoutSeconds": 5, "cache": False}),
        ("endpoint", HTTP, {"maxConcurrency": 2, "headers": [{"name": "X-A", "value": "1"}]}),
        ("function", JUDGED, {"url": "http://other/v1/chat/completions", "timeoutSeconds": 5}),
        (
            "function",
            JUDGED,
            {
                "judge": JUDGED["judge"]  # type: ignore[operator]
                | {"retries": 5, "cache": False, "maxConcurrency": 2}
                | {"headers": [{"name": "X-A", "value": "1"}]}
            },
        ),
    ],
)
def test_service_urls_headers_and_limits_do_not_change_resume_values(
    block: str, before: dict[str, Any], edit: dict[str, Any]
) -> None:
    assert after_an_edit(block, before, edit) == []


def test_secrets_in_bodies_are_redacted_in_resume_values() -> None:
    old = {"body": {"api_key": "a", "q": "{question}"}}
    values = resume_values(
        make_job({"retrieval.endpoints": [HTTP | old], "retrieval.mode": "Prompt"}).spec
    )
    assert values["retrieval.endpoints"][0]["body"] == {"api_key": "(hidden)", "q": "{question}"}


def test_long_text_change_is_shortened_around_first_difference() -> None:
    before = JUDGED | {"judge": {"model": "m", "prompt": "word " * 500 + "grade {completion}"}}
    edit = {"judge": {"model": "m", "prompt": "word " * 500 + "weigh {completion}"}}
    [change] = after_an_edit("function", before, edit)
    assert change.startswith("reward.functions[0].judge.prompt: ")
    assert 'grade {completion}" → ' in change
    assert change.endswith('weigh {completion}"')
    assert len(change) < 200


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"learningRateSchedule": "Constant"}, ["learningRateSchedule", "decaySteps: 1000 →"]),
        ({"minLearningRateRatio": 0.1}, ["minLearningRateRatio: (unset) → 0.1"]),
        ({"totalSteps": 2000}, ["decaySteps: 1000 → 2000"]),
        ({"totalSteps": 2000, "decaySteps": 1000}, []),
    ],
)
def test_learning_rate_schedule_changes_are_listed_as_differences(
    change: dict[str, Any], expected: list[str]
) -> None:
    original = {"learningRateSchedule": "Cosine", "totalSteps": 1000}
    old, new = (
        resume_values(resolve(make_job({f"training.{k}": v for k, v in given.items()})).spec)
        for given in (original, original | change)
    )
    differences = [str(change) for change in changes(old, new)]
    assert len(differences) == len(expected)
    for part in expected:
        assert any(part in line for line in differences), differences


def lora_values(lora: dict[str, Any] | None) -> dict[str, Any]:
    return resume_values(
        resolve(make_job({"training.lora": lora} if lora is not None else {})).spec
    )


def test_full_training_has_no_lora_in_resume_values() -> None:
    assert not [path for path in lora_values(None) if path.startswith("training.lora")]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, {}, 'training.lora: (unset) → {"rank": 32, '),
        ({"rank": 8}, None, 'training.lora: {"rank": 8, '),
        ({"rank": 8}, {"rank": 16, "alpha": 16}, "training.lora.rank: 8 → 16"),
        ({}, {"alpha": 32}, "training.lora.alpha: 64.0 → 32.0"),
        ({}, {"targets": ["q_proj"]}, "training.lora.targets[0]: "),
    ],
)
@pytest.mark.parametrize("start", [None, "Continue", "Restart"])
def test_changed_lora_is_incompatible_with_a_checkpoint(
    before: dict[str, Any] | None, after: dict[str, Any] | None, expected: str, start: str | None
) -> None:
    source = (
        None
        if start is None
        else StartFrom.model_validate({"checkpoint": {"path": "/other"}, "data": start})
    )
    [rejected] = incompatible(changes(lora_values(before), lora_values(after)), source)

    assert str(rejected).startswith(expected)


@pytest.mark.parametrize("same", [{"rank": 32}, {"alpha": 64.0}, {"targets": ["AllLinear"]}])
def test_specified_lora_defaults_are_equal_to_unspecified_ones(same: dict[str, Any]) -> None:
    assert changes(lora_values({}), lora_values(same)) == []


def test_decay_steps_default_to_steps_from_epochs() -> None:
    job = make_job(
        {"training.epochs": 2, "training.totalSteps": 0, "training.learningRateSchedule": "Linear"}
    )
    rows = 5 * job.spec.data.train_batch_size
    config = trainer_config(job, resolve(job), number=1, facts=Facts(rows=rows))
    assert config.training.decay_steps == config.training.total_steps == 10
    assert resolve(job, Facts(rows=rows)).values()["training.decaySteps"] == 10


def test_dual_clip_is_resume_value_only_if_enabled() -> None:
    spec = make_spec()
    on = spec.model_copy(update={"algorithm": spec.algorithm.model_copy(update={"dual_clip": 3.0})})
    assert "algorithm.dualClip" not in resume_values(spec)
    assert resume_values(on)["algorithm.dualClip"] == 3.0


def changes_after(edit: dict[str, Any]) -> list[Change]:
    old, new = (resume_values(resolve(make_job(values)).spec) for values in (JOB, JOB | edit))
    return changes(old, new)


def test_changed_optimization_values_are_compatible() -> None:
    edit = {
        "rollout.n": 5,
        "rollout.temperature": 0.7,
        "data.trainBatchSize": 256,
        "algorithm.klCoefficient": 0.1,
        "training.learningRate": 1e-5,
        "reward.functions": [{"name": "ExactMatch", "weight": 2.0}],
        "retrieval.endpoints": [ENDPOINT | {"topK": 2}],
    }

    differences = changes_after(edit)

    assert incompatible(differences) == []
    assert [str(change) for change in without_derived(differences)] == [
        "algorithm.klCoefficient: 0.0 → 0.1",
        "data.trainBatchSize: 128 → 256",
        "retrieval.endpoints[0].topK: 5 → 2",
        "retrieval.maxPassageTokens: 153 → 256",
        "reward.functions[0].weight: 1.0 → 2.0",
        "rollout.n: 3 → 5",
        "rollout.temperature: 0.6 → 0.7",
        "training.learningRate: 1e-06 → 1e-05",
    ]


@pytest.mark.parametrize(
    "edit",
    [
        {"data.chatTemplate": "{{ messages }}"},
        {"training.seed": 7},
        {"retrieval.endpoints": []},
        {"retrieval.endpoints": [ENDPOINT | {"protocol": "RagChat"}]},
        {"reward.functions": [{"name": "F1"}]},
        {"reward.functions": [{"name": "ExactMatch"}, {"name": "F1"}]},
    ],
)
def test_changed_model_data_or_task_is_incompatible(edit: dict[str, Any]) -> None:
    [path] = edit
    [change] = incompatible(changes_after(edit | {"rollout.temperature": 0.9}))
    assert change.path.startswith(path)


def test_mini_batch_that_was_specified_is_listed_with_batch_size() -> None:
    differences = changes_after({"data.trainBatchSize": 64, "training.miniBatchPrompts": 32})
    paths = [change.path for change in without_derived(differences)]
    assert paths == ["data.trainBatchSize", "training.miniBatchPrompts"]


@pytest.mark.parametrize(
    "edit", [{"model.path": "/mnt/moved/model"}, {"data.trainFiles": ["/mnt/moved/train.jsonl"]}]
)
def test_moved_files_are_no_change(edit: dict[str, Any]) -> None:
    assert changes_after(edit) == []


def agent_values(**changes: Any) -> dict[str, Any]:
    agent = {"python": "app:answer"} | changes
    return resume_values(resolve(make_job({"rollout.agent": agent})).spec)


@pytest.mark.row("F2")
@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {"request": {"q": "{question}"}},
            ["rollout.agent.request.q", "rollout.agent.request.question"],
        ),
        ({"answer": "text"}, ["rollout.agent.answer"]),
        ({"python": "app:other"}, ["rollout.agent.python"]),
        ({"timeoutSeconds": 1, "processes": 2, "url": "http://a"}, []),
    ],
)
def test_checkpoint_depends_on_task_of_agent_only(
    changed: dict[str, Any], expected: list[str]
) -> None:
    differences = changes(agent_values(), agent_values(**changed))

    assert [change.path for change in differences] == expected
    assert incompatible(differences) == differences


def test_agent_turns_may_change_between_segments() -> None:
    differences = changes(agent_values(), agent_values(maxTurns=2))

    assert [str(change) for change in differences] == ["rollout.agent.maxTurns: 8 → 2"]
    assert incompatible(differences) == []


def test_job_without_agent_has_no_agent_in_resume_values() -> None:
    values = resume_values(resolve(make_job({})).spec)

    assert not [path for path in values if path.startswith("rollout.agent")]
