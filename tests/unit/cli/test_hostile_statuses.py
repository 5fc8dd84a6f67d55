"""Statuses with extreme values, which `report`, `status`, `compare` and `top` must survive."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.limits import MAX_STATUS_TEXT
from raggrpo_api.status.job_status import JobStatus, status_from_json, status_to_json
from raggrpo_cli.kubectl import top
from raggrpo_cli.kubectl.job_table import job_table
from raggrpo_cli.kubectl.status import Output, job_list, job_manifest, job_text, serialized
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.text.comparison import Run, comparison
from raggrpo_operator.core.text.sizing_text import sizing_lines
from raggrpo_operator.kubernetes_runtime.process.job_series import JobSeries
from raggrpo_operator.reporting.report import render_report
from support.builders.operator.jobs import make_job

SCHEMA = TypeAdapter(JobStatus).json_schema(by_alias=True)
INTEGERS = [-(10**4299), -(2**63), -1, 0, 2**63 - 1, 10**400, 10**4299]
NUMBERS = [-1e308, -0.0, 5e-324, 1e308, 10**400]
TEXTS = [
    "",
    "\ud800",
    "nan",
    "-inf",
    "1e999",
    "</style><script>\x1b[2J\u202e\n",
    "x" * 200_000,
    "x" * 10**6,
]
TIMES = ["2000-01-01T00:00:00Z", "2199-12-31T23:59:59-23:59", "9999-12-31T23:59:59Z"]


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    return SCHEMA["$defs"][name] if name else schema


def extremes(schema: dict[str, Any]) -> Iterator[Any]:
    """Yield values of a schema in which one value is extreme."""
    schema = resolved(schema)
    for variant in schema.get("anyOf", []):
        yield from extremes(variant)
    if "enum" in schema:
        yield from [*schema["enum"], "nope"]
    elif schema.get("type") == "object":
        yield from objects(schema)
    elif schema.get("type") == "array":
        yield []
        yield from ([each] for each in extremes(schema["items"]))
        yield [first(schema["items"])] * 10_000
    else:
        yield from {
            "integer": INTEGERS,
            "number": NUMBERS,
            "string": [*TEXTS, *TIMES],
            "boolean": [True],
        }.get(schema.get("type", ""), [])


def objects(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    required = {name: first(schema["properties"][name]) for name in schema.get("required", [])}
    for name, values in schema.get("properties", {}).items():
        yield from ({**required, name: each} for each in extremes(values))
    if isinstance(values := schema.get("additionalProperties"), dict):
        yield from ({name: each} for name in TEXTS[:7] for each in extremes(values))
        yield {str(number): first(values) for number in range(10_000)}


def first(schema: dict[str, Any]) -> Any:
    """Return a valid value of a schema."""
    schema = resolved(schema)
    if "properties" in schema:
        return {name: first(schema["properties"][name]) for name in schema.get("required", [])}
    defaults = {"integer": 1, "number": 1.0, "string": "x", "array": [], "object": {}}
    return schema["enum"][0] if "enum" in schema else defaults[schema["type"]]


BASE = {"phase": "Starting", "sizing": {"pods": [{"role": "head"}]}, "attempt": 1}


def all_texts(job: RagGrpoJob) -> Iterator[str]:
    """Yield what all commands show of a job."""
    metadata = job.metadata.model_copy(update={"creation_timestamp": "2026-11-21T00:00:00Z"})
    job, status, now = job.model_copy(update={"metadata": metadata}), job.status, datetime.now(UTC)
    run = Run("a", "a", resolve(job, status.preflight.known_facts), status, [], [])
    yield job_text(job, with_sizing=True)
    yield "\n".join(sizing_lines(status.sizing, 100))
    yield job_list([job], now)
    yield job_table([job], top._cells, top.WIDTHS, all_namespaces=False)
    yield "\n".join(comparison(run, run))
    yield serialized(job_manifest(job), Output.JSON)
    yield render_report("a", status, [], [], run.resolved)
    JobSeries().update(("n", "a"), job)


@pytest.mark.parametrize("field", sorted(SCHEMA["properties"]))
def test_status_with_an_extreme_value_is_shown_or_rejected(field: str) -> None:
    for value in extremes(SCHEMA["properties"][field]):
        status = BASE | {field: value}
        try:
            stored = status_from_json(status)
        except ValidationError:
            continue
        assert len(json.dumps(status_to_json(stored))) < 8 * MAX_STATUS_TEXT
        text = "\n".join(all_texts(make_job({}).model_copy(update={"status": stored})))
        assert "<script>" not in text.partition("<!doctype html>")[2]


@pytest.mark.parametrize("value", INTEGERS)
def test_integers_of_a_status_have_64_bits(value: int) -> None:
    is_valid = abs(value) < 1 << 63
    with nullcontext() if is_valid else pytest.raises(ValidationError, match="64-bit"):
        status_from_json({"restarts": {"byCause": {"OutOfMemory": value}}})


def test_status_with_too_much_text_is_rejected_by_parser() -> None:
    attempts = [{"number": 1, "mitigation": "x" * MAX_STATUS_TEXT}]
    job = parse_job({**make_job({}).manifest(), "status": {"attempts": attempts}})

    assert not isinstance(job, RagGrpoJob)
    assert "it has more than 2,097,152 characters" in job[0].line()
