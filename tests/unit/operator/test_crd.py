import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from openapi_schema_validator import OAS30Validator
from pydantic import BaseModel

from raggrpo_api import limits
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.job_status import JobStatus, sparse_status
from raggrpo_operator.core.rules import validations
from raggrpo_operator.core.spec.parse import parse_job
from raggrpo_operator.crd import CRD_FILE, crd_manifest, crd_yaml, job_schema, main
from support.builders.operator.jobs import REMOVED, SAMPLES, make_raw_job, make_sample

VALIDATOR = OAS30Validator(job_schema())
ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve"}


def parts(schema: dict[str, Any], place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    yield place, schema
    for name, below in schema.get("properties", {}).items():
        yield from parts(below, f"{place}.{name}".removeprefix("."))
    if "items" in schema:
        yield from parts(schema["items"], f"{place}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from parts(schema["additionalProperties"], f"{place}.*")


SCHEMA_PARTS = dict(parts(job_schema()))
METHODS = {"all", "contains", "exists", "exists_one", "lowerAscii", "map", "matches", "split"}
METHODS |= {"startsWith"}
"""CEL functions that a rule calls on a field."""


@pytest.mark.row("B1")
def test_committed_crd_is_up_to_date() -> None:
    assert CRD_FILE.read_text() == crd_yaml(), "run python -m raggrpo_operator.crd"
    assert yaml.safe_load(CRD_FILE.read_text()) == crd_manifest()


def test_crd_check_fails_on_edited_file(tmp_path: Path) -> None:
    edited = tmp_path / "crd.yaml"
    main(["--output", str(edited)])
    main(["--check", "--output", str(edited)])
    edited.write_text(edited.read_text().replace("Fast", "Slow"))

    with pytest.raises(SystemExit, match="out of date"):
        main(["--check", "--output", str(edited)])


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_sample_jobs_pass_models_and_schema(path: Path) -> None:
    job = make_sample(path)
    VALIDATOR.validate(yaml.safe_load(path.read_text()))
    VALIDATOR.validate(job.manifest())


def test_status_passes_schema() -> None:
    status = JobStatus(attempts=[AttemptRecord(number=1)])
    document = make_sample(SAMPLES[0]).manifest()
    VALIDATOR.validate(document | {"status": sparse_status(status)})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec", REMOVED),
        ("spec.model", REMOVED),
        ("spec.model.path", "relative"),
        ("spec.data.trainFiles", ["/x"] * 65),
        ("spec.data.trainFiles", ["relative"]),
        ("spec.data.maxSamples", "10"),
        ("spec.data.trainBatchSize", 0),
        ("spec.rollout.n", 2.5),
        ("spec.rollout.n", 300),
        ("spec.rollout.topP", 0.0),
        ("spec.rollout.temperature", "hot"),
        ("spec.suspend", "yes"),
        ("spec.preset", "Quick"),
        ("spec.resources.memory", "64 GB"),
        ("spec.volumes", [{"name": "w", "claimName": "w"}]),
        ("spec.retrieval.endpoints", [ENDPOINT | {"url": "http://me:pw@kb/x"}]),
        ("spec.retrieval.endpoints", [ENDPOINT | {"role": "Oracle"}]),
        ("spec.retrieval.endpoints", [ENDPOINT] * 9),
        ("spec.scheduling.tolerations", [{"operator": "Maybe"}]),
    ],
)
def test_models_and_schema_reject_same_values(place: str, value: Any) -> None:
    raw = make_raw_job({place: value})
    assert not isinstance(parse_job(raw), RagGrpoJob)
    assert not VALIDATOR.is_valid(raw)


FREE = "x-kubernetes-preserve-unknown-fields"
"""Marks free JSON, which the operator validates because the API server cannot."""


INT_OR_STRING = "x-kubernetes-int-or-string"


def test_schema_is_structural() -> None:
    for place, schema in SCHEMA_PARTS.items():
        assert "type" in schema or schema.get(FREE) or schema.get(INT_OR_STRING), place
        forbidden = {"$ref", "$defs", "anyOf", "oneOf", "allOf", "default", "title", "const"}
        assert not forbidden & schema.keys(), place
        assert schema.get("additionalProperties") is not False, place


def test_crd_does_not_contain_defaults_or_references() -> None:
    assert not re.search(r"^\s*(default|\$ref|title):", crd_yaml(), re.MULTILINE)


def test_spec_values_are_bounded() -> None:
    for place, schema in SCHEMA_PARTS.items():
        if not place.startswith("spec"):
            continue
        match schema.get("type"):
            case "string":
                assert "enum" in schema or "maxLength" in schema, place
            case "integer" | "number":
                assert {"minimum", "maximum"} <= schema.keys(), place
            case "array":
                assert "maxItems" in schema, place
            case "object":
                assert "properties" in schema or "maxProperties" in schema, place


KEYS_OF_MAPS = {
    "spec.retrieval.endpoints[].extraBody": 64,
    "spec.reward.functions[].judge.extraBody": 64,
    "spec.scheduling.nodeSelector": 253,
}
MAX_NUMBER = 24
"""Characters of the longest number that the API server writes."""


def bytes_around_texts(place: str) -> int:
    """Return the maximum JSON size of a part of the schema in bytes, without texts."""
    schema = SCHEMA_PARTS[place]
    if "enum" in schema:
        return max(map(len, schema["enum"])) + 2
    match schema.get("type"):
        case "array":
            return 2 + schema["maxItems"] * (1 + bytes_around_texts(f"{place}[]"))
        case "object" if "properties" in schema:
            fields = schema["properties"]
            return 2 + sum(len(name) + 4 + bytes_around_texts(f"{place}.{name}") for name in fields)
        case "object":
            entry = KEYS_OF_MAPS[place] + 4 + bytes_around_texts(f"{place}.*")
            return 2 + schema["maxProperties"] * entry
        case kind:
            return {"string": 2, "boolean": 5}.get(kind, MAX_NUMBER)


def test_largest_spec_fits_into_160_kib() -> None:
    largest = limits.MAX_SPEC_BYTES + bytes_around_texts("spec")
    assert largest < 160 * 1024, largest


def test_spec_fields_are_described() -> None:
    undescribed = [
        place
        for place, schema in SCHEMA_PARTS.items()
        if place.startswith("spec.") and not place.endswith(("[]", "*"))
        if "description" not in schema
    ]

    assert undescribed == []


@pytest.mark.parametrize(
    ("place", "sentence"),
    [
        ("spec.recovery.maxRestarts", "Default: 10."),
        ("spec.training.learningRate", "Default: 1e-06."),
        ("spec.preset", "Default: Fast."),
        ("spec.validation.beforeTraining", "Default: false."),
        ("spec.data.columns.prompt", "Default: prompt."),
        ("spec.data.trainBatchSize", "Default: from preset."),
        ("spec.resources.cpu", "empty: computed."),
    ],
)
def test_crd_descriptions_end_with_default_value(place: str, sentence: str) -> None:
    assert SCHEMA_PARTS[place]["description"].endswith(sentence)


def test_lists_with_keys_have_list_type_map() -> None:
    keys = {
        place: schema["x-kubernetes-list-map-keys"]
        for place, schema in SCHEMA_PARTS.items()
        if schema.get("x-kubernetes-list-type") == "map"
    }

    assert keys == {
        "status.conditions": ["type"],
        "spec.retrieval.endpoints": ["name"],
        "spec.volumes": ["name"],
        "spec.rollout.agent.container.env": ["name"],
        "spec.env": ["name"],
    }
    for place, (key,) in keys.items():
        assert key in SCHEMA_PARTS[f"{place}[]"]["required"]


def test_cel_field_paths_exist() -> None:
    for place, entries in validations().items():
        assert SCHEMA_PARTS[place]["x-kubernetes-validations"] == entries
        for entry in entries:
            assert entry.keys() & {"message", "messageExpression"}
            target = f"{place}{entry.get('fieldPath', '')}".removeprefix(".")
            assert target in SCHEMA_PARTS, target


def test_cel_rules_guard_optional_fields() -> None:
    conditions = [(place, entry["rule"]) for place, each in validations().items() for entry in each]
    clauses = [
        (place, clause)
        for place, condition in conditions  # frozen fields are compared one by one, each guarded
        for clause in re.split(r" && (?=\(self\.\?spec)", condition)
    ]
    assert len(clauses) > len(conditions) + 40
    for place, clause in clauses:
        for reference in set(re.findall(r"self((?:\.[a-zA-Z]+)+)", clause)):
            names = reference.strip(".").split(".")
            names = names[:-1] if names[-1] in METHODS else names
            for end in range(1, len(names) + 1):
                parent = ".".join([*filter(None, [place]), *names[: end - 1]])
                required = SCHEMA_PARTS[parent].get("required", [])
                inside = r"\.\?".join(names[:end])  # a value in it guards it as well
                guard = rf"self\.\?{inside}(\.\?\w+)*\.hasValue\(\)"
                known = names[end - 1] in required or names[0] == "metadata"
                guarded = f"has(self.{'.'.join(names[:end])})" in clause
                guarded = guarded or re.search(guard, clause) is not None
                assert known or guarded, (reference, clause)


@pytest.mark.row("A9")
def test_printer_columns_and_selectable_fields_exist() -> None:
    version = crd_manifest()["spec"]["versions"][0]
    paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]]
    paths += [field["jsonPath"] for field in version["selectableFields"]]

    for path in paths:
        place = re.sub(r"\[\?.*?\]", "[]", path).removeprefix(".")
        assert place in SCHEMA_PARTS or place.startswith("metadata."), path


def test_crd_names_and_subresources_are_as_documented() -> None:
    manifest = crd_manifest()
    assert manifest["metadata"]["name"] == "raggrpojobs.raggrpo.io"
    assert manifest["spec"]["names"]["shortNames"] == ["rgj"]
    assert manifest["spec"]["names"]["categories"] == ["all", "ml"]
    assert manifest["spec"]["versions"][0]["subresources"] == {"status": {}}


def test_full_sample_specifies_all_fields() -> None:
    full, *agents = (
        make_sample(next(path for path in SAMPLES if path.stem == stem)).spec
        for stem in ("full", "agent", "agent-service", "agent-container")
    )
    given: set[str] = set()
    known: set[str] = set()

    def walk(model: BaseModel, place: str) -> None:
        for name, field in type(model).model_fields.items():
            here = f"{place}.{field.alias}"
            known.add(here)
            if name not in model.model_fields_set:
                continue
            given.add(here)
            value = getattr(model, name)
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, BaseModel):
                    walk(item, here)

    walk(full, "spec")
    for agent in agents:  # an agent excludes the retrieval modes of the full sample
        walk(agent, "spec")

    assert isinstance(full, JobSpec)
    assert known - given == set()


def test_crd_generator_runs_as_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "raggrpo_operator.crd", "--check"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


COUNTED = re.compile(
    r"prompts?|threads|batches|rows|completions|gpus|sequences|passes|passages|calls|searches"
    r"|retries|calls|processes|restarts|checkpoints|pods|ranks|engines|failures|failed|steps?|tokens?|share"
)
NO_UNIT = {
    *(
        f"spec.algorithm.{n}"
        for n in ("clipRatioLow", "clipRatioHigh", "klCoefficient", "dualClip")
    ),
    "spec.algorithm.importanceCap",
    *(f"spec.training.{n}" for n in ("seed", "learningRate", "weightDecay", "maxGradNorm")),
    "spec.training.minLearningRateRatio",
    *(f"spec.training.lora.{n}" for n in ("rank", "alpha")),
    *(f"spec.rollout.{n}" for n in ("temperature", "topP", "false")),
    "spec.retrieval.endpoints[].scoreThreshold",
    "spec.rollout.agent.container.port",
    "spec.reward.functions[].weight",
    *(f"spec.reward.functions[].judge.{n}" for n in ("lowest", "highest", "temperature")),
    "spec.recovery.deadlines.stepTimeoutFactor",
}
"""Numbers without a unit: factors, ratios, grades, seeds."""


def unit_of(place: str) -> re.Pattern[str]:
    """Return the pattern of the unit that a number's description must contain."""
    ends = {"Seconds": "seconds|\\bs\\b", "Gib": "gib", "Tokens": "tokens?", "Length": "tokens"}
    ends |= {"Steps": "steps?", "SecondsAfterFinished": "seconds"}
    units = (text for end, text in ends.items() if place.endswith(end))
    return re.compile(next(units, COUNTED.pattern))


def test_descriptions_of_numbers_contain_unit() -> None:
    numbers = {
        place: part.get("description", "")
        for place, part in SCHEMA_PARTS.items()
        if place.startswith("spec.") and part.get("type") in ("integer", "number")
    }
    assert numbers.keys() > NO_UNIT
    silent = [
        place
        for place in sorted(numbers.keys() - NO_UNIT)
        if not unit_of(place).search(numbers[place].lower())
    ]
    assert silent == []
