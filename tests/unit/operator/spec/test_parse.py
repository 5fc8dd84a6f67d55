from collections.abc import Iterator, Mapping
from datetime import date
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raggrpo_api import names
from raggrpo_api.fields.base import ABSOLUTE_PATH, OPTIONAL_PATH
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.agent import AgentSpec, ForwardedModels
from raggrpo_operator.core.spec.foreign_names import (
    GENERIC_NAMES,
    OTHER_FIELDS,
    VERL_FIELDS,
    hint_for,
)
from raggrpo_operator.core.spec.parse import parse_job, parse_update
from raggrpo_operator.core.spec.pattern_remedies import remedy_for
from raggrpo_operator.core.spec.violation import Reason, Severity, Violation
from raggrpo_operator.core.spec.yaml_text import read_yaml
from raggrpo_operator.crd import job_schema
from support.builders.operator.jobs import REMOVED, make_raw_job
from support.builders.operator.wrong_jobs import AN_AGENT, WRONG_AGENTS
from support.operator.reconciler_environment import make_running_status

ENDPOINT = {"name": "kb", "url": "http://kb:8000/retrieve"}

WRONG: list[tuple[str, Any, str, Reason, str]] = [
    # place, value, place of the violation, reason, words of the remedy
    ("apiVersion", "raggrpo.io/v1", "apiVersion", Reason.WRONG_KIND, "v1alpha1"),
    ("apiVersion", REMOVED, "apiVersion", Reason.MISSING_FIELD, "raggrpo.io/v1alpha1"),
    ("kind", "RayJob", "kind", Reason.WRONG_KIND, "RagGrpoJob"),
    ("metadata.name", REMOVED, "metadata.name", Reason.MISSING_FIELD, "to metadata"),
    ("metadata.name", "Sales_RAG", "metadata.name", Reason.INVALID_NAME, "lower-case"),
    ("metadata.name", "a" * 45, "metadata.name", Reason.INVALID_NAME, "44"),
    ("spec", REMOVED, "spec", Reason.MISSING_FIELD, "top level"),
    ("spec", [1], "spec", Reason.WRONG_TYPE, "specify"),
    ("spec.model", REMOVED, "spec.model", Reason.MISSING_FIELD, "to spec"),
    ("spec.volumes", [{"name": "w", "mountPath": None}], "spec.volumes[0].mountPath",
     Reason.MISSING_FIELD, "to spec.volumes[0]"),
    ("spec.model.path", "Qwen/Qwen2.5-0.5B", "spec.model.path", Reason.RELATIVE_PATH,
     "spec.model.source: hf://Qwen/Qwen2.5-0.5B"),
    ("spec.model.path", "models/m", "spec.model.path", Reason.RELATIVE_PATH, "absolute"),
    ("spec.model.path", "hf://org/name@v1", "spec.model.path", Reason.RELATIVE_PATH,
     "spec.model.source: hf://org/name@v1"),
    ("spec.model.source", "hf://datasets/org/name", "spec.model.source", Reason.OUT_OF_RANGE,
     "write hf://org/name@revision"),
    ("spec.model.source", "https://host/model.safetensors", "spec.model.source",
     Reason.OUT_OF_RANGE, "s3://bucket/folder"),
    ("spec.model.path", "s3://key:word@bucket/a", "spec.model.path", Reason.CREDENTIALS_IN_URL,
     "remove the credentials"),
    ("spec.data.trainFiles", ["openai/gsm8k"], "spec.data.trainFiles[0]", Reason.RELATIVE_PATH,
     "spec.data.sources: [hf://datasets/openai/gsm8k]"),
    ("spec.data.validationFiles", ["s3://bucket/a.parquet"], "spec.data.validationFiles[0]",
     Reason.RELATIVE_PATH, "spec.data.validationSources: [s3://bucket/a.parquet]"),
    ("spec.rollout.agent", {"policyModels": ["gpt 4"]}, "spec.rollout.agent.policyModels[0]",
     Reason.INVALID_FORMAT, "ASCII without spaces"),
    ("spec.data.trainFiles", ["/x"] * 65, "spec.data.trainFiles", Reason.OUT_OF_RANGE, "another"),
    ("spec.data.trainFiles", "/x", "spec.data.trainFiles", Reason.WRONG_TYPE, "array"),
    ("spec.data.trainFiles", ["./x"], "spec.data.trainFiles[0]", Reason.RELATIVE_PATH, "absolute"),
    ("spec.data.train_files", ["/x"], "spec.data.train_files", Reason.UNKNOWN_FIELD, "trainFiles"),
    ("spec.data.max_samples", 5, "spec.data.max_samples", Reason.UNKNOWN_FIELD, "maxSamples"),
    ("spec.data.batchSize", 4, "spec.data.batchSize", Reason.UNKNOWN_FIELD, "trainBatchSize"),
    ("spec.data.maxSamples", "10", "spec.data.maxSamples", Reason.WRONG_TYPE, "integer"),
    ("spec.data.trainBatchSize", 0, "spec.data.trainBatchSize", Reason.OUT_OF_RANGE, "another"),
    ("spec.trainBatchSize", 64, "spec.trainBatchSize", Reason.UNKNOWN_FIELD, "data.trainBatchSize"),
    ("spec.rollout.groupSize", 3, "spec.rollout.groupSize", Reason.UNKNOWN_FIELD, "algorithm."),
    ("spec.rollout.temperature", "hot", "spec.rollout.temperature", Reason.WRONG_TYPE, "number"),
    ("spec.rollout.temperature", 1e9, "spec.rollout.temperature", Reason.OUT_OF_RANGE, "another"),
    ("spec.rollout.n", 2.5, "spec.rollout.n", Reason.WRONG_TYPE, "integer"),
    ("spec.rollout.n", True, "spec.rollout.n", Reason.WRONG_TYPE, "integer"),
    ("spec.suspend", "yes", "spec.suspend", Reason.WRONG_TYPE, "boolean"),
    ("spec.preset", "fasst", "spec.preset", Reason.NOT_A_CHOICE, "did you mean Fast?"),
    ("spec.training.precision", "fp16", "spec.training.precision", Reason.NOT_A_CHOICE, "FP16"),
    ("spec.nodes", 2, "spec.nodes", Reason.UNKNOWN_FIELD, "spec.resources.nodes"),
    ("spec.zzz", 1, "spec.zzz", Reason.UNKNOWN_FIELD, "known fields: preset"),
    ("spec.resources.memory", "64 GB", "spec.resources.memory", Reason.INVALID_FORMAT, "64Gi"),
    ("spec.checkpoint.backup.url", "ftp://x", "spec.checkpoint.backup.url", Reason.INVALID_FORMAT,
     "s3://"),
    ("spec.monitoring.logDir", "logs", "spec.monitoring.logDir", Reason.RELATIVE_PATH, "absolute"),
    ("spec.volumes", [{"name": "w", "claimName": "w"}], "spec.volumes[0].mountPath",
     Reason.MISSING_FIELD, "to spec.volumes[0]"),
    ("spec.retrieval.endpoints", [ENDPOINT | {"url": "http://me:pw@kb/x"}],
     "spec.retrieval.endpoints[0].url", Reason.CREDENTIALS_IN_URL, "secretKeyRef"),
    ("spec.retrieval.endpoints", [ENDPOINT | {"url": "kb:8000"}],
     "spec.retrieval.endpoints[0].url", Reason.INVALID_FORMAT, "http://host"),
    ("spec.retrieval.endpoints", [ENDPOINT | {"topk": 3}],
     "spec.retrieval.endpoints[0].topk", Reason.UNKNOWN_FIELD, "topK"),
    ("spec.retrieval.endpoints", [ENDPOINT | {"managed": {"corpus": "c.jsonl"}}],
     "spec.retrieval.endpoints[0].managed.corpus", Reason.RELATIVE_PATH, "absolute"),
    ("spec.checkpoint.path", "/mnt/../etc", "spec.checkpoint.path", Reason.INVALID_FORMAT,
     "without"),
    ("spec.checkpoint.path", "/mnt/runs/" + "a" * 900, "spec.checkpoint.path", Reason.OUT_OF_RANGE,
     "at most 480 characters"),
    ("spec.image", "A:b", "spec.image", Reason.INVALID_FORMAT, "registry.example.com"),
    ("spec.scheduling", {"queueName": "a b"}, "spec.scheduling.queueName", Reason.INVALID_FORMAT,
     "at most 63"),
    ("spec.scheduling", {"nodeSelector": {"a b\n": "c"}}, r"spec.scheduling.nodeSelector.'a b\n'",
     Reason.INVALID_FORMAT, "label key"),
    ("spec.retrieval.endpoints", [ENDPOINT | {"extraBody": {"k" * 70: "v"}}],
     f"spec.retrieval.endpoints[0].extraBody.'{'k' * 56}...", Reason.OUT_OF_RANGE, "at most 64"),
]  # fmt: skip


def violations_of(raw: object) -> tuple[Violation, ...]:
    result = parse_job(raw)
    assert not isinstance(result, RagGrpoJob)
    return result


@pytest.mark.parametrize(("place", "value", "path", "reason", "remedy"), WRONG)
def test_invalid_field_has_path_reason_and_remedy(
    place: str, value: Any, path: str, reason: Reason, remedy: str
) -> None:
    violations = violations_of(make_raw_job({place: value}))
    assert [(violation.path, violation.reason) for violation in violations] == [(path, reason)]
    assert remedy in violations[0].remedy
    assert violations[0].severity is Severity.ERROR
    assert "\n" not in violations[0].line()


@pytest.mark.parametrize(("field", "values", "_", "remedy"), WRONG_AGENTS)
def test_invalid_field_of_agent_has_path_and_remedy(
    field: str, values: Mapping[str, Any], _: str, remedy: str
) -> None:
    [violation] = violations_of(make_raw_job({"spec.rollout.agent": AN_AGENT | values}))
    assert violation.path == f"spec.rollout.agent.{field}"
    assert remedy in violation.remedy


def test_invalid_agents_cover_all_fields() -> None:
    wrong = [field.replace("[0]", "") for field, *_ in WRONG_AGENTS]
    blocks = {AgentSpec: "", ForwardedModels: "forward."}
    fields = [
        f"{block}{field.alias}"
        for model, block in blocks.items()
        for field in model.model_fields.values()
    ]
    missing = [
        each for each in fields if not any(f"{field}.".startswith(f"{each}.") for field in wrong)
    ]
    assert missing == ["allowFrom", "container"]  # blocks of other types


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("spec.env", [{"name": "A", "value": "s3cr3t" * 400}]),
        ("spec.env", [{"name": "A", "value": "s3cr3t\x00"}]),
        ("spec.env", [{"name": "A", "value": {"s3cr3t": 1}}]),
        ("spec.retrieval.endpoints", [ENDPOINT | {"url": "http://kb:8000/\u4e2d?token=s3cr3t"}]),
        ("spec.retrieval.endpoints", [ENDPOINT | {"url": "http://me:s3cr3t@kb/"}]),
        ("spec.retrieval.endpoints", [ENDPOINT | {"url": "http://kb/" + "s3cr3t" * 400}]),
        ("spec.retrieval.endpoints", [ENDPOINT | {"extraBody": {"k": "s3cr3t" * 4000}}]),
        ("spec.reward.functions", [{"name": "Http", "url": "s3cr3t"}]),
    ],
)
def test_possible_secrets_are_not_quoted_in_violations(place: str, value: Any) -> None:
    assert [
        v.line() for v in violations_of(make_raw_job({place: value})) if "s3cr3t" in v.line()
    ] == []


def patterns(schema: dict[str, Any], field: str = "") -> Iterator[tuple[str, str]]:
    """Yield (pattern, name of the field) of every text in a part of the schema."""
    if "pattern" in schema:
        yield schema["pattern"], field
    for name, part in schema.get("properties", {}).items():
        yield from patterns(part, name)
    for part in filter(None, map(schema.get, ("items", "additionalProperties"))):
        yield from patterns(part, field)


@pytest.mark.parametrize("depth", [100, 9_000])
def test_deeply_nested_job_is_rejected_with_path(depth: int) -> None:
    deep: Any = "x"
    for _ in range(depth):
        deep = {"a": [deep]}
    raw = make_raw_job({"spec.retrieval.endpoints": [ENDPOINT]})
    raw["spec"]["retrieval"]["endpoints"][0] = ENDPOINT | {"extraBody": deep}

    [violation] = violations_of(raw)

    assert violation.path == "spec.retrieval.endpoints[0].extraBody"
    assert violation.reason is Reason.SPEC_TOO_LARGE


@pytest.mark.parametrize(("levels", "is_refused"), [(58, False), (59, True)])
def test_job_with_up_to_64_levels_is_accepted(levels: int, is_refused: bool) -> None:
    deep: Any = "x"
    for _ in range(levels):
        deep = [deep]
    endpoint = ENDPOINT | {"extraBody": deep}  # itself on the sixth level

    violations = violations_of(make_raw_job({"spec.retrieval.endpoints": [endpoint]}))

    message = "the value is nested more than 64 levels deep"
    too_large = [each for each in violations if each.message == message]
    assert [each.path for each in too_large] == ["spec.retrieval.endpoints[0].extraBody"][
        : int(is_refused)
    ]


@pytest.mark.parametrize(("values", "is_refused"), [(99_998, False), (99_999, True)])
def test_job_with_up_to_100_000_values_is_accepted(values: int, is_refused: bool) -> None:
    violations = violations_of({"spec": [0] * values})  # and two more: itself and the list
    message = "the value contains more than 100000 values"
    assert (message in {each.message for each in violations}) is is_refused


@pytest.mark.parametrize(
    ("letters", "shown"), [(58, f"'{'x' * 58}'"), (59, f"'{'x' * 56}...")], ids=["whole", "cut"]
)
def test_long_value_is_truncated_in_violation_message(letters: int, shown: str) -> None:
    [violation] = violations_of(make_raw_job({"spec.preset": "x" * letters}))
    assert violation.message.startswith(f"{shown} is not one of Fast")


def test_violations_of_nested_body_do_not_reveal_secrets() -> None:
    body: Any = {"api_key": "hunter2", "q": "{question}"}
    for _ in range(14):
        body = {"q": body, "api_key": "hunter2"}
    endpoint = {"name": "kb", "protocol": "Http", "url": "http://h/x", "body": body}

    violations = violations_of(make_raw_job({"spec.retrieval.endpoints": [endpoint]}))

    assert violations
    assert "hunter2" not in str(violations)


def test_pattern_mismatch_has_remedy_in_plain_words() -> None:
    paths = {ABSOLUTE_PATH, OPTIONAL_PATH}  # have specific remedies
    all_patterns = set(patterns(job_schema()["properties"]["spec"]))
    assert len(all_patterns) > 20
    unexplained = [
        (p, name) for p, name in all_patterns if p not in paths and p in remedy_for(p, name)
    ]
    assert unexplained == []


def test_violation_line_is_single_line_with_remedy() -> None:
    violation = Violation("spec", Reason.OUT_OF_RANGE, "a\n\x1b\u202e" + "b" * 5000, "less")
    assert violation.line().isprintable()
    assert violation.line().endswith("… → less")
    assert len(violation.line()) < 500
    assert str(violation) == violation.line()


@pytest.mark.parametrize(("letters", "shown"), [(400, "b" * 400), (401, "b" * 399 + "…")])
def test_violation_message_has_at_most_400_characters(letters: int, shown: str) -> None:
    violation = Violation("spec", Reason.OUT_OF_RANGE, "b" * letters, "less")
    assert violation.line() == f"spec: {shown} → less"


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (None, "an empty document"),
        ([], "a list"),
        ("text", "a str"),
        (3, "a int"),
        (["apiVersion"], "a list"),
    ],
)
def test_non_mapping_job_is_rejected(raw: object, what: str) -> None:
    [violation] = violations_of(raw)
    assert violation.reason is Reason.NOT_A_MAPPING
    assert violation.message == f"a job must be a mapping, not {what}"


def test_violations_are_all_reported_at_once() -> None:
    raw = make_raw_job(
        {place: value for place, value, *_ in WRONG if place.startswith("spec.data.")}
    )

    assert {violation.path for violation in violations_of(raw)} >= {
        "spec.data.trainFiles[0]",
        "spec.data.maxSamples",
        "spec.data.batchSize",
        "spec.data.trainBatchSize",
    }


def test_parse_job_returns_valid_job() -> None:
    job = parse_job(make_raw_job())
    assert isinstance(job, RagGrpoJob)
    assert job.spec.model.path == "/mnt/runs/model"


def test_null_value_counts_as_unspecified() -> None:
    raw = make_raw_job({"metadata.creationTimestamp": None, "spec.rollout.temperature": None})
    job = parse_job(raw)
    assert isinstance(job, RagGrpoJob)
    assert "temperature" not in job.spec.rollout.model_fields_set


def test_yaml_date_is_parsed_as_text() -> None:
    job = parse_job(make_raw_job({"spec.checkpoint.path": "/c", "spec.image": date(2026, 1, 1)}))
    assert isinstance(job, RagGrpoJob)
    assert job.spec.image == "2026-01-01"


def test_api_server_metadata_is_ignored() -> None:
    raw = make_raw_job(
        {"metadata.managedFields": [{"manager": "kubectl"}], "metadata.generation": 3}
    )
    job = parse_job(raw)
    assert isinstance(job, RagGrpoJob)
    assert job.metadata.generation == 3


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
PLACES = [place for place, *_ in WRONG]


@given(raw=ANYTHING)
def test_parse_job_does_not_raise_for_any_input(raw: object) -> None:
    parse_job(raw)


@given(place=st.sampled_from(PLACES), value=ANYTHING)
def test_parse_job_does_not_raise_for_any_value(place: str, value: object) -> None:
    parse_job(make_raw_job({place: value}))


@pytest.mark.parametrize(
    ("place", "value", "remedy"),
    [
        ("spec.monitoring.mode", False, 'parses unquoted off, no, n or false as a boolean: '
            'write "Off"'),
        ("spec.scheduling", {"queueName": True}, "yes, y or true as a boolean: quote the value"),
        ("spec.training.learningRate", "1e-6", "write 1e-6 without quotes"),
        ("spec.rollout", {"n": "3"}, "write 3 without quotes"),
        ("spec.training.compile", "on", "write true or false without quotes"),
        ("spec.suspend", "no", "write true or false without quotes"),
        ("spec.rollout", {False: 3}, "quote the key"),
        ("spec.scheduling", {"queueName": 7}, 'quote the value: "7"'),
    ],
)  # fmt: skip
def test_yaml_1_1_conversion_has_specific_remedy(place: str, value: Any, remedy: str) -> None:
    [violation] = violations_of(make_raw_job({place: value}))
    assert remedy in violation.remedy


@pytest.mark.parametrize(
    ("place", "value", "message", "remedy"),
    [
        ("spec.data.trainFiles", "/x", "'/x' is not a valid array",
         "specify a valid array: write [/x]"),
        ("spec.data.trainFiles", "a b", "'a b' is not a valid array", "specify a valid array"),
        ("spec.training.lora", {"targets": "AllLinear"}, "'AllLinear' is not a valid array",
         "specify a valid array: write [AllLinear]"),
        ("spec.suspend", "maybe", "'maybe' is not a valid boolean", "specify a valid boolean"),
        ("spec.suspend", "8", "'8' is not a valid boolean", "specify a valid boolean"),
        ("spec.rollout", {"n": "on"}, "'on' is not a valid integer", "specify a valid integer"),
        ("spec.rollout", {"n": "many"}, "'many' is not a valid integer", "specify a valid integer"),
        ("spec.rollout", {"n": {}}, "{} is not a valid integer", "specify a valid integer"),
        ("spec.preset", {}, "{} is not one of Fast, MaxPerformance, MemoryLimited, Debug",
         "choose one of 'Fast', 'MaxPerformance', 'MemoryLimited' or 'Debug'"),
    ],
)  # fmt: skip
def test_wrong_type_violation_has_remedy(place: str, value: Any, message: str, remedy: str) -> None:
    [violation] = violations_of(make_raw_job({place: value}))
    assert (violation.message, violation.remedy) == (message, remedy)


LORA_HINTS = (
    ("spec.training.peft_config", {"r": 8, "lora_alpha": 16, "use_dora": True},
     ["r: use spec.training.lora.rank", "lora_alpha: use spec.training.lora.alpha",
      "use_dora: remove it: adapters are those of the LoRA paper"]),
    ("spec.training.peftConfig", {"r": 8, "bias": "none"}, ["r: use spec.training.lora.rank"]),
    ("spec.training.lora", {"r": 8}, ["use spec.training.lora.rank"]),
    ("spec.training.lora", {"lora_alpha": 8}, ["use spec.training.lora.alpha"]),
    ("spec.training.lora", {"target_modules": "all-linear"},
     ["use spec.training.lora.targets", "[AllLinear]"]),
    ("spec.training.lora", {"dropout": 0.1}, ["remove it: adapters have no dropout"]),
    ("spec.training.lora", {"bias": "none"}, ["only the adapters are trained"]),
    ("spec.training.lora", {"modules_to_save": ["lm_head"]}, ["only the adapters are trained"]),
    ("spec.training.lora", {"use_rslora": True}, ["alpha · √rank"]),
    ("spec.training.lora", {"targets": ["all-linear"]}, ["write AllLinear"]),
    ("spec.training.lora", {"targets": [".*_proj"]}, ["self_attn.q_proj"]),
    ("spec.training", {"use_peft": True}, ["use spec.training.lora"]),
    ("spec.training", {"lora_r": 8}, ["use spec.training.lora.rank"]),
    ("spec.training", {"lora_target_modules": ["q_proj"]}, ["use spec.training.lora.targets"]),
    ("spec.training", {"lora_dropout": 0.0}, ["adapters have no dropout"]),
    ("spec.model", {"path": "/m", "load_in_4bit": True}, ["a quantized model cannot be trained"]),
    ("spec.model", {"path": "/m", "lora_rank": 8}, ["use spec.training.lora.rank"]),
    ("spec.model", {"path": "/m", "lora": {"rank": 8, "alpha": 16}},
     ["rank: use spec.training.lora.rank"]),
)  # fmt: skip


@pytest.mark.row("F1")
@pytest.mark.parametrize(("place", "value", "hints"), LORA_HINTS)
def test_adapter_settings_of_other_trainers_have_hints(
    place: str, value: Any, hints: list[str]
) -> None:
    [violation] = violations_of(make_raw_job({place: value}))
    assert [hint for hint in hints if hint not in violation.remedy] == []


@pytest.mark.parametrize(
    "name",
    sorted(({each.rpartition(".")[2] for each in VERL_FIELDS} | {*OTHER_FIELDS}) - GENERIC_NAMES),
)
def test_foreign_field_hint_uses_last_path_segment(name: str) -> None:
    assert hint_for(name).startswith(("use spec.", "remove it: "))
    assert hint_for(f"{name}_of_ours") == ""


@pytest.mark.row("D5")
@pytest.mark.parametrize(
    ("place", "value", "remedy"),
    [
        ("spec.algorithm", {"hybrid_grpo": {"group_size": 5}}, "spec.algorithm.groupSize"),
        ("spec.algorithm", {"group_size": 5}, "groupSize"),
        ("spec.data.dataloader_num_workers", 8, "use spec.data.numWorkers"),
        ("spec.validation", {"test_freq": 999999}, "spec.validation.everySteps (0 disables"),
        ("spec.checkpoint.save_freq", -1, "spec.checkpoint.everySteps"),
        ("spec.training.accumulate_grad_batches", 2, "tokensPerMicroBatch"),
        ("spec.rollout", {"tensor_model_parallel_size": 2}, "spec.rollout.tensorParallelSize"),
        ("spec.rollout", {"num_generations": 4}, "use spec.rollout.n"),
        ("spec.monitoring", {"verbose_logging": {}}, "spec.monitoring.debug"),
        ("spec.data.pin_memory", True, "remove it: on GPUs every batch goes through pinned"),
        ("spec.training.precision", "16-mixed", "write FP16, or BF16 if the device supports it"),
        ("spec.training.precision", "bf16-mixed", "write BF16"),
        ("spec.preset", "recommended", "write Fast"),
        ("spec.preset", "max_performance", "write MaxPerformance"),
        ("spec.preset", "memory-limited", "MemoryLimited"),
        ("spec.preset", "debug", "Debug"),
        ("spec.preset", "recommended fast", "write Fast"),
        ("spec.preset", "max performance", "write MaxPerformance"),
        ("spec.preset", "memory limited", "write MemoryLimited"),
        ("spec.preset", "debugging", "write Debug"),
        ("spec.training", {"precision": "16"}, "write FP16, or BF16 if the device supports it"),
        ("spec.model.revision", "main", "spec.model.source (hf://org/name@revision)"),
        ("spec.model.name", "org/name", "model.source for a hub"),
        ("spec.model.token", "x", "HF_TOKEN in env"),
        ("spec.data.source", "hf://datasets/org/name", "use spec.data.sources (a list)"),
        ("spec.data.split", "train", "#config=NAME&split=NAME"),
        ("spec.output.private", True, "always private"),
        ("spec.training.push_to_hub", True, "use spec.output.push (hf://org/name)"),
        ("spec.rollout.agent", {"python": "a:b", "model": "gpt"}, "rollout.agent.policyModels"),
        ("spec.rollout.agent", {"python": "a:b", "baseUrl": "http://x"}, "OPENAI_BASE_URL"),
        ("spec.env", [{"name": "A", "valueFrom": {}}], "write secretKeyRef: {name, key}"),
    ],
)  # fmt: skip
def test_foreign_field_is_reported_with_counterpart(place: str, value: Any, remedy: str) -> None:
    [violation] = violations_of(make_raw_job({place: value}))
    assert remedy in violation.remedy


@pytest.mark.row("D5")
def test_yaml_1_1_conversions_in_file_are_all_reported() -> None:
    text = yaml.safe_dump(make_raw_job()) + "  monitoring: {mode: Off}\n"
    text += "  rollout: {temperature: '1e-1'}\n  scheduling: {queueName: on}\n"
    text += "  algorithm: {groupSize: 08}\n  retrieval: {endpoints: {name: kb}}\n"
    text += "  validation: {beforeTraining: 'yes'}\n  reward: {answerMarker: 1e3}\n"

    remedies = {each.path: each.remedy for each in violations_of(read_yaml(text))}

    assert 'write "Off"' in remedies["spec.monitoring.mode"]
    assert remedies["spec.rollout.temperature"].endswith("write 1e-1 without quotes")
    assert "unquoted on, yes, y or true" in remedies["spec.scheduling.queueName"]
    assert "without quotes" in remedies["spec.validation.beforeTraining"]
    assert remedies["spec.algorithm.groupSize"].endswith(
        "write 8 without quotes and without leading zeros"
    )
    assert '"- " before each item' in remedies["spec.retrieval.endpoints"]
    assert 'quote the value: "1000.0"' in remedies["spec.reward.answerMarker"]


def test_exponent_without_decimal_point_is_parsed_as_number() -> None:
    text = yaml.safe_dump(make_raw_job({"spec.training.learningRate": 0.5}))
    job = parse_job(read_yaml(text.replace("learningRate: 0.5", "learningRate: 1e-6")))
    assert isinstance(job, RagGrpoJob)
    assert job.spec.training.learning_rate == 1e-6


def test_parse_update_returns_same_result_as_parse_job() -> None:
    first = parse_job(make_raw_job())
    later = make_raw_job({"status": make_running_status()})
    later["metadata"] |= {"annotations": {names.ANNOTATION_RETRY: "yes"}, "labels": {"team": "a"}}
    whole = parse_job(later)

    assert isinstance(first, RagGrpoJob)
    assert isinstance(whole, RagGrpoJob)
    assert parse_update(first, later) == whole
    assert parse_update(first, later).manifest() == whole.manifest()
    assert parse_update(whole, make_raw_job()) == first
