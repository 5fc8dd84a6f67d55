"""The operator rejects secrets in free-form JSON, which admission policies cannot inspect."""

from typing import Any

import pytest

from raggrpo_api.status.conditions import ConditionType, Phase
from raggrpo_api.status.job_status import sparse_status
from raggrpo_operator.core.lifecycle.actions import SubmitAttempt
from support.fakes.fake_runtime import Scenario, make_scenario, until_step

SECRET = "hf_" + "a" * 34
CHAT = "http://judge:8000/v1/chat/completions"
JUDGE = {"model": "grader", "prompt": "Grade {completion}"}


def with_endpoint(**endpoint: Any) -> dict[str, Any]:
    known = {"name": "kb", "url": "http://kb:8000/search", **endpoint}
    return {"retrieval.mode": "Prompt", "retrieval.endpoints": [known]}


def with_request_body(body: Any) -> dict[str, Any]:
    return with_endpoint(protocol="Http", body={"q": "{question}", **body})


def with_judge(**judge: Any) -> dict[str, Any]:
    return {"reward.functions": [{"name": "Judge", "url": CHAT, "judge": JUDGE | judge}]}


CASES = [
    (with_endpoint(extraBody={"api_key": "abc"}), "spec.retrieval.endpoints[0].extraBody.api_key"),
    (
        with_endpoint(extraBody={"deep": [{"er": {"tenant": SECRET}}]}),
        "spec.retrieval.endpoints[0].extraBody.deep[0].er.tenant",
    ),
    (
        with_request_body({"auth": {"password": 12345}}),
        "spec.retrieval.endpoints[0].body.auth.password",
    ),
    (with_request_body({"note": SECRET}), "spec.retrieval.endpoints[0].body.note"),
    (with_judge(extraBody={"user": SECRET}), "spec.reward.functions[0].judge.extraBody.user"),
]


@pytest.mark.row("E11")
@pytest.mark.parametrize(("changes", "path"), CASES, ids=[path for _, path in CASES])
async def test_secret_in_free_json_is_rejected_before_preflight(
    changes: dict[str, Any], path: str
) -> None:
    scenario = make_scenario({}, changes)
    await scenario.until_quiet()

    assert scenario.runtime.performed == []
    assert scenario.status.phase is Phase.INVALID
    value, reason, message = scenario.condition(ConditionType.ACCEPTED)
    assert (value, reason) == ("False", "SecretInPlainText")
    assert message.startswith(f"{path}: ")
    assert "→ remove the secret; use a header with secretKeyRef; if it is not" in message
    assert not any(secret in visible_text(scenario) for secret in (SECRET, "abc", "12345"))


async def test_short_api_key_and_secret_reference_are_accepted() -> None:
    scenario = make_scenario({}, with_endpoint(extraBody={"api_key": "abc"}))
    await scenario.until_quiet()

    reference = {"name": "kb", "key": "token"}
    headers = [{"name": "Authorization", "secretKeyRef": reference}]
    scenario.edit(with_endpoint(extraBody={"tenant": "acme"}, headers=headers))
    await scenario.until_quiet()

    assert scenario.status.phase is Phase.SUCCEEDED


async def test_secret_added_to_running_job_prevents_next_attempt() -> None:
    scenario = make_scenario({}, with_endpoint(extraBody={"tenant": "acme"}))
    await until_step(scenario, 15)

    scenario.edit(with_endpoint(extraBody={"tenant": SECRET}))
    await scenario.until_quiet()

    assert scenario.condition(ConditionType.ACCEPTED)[1] == "SecretInPlainText"
    sent = [each for each in scenario.runtime.performed if isinstance(each, SubmitAttempt)]
    assert len(sent) == 1
    assert SECRET not in sent[0].config.to_json() + visible_text(scenario)


def visible_text(scenario: Scenario) -> str:
    return str(sparse_status(scenario.status))
