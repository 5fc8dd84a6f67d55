"""Check AgentReady: real processes and HTTP, a scripted policy."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse, Response

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, CheckState
from raggrpo_trainer.gateway.tool_parsing import ParserUnavailable, ReplyParser
from raggrpo_trainer.preflight.agent import check
from raggrpo_trainer.preflight.agent.repetition import dates, difference
from raggrpo_trainer.preflight.agent.scripted_policy import example_value
from raggrpo_trainer.preflight.finding import Finding
from support.builders.trainer.gateway_models import HERMES, TRIMS, byte_tokenizer
from support.builders.trainer.preflight import make_fit_config
from support.builders.trainer.scripted_parser import JsonCallParser
from support.servers.faulty_server import Received, always, serving

APPLICATION = """
import datetime, json, os, time, urllib.request, uuid

TOOL = {"type": "function", "function": {"name": "search", "parameters": {
    "type": "object", "properties": {"query": {"type": "string"}}}}}

def post(path, body, key=None, url=None):
    headers = {"Authorization": "Bearer " + (key or os.environ["OPENAI_API_KEY"])}
    url = (url or os.environ["OPENAI_BASE_URL"]) + path
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))

def ask(*messages, model="any", **more):
    body = {"model": model, "messages": list(messages), **more}
    return post("/chat/completions", body)["choices"][0]["message"]

def user(text):
    return {"role": "user", "content": text}

def answer(request):
    return {"answer": ask(user(request["question"]))["content"], "passages": ["p"], "score": 1}

def converse(request):
    messages = [user(request["question"])]
    for text in ("why", "how"):
        messages += [ask(*messages), user(text)]
    return answer(request)

def forks(request):
    [ask(user(text)) for text in "abcd"]
    return answer(request)

def silent(request):
    return "made up"

def raises(request):
    raise KeyError("RETRIEVER_URL")

def raises_late(request):
    answer(request)
    raise KeyError("RETRIEVER_URL")

def hangs(request):
    time.sleep(60)

def endless(request):
    while True:
        ask(user("again"))

def dated(request):
    ask(user("Today is " + datetime.datetime.now().strftime("%d %B %Y") + "."))
    return "a"

def random(request):
    ask(user("Session " + uuid.uuid4().hex))
    return "a"

def searches(request):
    messages = [user(request["question"])]
    reply = ask(*messages, tools=[TOOL])
    while calls := reply.get("tool_calls"):
        query = json.loads(calls[0]["function"]["arguments"])["query"]
        result = {"role": "tool", "tool_call_id": calls[0]["id"], "content": "about " + query}
        messages += [reply, result]
        reply = ask(*messages, tools=[TOOL])
    return {"answer": reply["content"], "passages": [m["content"] for m in messages[2:]]}

def fails_after_call(request):
    if ask(user("q"), tools=[TOOL]).get("tool_calls"):
        raise ValueError("no such document")
    return "a"

def judged(request):
    ask(user("grade"), model="judge")
    return answer(request)
"""


def make_config(folder: Path, template: str = HERMES, **agent: Any) -> TrainerConfig:
    config = make_fit_config(folder, {"rollout.agent": {"python": "app:answer"} | agent})
    byte_tokenizer(template).save_pretrained(config.model.path)
    return config


async def checked(folder: Path, function: str = "answer", **values: Any) -> Finding:
    (folder / "app.py").write_text(APPLICATION)
    changes = {} if "type" in values else {"python": f"app:{function}"}
    config = make_config(folder, **changes | values)
    code = config.reward.code_from.model_copy(update={"path": str(folder)})
    reward = config.reward.model_copy(update={"code_from": code})
    config = config.model_copy(update={"reward": reward})
    agent = config.rollout.agent
    assert agent is not None
    finding = await check.check_agent(config, agent, {})
    assert finding.id is CheckId.AGENT_READY
    return finding


class ScriptedParserProcess:
    """Reads calls in Hermes's format, unless its name is that of another parser."""

    def __init__(self, model_path: str, tool_parser: str, reasoning_parser: str) -> None:
        self.tool_parser, self.reasoning_parser = tool_parser, reasoning_parser

    async def start(self) -> None:
        if self.tool_parser == "hermess":
            raise ParserUnavailable("KeyError: no such parser")

    def parse(self, reply: Any) -> Any:
        parser: ReplyParser = JsonCallParser()
        return parser.parse(reply if self.tool_parser == "hermes" else _without_tools(reply))

    async def close(self) -> None:
        pass


def _without_tools(reply: Any) -> Any:
    import dataclasses

    return dataclasses.replace(reply, tools=[])


@pytest.fixture(autouse=True)
def scripted_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "ParserProcess", ScriptedParserProcess)


@pytest.mark.row("F5")
async def test_application_that_answers_is_ready(tmp_path: Path) -> None:
    finding = await checked(tmp_path, "converse", passages="passages", reward="score")

    assert finding.state is CheckState.PASSED, finding.evidence
    assert "calls of the scripted policy: 3, rows: 2" in finding.evidence
    assert "a second run sent the same requests" in finding.evidence
    assert "a new user message continues its row, a tool result continues" in finding.evidence


@pytest.mark.row("F5")
@pytest.mark.parametrize(
    ("function", "changes", "parts"),
    [
        ("silent", {}, ["app:silent", "NoModelCall", "base URL"]),
        ("raises", {}, ["Raised", "RETRIEVER_URL", "correct the application"]),
        ("missing", {}, ["app", "has no function missing"]),
        ("hangs", {"timeoutSeconds": 0.5}, ["Timeout", "rollout.agent.timeoutSeconds"]),
        ("answer", {"answer": "text"}, ["MissingField", "set rollout.agent.answer"]),
        ("answer", {"reward": "grade"}, ["MissingField", "set rollout.agent.reward"]),
        ("answer", {"answer": "passages"}, ["WrongType", "return a text"]),
        ("answer", {"policyModels": ["p"]}, ["RequestRejected", "rollout.agent.policyModels"]),
        (
            "answer",
            {"toolParser": "hermess"},
            ["toolParser, reasoningParser (hermess)", "no such parser"],
        ),
        ("searches", {"toolParser": "granite"}, ["toolParser (granite) finds no call in '<tool_c"]),
    ],
)
async def test_application_that_cannot_train_fails_with_reason_and_field(
    function: str, changes: dict[str, Any], parts: list[str], tmp_path: Path
) -> None:
    finding = await checked(tmp_path, function, **changes)

    assert finding.state is CheckState.FAILED, finding.evidence
    assert [part for part in parts if part not in finding.evidence] == [], finding.evidence
    assert finding.exit_code is ExitCode.AGENT_ERROR


async def test_tools_without_known_parser_fail(tmp_path: Path) -> None:
    template = HERMES.replace("tool_call>", "call>")
    finding = await checked(tmp_path, "searches", template=template)

    assert finding.state is CheckState.FAILED
    assert "sends tools (search), but no parser" in finding.evidence
    assert "set rollout.agent.toolParser" in finding.evidence


async def test_scripted_policy_calls_a_tool(tmp_path: Path) -> None:
    finding = await checked(tmp_path, "searches", passages="passages")

    assert finding.state is CheckState.PASSED, finding.evidence
    assert "calls of the scripted policy: 2, rows: 1" in finding.evidence


@pytest.mark.parametrize(
    ("function", "changes", "part"),
    [
        ("random", {}, "two runs sent different requests (a random id: "),
        ("dated", {}, "the prompts contain the date of today ("),
        ("forks", {}, "4 of 4 later calls start a new row"),
        ("answer", {"passages": "documents"}, "no passages at documents (rollout.agent.passages)"),
        (
            "raises_late",
            {},
            "with a scripted reply, rollout.agent.python (app:raises_late)",
        ),
        ("endless", {}, "MaxTurns"),
        ("fails_after_call", {}, "after a call of tool search"),
    ],
)
async def test_application_that_may_not_do_what_is_intended_is_warned_about(
    function: str, changes: dict[str, Any], part: str, tmp_path: Path
) -> None:
    finding = await checked(tmp_path, function, **changes)

    assert finding.state is CheckState.WARNED, finding.evidence
    assert part in finding.evidence


async def test_template_that_changes_replies_is_noted(tmp_path: Path) -> None:
    changed = TRIMS.replace("{{ message.content | trim }}", "{{ message.content | upper }}")
    finding = await checked(tmp_path, template=changed)
    assert "a new user message starts a new row" in finding.evidence


async def test_forwarded_model_that_is_down_is_an_outage(tmp_path: Path) -> None:
    forward = [{"models": ["judge"], "url": "http://127.0.0.1:9/v1"}]
    finding = await checked(tmp_path, "judged", forward=forward)

    assert (finding.state, finding.exit_code) == (
        CheckState.FAILED, ExitCode.RETRIEVAL_UNAVAILABLE,
    )  # fmt: skip
    assert "endpoint http://127.0.0.1:9/v1 (rollout.agent.forward) is down" in finding.evidence


async def test_forwarded_model_is_called(tmp_path: Path) -> None:
    reply = {"choices": [{"message": {"content": "7"}}]}
    async with serving(always(reply)) as server:
        forward = [{"models": ["judge"], "url": server.url}]
        finding = await checked(tmp_path, "judged", forward=forward)

    assert finding.state is CheckState.PASSED, finding.evidence
    assert "forwarded calls of judge" in finding.evidence
    assert len(server.requests) == 2


def make_service(url: str, identify: str) -> dict[str, Any]:
    service = {"type": "Http", "python": "", "url": url, "identify": identify}
    if identify == "Request":
        service["request"] = {"url": "{baseUrl}", "key": "{apiKey}", "q": "{question}"}
    return service


@pytest.mark.parametrize("identify", ["Request", "Trace"])
async def test_service_that_is_down_is_an_outage(identify: str, tmp_path: Path) -> None:
    finding = await checked(tmp_path, **make_service("http://127.0.0.1:9/", identify))

    assert finding.exit_code is ExitCode.RETRIEVAL_UNAVAILABLE
    assert "rollout.agent.url (http://127.0.0.1:9/)" in finding.evidence


async def test_service_without_keys_in_requests_is_only_reached(tmp_path: Path) -> None:
    async with serving(always({}, 405)) as server:
        finding = await checked(tmp_path, **make_service(server.url, "Trace"))

    assert finding.state is CheckState.PASSED
    assert [each.method for each in server.requests] == ["GET"]


async def test_service_is_called_with_base_url_and_key(tmp_path: Path) -> None:
    import aiohttp

    async def respond(received: Received) -> Response:
        body = received.body
        messages = [{"role": "user", "content": body["q"]}]
        headers = {"Authorization": f"Bearer {body['key']}"}
        url, sent = body["url"] + "/chat/completions", {"model": "m", "messages": messages}
        async with (
            aiohttp.ClientSession() as http,
            http.post(url, json=sent, headers=headers) as response,
        ):
            reply = json.loads(await response.text())
        return JSONResponse({"answer": reply["choices"][0]["message"]["content"]})

    async with serving(respond) as server:
        finding = await checked(tmp_path, **make_service(server.url, "Request"))

    assert finding.state is CheckState.PASSED, finding.evidence
    assert len(server.requests) == 2


async def test_container_is_not_checked_because_it_starts_later(tmp_path: Path) -> None:
    container = {"type": "Container", "python": "", "identify": "Trace"}
    finding = await checked(tmp_path, **container, container={"image": "app:1"})
    assert finding.state is CheckState.NOT_EVALUATED
    assert "starts after preflight" in finding.evidence


@pytest.mark.parametrize(
    "service",
    [
        {"type": "Container", "identify": "Trace", "container": {"image": "app:1"}},
        {"type": "Http", "identify": "Trace", "url": "http://127.0.0.1:9/"},
    ],
    ids=["Container", "Http"],
)
async def test_unknown_parser_of_service_fails(service: dict[str, Any], tmp_path: Path) -> None:
    parsers = {"toolParser": "hermess", "reasoningParser": "qwen3"}
    finding = await checked(tmp_path, **service, **parsers)
    assert finding.state is CheckState.FAILED
    assert "toolParser, reasoningParser (hermess, qwen3): KeyError" in finding.evidence
    assert "set both to parsers of vLLM" in finding.evidence


async def test_check_requires_tokenizer_and_data(tmp_path: Path) -> None:
    config = make_config(tmp_path)
    agent = config.rollout.agent
    assert agent is not None
    (tmp_path / "train.jsonl").write_text("no json")
    finding = await check.check_agent(config, agent, {})
    assert (finding.state, finding.evidence) == (CheckState.NOT_EVALUATED, "requires readable data")
    (Path(config.model.path) / "tokenizer.json").write_text("no json")
    finding = await check.check_agent(config, agent, {})
    assert finding.evidence == "requires the tokenizer"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["a", "b"], ["b", "a"], ""),
        (["a"], ["a", "b"], "1 calls, then 2"),
        (["at 10:01:02"], ["at 10:01:03"], "a date or time: 'at 10:01:02', then 'at 10:01:03'"),
        (["id 9c1d7e42aa"], ["id 3b1d7e42aa"], "a random id: "),
        (["the red fox"], ["the red cat"], "'the red fox', then 'the red cat'"),
        (["ab"], ["a"], "'ab', then 'a'"),
    ],
)
def test_difference_names_what_differs(first: list[str], second: list[str], expected: str) -> None:
    assert difference(first, second).startswith(expected)
    assert bool(difference(first, second)) == bool(expected)


@pytest.mark.parametrize(
    ("text", "data", "expected"),
    [
        ("Today: 2026-03-05.", "", "2026-03-05"),
        ("March 5, 2026", "", "March 5, 2026"),
        ("05 Mar 2026", "", "05 Mar 2026"),
        ("born 2026-03-05", "born 2026-03-05", ""),
        ("2025-03-05, 12026-03-051", "", ""),
    ],
)
def test_date_of_today_is_found_in_prompts_but_not_data(
    text: str, data: str, expected: str
) -> None:
    import datetime

    assert next(dates([text], datetime.date(2026, 3, 5), data), "") == expected


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": "object", "properties": {"q": {"type": "string"}, "k": {"type": "integer"}}},
         {"q": "text", "k": 1}),
        ({"type": "array", "items": {"enum": ["a", "b"]}}, ["a"]),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"type": ["number", "null"], "minimum": 3}, 3),
        ({"default": 7}, 7),
        ({}, {}),
    ],
)  # fmt: skip
def test_example_value_follows_schema(schema: dict[str, Any], expected: Any) -> None:
    assert example_value(schema, "text") == expected
