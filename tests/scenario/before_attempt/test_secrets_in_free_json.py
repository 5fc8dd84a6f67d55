"""Admission cannot look into free JSON: the operator refuses secrets there, before any pod."""

from typing import Any

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import status_to_json
from raggrpo_operator.core.lifecycle.actions import SubmitAttempt
from support.fakes.fake_runtime import Scenario, make_scenario, until_step

VALUE = "hf_" + "a" * 34
CHAT = "http://judge:8000/v1/chat/completions"
JUDGE = {"model": "grader", "prompt": "Grade {completion}"}


def asking(**endpoint: Any) -> dict[str, Any]:
    known = {"name": "kb", "url": "http://kb:8000/search", **endpoint}
    return {"retrieval.mode": "Prompt", "retrieval.endpoints": [known]}


def searching(body: Any) -> dict[str, Any]:
    return asking(protocol="Http", body={"q": "{question}", **body})


def judged(**judge: Any) -> dict[str, Any]:
    return {"reward.functions": [{"name": "Judge", "url": CHAT, "judge": JUDGE | judge}]}


PLACES = [
    (asking(extraBody={"api_key": "abc"}), "spec.retrieval.endpoints[0].extraBody.api_key"),
    (
        asking(extraBody={"deep": [{"er": {"tenant": VALUE}}]}),
        "spec.retrieval.endpoints[0].extraBody.deep[0].er.tenant",
    ),
    (searching({"auth": {"password": 12345}}), "spec.retrieval.endpoints[0].body.auth.password"),
    (searching({"note": VALUE}), "spec.retrieval.endpoints[0].body.note"),
    (judged(extraBody={"user": VALUE}), "spec.reward.functions[0].judge.extraBody.user"),
]


@pytest.mark.row("E11")
@pytest.mark.parametrize(("changes", "place"), PLACES, ids=[place for _, place in PLACES])
async def test_secret_in_free_json_is_rejected_before_preflight(
    changes: dict[str, Any], place: str
) -> None:
    scenario = make_scenario({}, changes)
    await scenario.until_quiet()

    assert scenario.runtime.performed == []
    assert scenario.status.phase is Phase.INVALID
    value, reason, message = scenario.condition(ConditionType.ACCEPTED)
    assert (value, reason) == ("False", "SecretInPlainText")
    assert message.startswith(f"{place}: ")
    assert message.endswith("→ remove it; use a header with secretKeyRef")
    assert not any(secret in shown(scenario) for secret in (VALUE, "abc", "12345"))


async def test_job_without_secret_is_accepted() -> None:
    scenario = make_scenario({}, asking(extraBody={"api_key": "abc"}))
    await scenario.until_quiet()

    reference = {"name": "kb", "key": "token"}
    headers = [{"name": "Authorization", "secretKeyRef": reference}]
    scenario.edit(asking(extraBody={"tenant": "acme"}, headers=headers))
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


async def test_secret_added_to_running_job_stops_next_attempt() -> None:
    scenario = make_scenario({}, asking(extraBody={"tenant": "acme"}))
    await until_step(scenario, 15)

    scenario.edit(asking(extraBody={"tenant": VALUE}))
    await scenario.until_quiet()

    assert scenario.condition(ConditionType.ACCEPTED)[1] == "SecretInPlainText"
    sent = [each for each in scenario.runtime.performed if isinstance(each, SubmitAttempt)]
    assert len(sent) == 1
    assert VALUE not in sent[0].config.to_json() + shown(scenario)


def shown(scenario: Scenario) -> str:
    return str(status_to_json(scenario.status, with_nulls=False))
