"""Invalid specs at `kubectl apply`, without an operator: schema and CEL report field and remedy."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import Severity
from support.builders.operator.jobs import REMOVED, SAMPLES, make_raw_job
from support.builders.operator.wrong_jobs import (
    AN_AGENT,
    AN_ENDPOINT,
    WRONG_AGENTS,
    WRONG_FORMS,
    WRONG_VALUES,
    make_volume,
    prompt_mode,
)
from support.kubernetes.admission import refusal
from tools.kind.api_server import ApiServer

SCHEMA_TEXTS: Mapping[str, Sequence[str]] = {
    "unknown field": ["unknown field", "spec.data.trainBatchsize"],
    "field of another block": ["unknown field", "spec.training.temperature"],
    "wrong type": ["spec.data.trainBatchSize", "must be of type integer"],
    "number out of range": ["spec.rollout.gpuMemoryUtilization", "less than or equal to 0.95"],
    "not a choice": ["spec.preset", '"Fastt"', 'supported values: "Fast"'],
    "wrong kind": ['no matches for kind "RayJob"', "raggrpo.io/v1alpha1"],
    "wrong apiVersion": ['no matches for kind "RagGrpoJob"', '"v1"'],
    "missing block": ["spec.model", "Required value"],
    "name too long": ["metadata.name: the name is not valid", "at most 44"],
    "relative path": ["spec.data.trainFiles[0]", "should match '^/"],
    "URL with credentials": ["endpoints[0].url", "should match"],
    "URL without scheme": ["endpoints[0].url", "should match '^(https?"],
}
"""Texts of kubectl for the rows of `WRONG_FORMS`."""

CONTAINER = {"type": "Container", "identify": "Trace"}
ADMITTED = {"namespace": "apps", "podSelector": "app=support"}
SERVICE = {"type": "Http", "url": "http://app/", "identify": "Trace"}
MORE_FORMS: Mapping[str, tuple[Mapping[str, Any], Sequence[str]]] = {
    "bare n": ({"spec.rollout": {"false": 4}},
        ["spec.rollout", 'write "n": 3', "algorithm.groupSize"]),
    "dots in the name": ({"metadata.name": "a.b"}, ["metadata.name", "lower-case letters"]),
    "utilization 0": ({"spec.rollout.gpuMemoryUtilization": 0},
        ["spec.rollout.gpuMemoryUtilization", "at least 0.05"]),
    "not a quantity": ({"spec.resources.memory": "64 GB"},
        ["spec.resources.memory", "should match"]),
    "name starting with a digit": ({"metadata.name": "7b"},
        ["metadata.name", "starting with a letter"]),
    "duplicate volume name": (
        {"spec.volumes": [make_volume("a", "/mnt/runs"), make_volume("a", "/mnt/data",
            claimName="b")]},
        ["spec.volumes[1]", "Duplicate value"]),
    "duplicate variable": ({"spec.env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
        ["spec.env[1]", "Duplicate value"]),
    "too many endpoints": (
        {"spec.retrieval.endpoints": [AN_ENDPOINT | {"name": f"e{i}"} for i in range(9)]},
        ["spec.retrieval.endpoints", "must have at most 8 items"]),
    "path with ..": ({"spec.checkpoint.path": "/mnt/runs/../../etc"},
        ["spec.checkpoint.path", "should match"]),
    "path with an empty component": ({"spec.model.path": "//etc"},
        ["spec.model.path", "should match"]),
    "path with a newline": ({"spec.data.trainFiles": ["/mnt/runs/a\nb"]},
        ["spec.data.trainFiles[0]", "should match"]),
    "path too long": ({"spec.checkpoint.path": "/mnt/runs/" + "a" * 480},
        ["spec.checkpoint.path", "480"]),
    "invalid host": (prompt_mode(url="http://[/"),
        ["endpoints[0].url", "should match"]),
    "host not in ASCII": (prompt_mode(url="http://\u2100/"),
        ["endpoints[0].url", "should match"]),
    "header with a line break": (prompt_mode(headers=[{"name": "X-A", "value": "a\r\nX-B: b"}]),
        ["headers[0].value", "should match"]),
    "queue not a label": ({"spec.scheduling": {"queueName": "a b"}},
        ["spec.scheduling.queueName", "should match"]),
    "node selector with an invalid key": ({"spec.scheduling": {"nodeSelector": {"a b": "c"}}},
        ["spec.scheduling.nodeSelector", "a label key"]),
    "node selector with an invalid value": ({"spec.scheduling": {"nodeSelector": {"zone": "-"}}},
        ["spec.scheduling.nodeSelector", "should match"]),
    **{
        f"agent with an invalid {field}: {client}": (
            {"spec.rollout.agent": SERVICE | {"allowFrom": ADMITTED | client}},
            [f"allowFrom.{field}", said])
        for field, client, said in (
            ("namespace", {"namespace": "A"}, "should match"),
            ("podSelector", {"podSelector": ""}, "should match"),
            ("podSelector", {"podSelector": "app"}, "should match"),
            ("podSelector", {"podSelector": "a b=c"}, "should match"),
            ("podSelector", {"podSelector": "a=-"}, "should match"),
            ("podSelector", {"podSelector": "a=b,"}, "should match"),
        )
    },
    **{
        f"container with an invalid {field}: {value!r:.16}": (
            {"spec.rollout.agent": CONTAINER | {"container": {"image": "app:1"} | {field: value}}},
            [f"spec.rollout.agent.container.{field}", said])
        for field, value, said in (
            ("image", "App:1", "should match"), ("image", "", "at least 1 chars long"),
            ("command", ["a"] * 33, "at most 32 items"),
            ("args", ["a" * 2049], "2048"), ("port", 80, "1024"),
            ("port", 65536, "65535"), ("path", "answer", "should match"),
            ("path", "/../a", "should match"), ("path", "/a?b", "should match"),
            ("healthPath", "/.", "should match"), ("replicas", 0, "greater than or equal to 1"),
            ("replicas", 65, "64"), ("cpu", "one", "should match"),
            ("memory", "1GB", "should match"),
            ("env", [{"name": "a-b"}], "should match"),
            ("env", [{"name": "A"}, {"name": "A"}], "Duplicate value"),
            ("egress", ["ftp://a"], "should match"), ("egress", ["http://a"] * 9, "at most 8"),
        )
    },
    "container without image": ({"spec.rollout.agent": CONTAINER | {"container": {}}},
        ["spec.rollout.agent.container.image", "Required value"]),
    "unknown type of agent": ({"spec.rollout.agent": CONTAINER | {"type": "Docker"}},
        ["spec.rollout.agent.type", "Container"]),
    "invalid image": ({"spec.image": "Registry/Trainer:1"}, ["spec.image", "should match"]),
    "invalid claim name": ({"spec.volumes": [make_volume("w", "/mnt/runs", claimName="A/b")]},
        ["spec.volumes[0].claimName", "should match"]),
    "invalid Secret key": (
        {"spec.env": [{"name": "A", "secretKeyRef": {"name": "s", "key": "..a"}}]},
        ["spec.env[0].secretKeyRef.key", "should match"]),
    "milli-bytes": ({"spec.resources.memory": "5m"},
        ["spec.resources.memory", "should match"]),
    "too many files": ({"spec.data.trainFiles": ["/a"] * 65},
        ["spec.data.trainFiles", "at most 64 items"]),
    "no spec": ({"spec": REMOVED}, ["spec", "Required value"]),

}  # fmt: skip
"""Violations of the schema and of rules that only the API server evaluates."""


def is_rejected_by_operator(raw: Mapping[str, Any]) -> bool:
    """Return whether the operator would reject the job if the API server accepted it."""
    job = parse_job(raw)
    if not isinstance(job, RagGrpoJob):
        return True
    return any(each.severity is Severity.ERROR for each in violations(job, resolve(job)))


def test_schema_texts_exist_for_all_wrong_forms() -> None:
    assert set(WRONG_FORMS) == set(SCHEMA_TEXTS)


@pytest.mark.row("A1", "B2")
@pytest.mark.parametrize("row", WRONG_FORMS | WRONG_VALUES)
def test_kubectl_apply_reports_field_and_remedy_for_invalid_spec(
    row: str, api_server: ApiServer
) -> None:
    changes, texts = (WRONG_FORMS | WRONG_VALUES)[row]
    raw = make_raw_job(changes)
    result = api_server.kubectl(
        "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(raw), check=False
    )

    assert result.returncode == 1, result.stdout
    missing = [text for text in SCHEMA_TEXTS.get(row, texts) if text not in result.stderr]
    assert missing == [], result.stderr
    assert is_rejected_by_operator(raw)


@pytest.mark.parametrize("row", MORE_FORMS)
def test_api_server_reports_field_and_remedy_for_invalid_spec(row: str, http: httpx.Client) -> None:
    changes, texts = MORE_FORMS[row]
    raw = make_raw_job(changes)
    message = refusal(http, "default", raw)

    assert [text for text in texts if text not in message] == [], message
    assert is_rejected_by_operator(raw)


@pytest.mark.parametrize(("field", "values", "text", "_"), WRONG_AGENTS)
def test_api_server_reports_field_of_invalid_agent(
    field: str, values: Mapping[str, Any], text: str, _: str, http: httpx.Client
) -> None:
    raw = make_raw_job({"spec.rollout.agent": AN_AGENT | values})
    message = refusal(http, "default", raw)

    if text:
        assert f"spec.rollout.agent.{field}" in message, message
        assert text in message, message
    else:
        assert message == "", "the API server rejects it, too; add its text to the row"
    assert is_rejected_by_operator(raw)


def test_error_for_unquoted_n_key_suggests_quotes(api_server: ApiServer) -> None:
    text = yaml.safe_dump(make_raw_job({"spec.rollout": {"n": 4}}))
    assert "\n    n: 4\n" in text
    bare = api_server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=text, check=False)
    quoted = text.replace(" n: 4", ' "n": 4')
    fixed = api_server.kubectl("apply", "--dry-run=server", "-f", "-", stdin=quoted, check=False)

    assert 'write "n": 3' in bare.stderr
    assert fixed.stderr == ""


def test_kubectl_apply_reports_all_violations(api_server: ApiServer) -> None:
    raw = make_raw_job({"spec.rollout.temperature": 0, "spec.checkpoint.keepLast": 1})
    result = api_server.kubectl(
        "apply", "--dry-run=server", "-f", "-", stdin=json.dumps(raw), check=False
    )

    assert "spec.rollout.temperature" in result.stderr
    assert "spec.checkpoint.keepLast" in result.stderr


ODD: Sequence[Any] = (
    None, True, 0, 1, -1, 2.5, 10**12, "", "x", "a b", "/x", "1Gi", "Fast", "http://h/x", [],
    ["/x"], [1], {}, {"x": 1}, {"name": "a"}, [{"name": "a"}],
)  # fmt: skip


def places(value: Any, place: str) -> list[str]:
    """Return the places of all fields below a mapping, without list items."""
    if not isinstance(value, Mapping):
        return [place]
    return [place, *(below for key in value for below in places(value[key], f"{place}.{key}"))]


SPECS = {p.stem: yaml.safe_load(p.read_text())["spec"] for p in SAMPLES}
AGENTS = [SPECS[name]["rollout"]["agent"] for name in ("agent", "agent-container", "agent-service")]
PLACES = [
    *(({}, place) for place in places(SPECS["full"], "spec")),
    *(
        ({"spec.rollout.agent": agent}, place)
        for agent in AGENTS
        for place in places(agent, "spec.rollout.agent")
    ),
]
"""(changes to a valid job, place of a field of the changed job)."""


@settings(max_examples=800, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.sampled_from(PLACES), value=st.sampled_from(ODD))
@example(changes=({}, "spec.rollout.gpuMemoryUtilization"), value=0)
@example(changes=({}, "spec.model.source"), value="")
def test_api_server_and_operator_agree_on_malformed_values(
    changes: tuple[Mapping[str, Any], str], value: Any, http: httpx.Client
) -> None:
    valid, place = changes
    raw = make_raw_job({**valid, place: value} if place != "spec" else {"spec": value})
    is_wrong = not isinstance(parse_job(raw), RagGrpoJob)
    rejection = refusal(http, "default", raw)
    assert bool(rejection) or not is_wrong, parse_job(raw)
    assert not rejection or is_rejected_by_operator(raw), rejection


@pytest.mark.parametrize("agent", AGENTS, ids=lambda agent: agent["type"])
def test_agents_of_malformed_values_are_valid(agent: Mapping[str, Any], http: httpx.Client) -> None:
    assert refusal(http, "default", make_raw_job({"spec.rollout.agent": agent})) == ""
