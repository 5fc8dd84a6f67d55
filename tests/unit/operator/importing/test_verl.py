"""Published verl configurations become valid jobs, with a line for every field."""

from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.retrieval import RetrievalMode
from raggrpo_operator.core.importing.composition import compose
from raggrpo_operator.core.importing.overrides import (
    UnknownValue,
    Unreadable,
    Values,
    read_overrides,
)
from raggrpo_operator.core.importing.references import resolve_references
from raggrpo_operator.core.importing.retrieval import TOOLS
from raggrpo_operator.core.importing.script import read_script
from raggrpo_operator.core.importing.translation import MOUNT, Imported
from raggrpo_operator.core.importing.verl import import_verl
from raggrpo_operator.core.rules import violations
from raggrpo_operator.core.spec.foreign_names import OTHER_FIELDS, VERL_FIELDS
from raggrpo_operator.core.spec.parse import field_path, parse_job
from raggrpo_operator.core.spec.resolve import resolve
from raggrpo_operator.core.spec.violation import errors
from raggrpo_operator.crd import job_schema
from support.builders.data.verl_scripts import ARRAYS, GSM8K, SEARCH
from support.builders.data.verl_tree import FILES

SMALLEST = {
    "data.train_files": "/data/train.parquet",
    "actor_rollout_ref.model.path": "/models/m",
    "actor_rollout_ref.rollout.n": 4,
    "trainer.total_training_steps": 10,
}


def hydra(text: str) -> Values:
    return compose("config", [], lambda _: None, text=text).values


def make_valid_job(imported: Imported) -> RagGrpoJob:
    job = parse_job(imported.job)
    assert isinstance(job, RagGrpoJob), job
    assert errors(violations(job, resolve(job))) == ()
    return job


@pytest.mark.parametrize(("gpus", "changed"), [(1, 0), (2, 1), (8, 1)])
def test_tensor_parallel_engine_is_changed_to_one_gpu(gpus: int, changed: int) -> None:
    imported = import_verl(
        SMALLEST | {"actor_rollout_ref.rollout.tensor_model_parallel_size": gpus}
    )
    assert make_valid_job(imported).spec.rollout.tensor_parallel_size == 1
    reported = [line for line in imported.wrong if "tensor_model_parallel_size" in line]
    assert len(reported) == changed
    assert all(f"{gpus} is not supported" in line for line in reported)


@pytest.mark.row("D5")
def test_published_gsm8k_script_is_imported_as_equivalent_job() -> None:
    imported = import_verl(read_script(GSM8K).overrides)
    spec = make_valid_job(imported).spec

    assert MOUNT == "/mnt/work"  # as in the docs, which have --mount work=$HOME
    assert spec.model.source == "hf://Qwen/Qwen2-7B-Instruct"
    assert spec.data.train_files == [f"{MOUNT}/data/gsm8k/train.parquet"]
    assert spec.data.columns.answer == "reward_model.ground_truth"
    assert spec.reward.answer_marker == "####"
    assert (spec.rollout.n, spec.algorithm.group_size) == (5, 5)
    assert (spec.training.mini_batch_prompts, spec.training.epochs) == (256, 15)
    assert spec.algorithm.kl_coefficient == 0.001
    assert spec.algorithm.normalize_by_std  # verl's default, not ours
    assert spec.rollout.temperature == 1.0


def test_import_errors_and_unmapped_fields_are_reported() -> None:
    imported = import_verl(read_script(GSM8K).overrides)

    wrong = "\n".join(imported.wrong)
    assert "trainer.save_freq: -1 saves no checkpoint" in wrong
    assert "checkpoints/verl_grpo_example_gsm8k/qwen2_7b_function_rm is a relative path" in wrong
    unmapped = "\n".join(imported.unmapped)
    for name in ("filter_overlong_prompts=True", "ppo_micro_batch_size_per_gpu", "trainer.logger"):
        assert name in unmapped


def test_import_report_contains_all_verl_fields() -> None:
    given = read_script(GSM8K).overrides
    imported = import_verl(given)
    reported = "\n".join([*imported.mapped, *imported.unmapped, *imported.wrong])
    assert [name for name in given if name not in reported] == []


@pytest.mark.row("D5")
@pytest.mark.parametrize("name", VERL_FIELDS)
def test_known_verl_field_appears_in_import_report(name: str) -> None:
    value = "float16" if name.endswith("dtype") else 4
    block = name.split(".")[0] if name.startswith("custom") else name
    imported = import_verl(SMALLEST | {name: value})
    reported = [*imported.mapped, *imported.unmapped, *imported.wrong, *imported.missing]
    assert any(block in line for line in reported)


@pytest.mark.row("D5")
@pytest.mark.parametrize(
    ("name", "value", "reported"),
    [
        ("algorithm.hybrid_grpo.group_size", 4, "→ spec.algorithm.groupSize: 4"),
        ("data.dataloader_num_workers", 8, "→ spec.data.numWorkers: 8"),
        ("trainer.test_freq", 999999, "→ spec.validation.everySteps: 0 (999999 is off)"),
        ("actor_rollout_ref.rollout.dtype", "16-mixed", "→ spec.training.precision: FP16"),
        ("trainer.precision", "16-mixed", "→ spec.training.precision: FP16 (not a field of verl)"),
        ("trainer.accumulate_grad_batches", 2, "not verl's; remove it: rows are packed"),
        ("actor_rollout_ref.actor.optim.lr_scheduler_type", "cosine", "Schedule: Cosine"),
        ("actor_rollout_ref.actor.optim.warmup_style", "constant", "Schedule: Constant"),
        ("actor_rollout_ref.actor.optim.warmup_style", "sawtooth", "not a supported schedule"),
        ("actor_rollout_ref.actor.optim.min_lr_ratio", 0.1, "minLearningRateRatio, without"),
        ("data.val_max_samples", 64, "→ spec.validation.maxSamples: 64"),
        ("actor_rollout_ref.rollout.dtype", "int3", "int3 is not a precision: changed to BF16"),
        ("actor_rollout_ref.actor.loss_agg_mode", "odd", "lossAggregation, without this value"),
    ],
)
def test_verl_fields_of_reference_setup_are_reported(name: str, value: Any, reported: str) -> None:
    imported = import_verl(SMALLEST | {"data.val_files": "/data/test.parquet", name: value})
    make_valid_job(imported)
    lines = [*imported.mapped, *imported.unmapped, *imported.wrong]
    assert any(line.startswith(name) and reported in line for line in lines), lines


def test_cosine_schedule_is_mapped_and_num_cycles_is_reported() -> None:
    optim = "actor_rollout_ref.actor.optim"
    cosine = {"warmup_style": "cosine", "min_lr_ratio": 0.1, "total_training_steps": 8}
    given = {f"{optim}.{name}": value for name, value in (cosine | {"num_cycles": 2}).items()}
    imported = import_verl(SMALLEST | given)
    training = make_valid_job(imported).spec.training

    assert training.learning_rate_schedule == "Cosine"
    assert (training.min_learning_rate_ratio, training.decay_steps) == (0.1, 8)
    assert any("num_cycles: 2 is not supported, only 0.5" in line for line in imported.wrong)


def test_branch_dependent_values_are_unknown_in_script_with_arrays_and_defaults() -> None:
    given = read_script(ARRAYS).overrides
    [line] = import_verl(given).missing
    assert "rollout.n=$ROLLOUT_N: $ROLLOUT_N is 5 or 16" in line
    spec = make_valid_job(import_verl(given | {"actor_rollout_ref.rollout.n": 5})).spec
    assert spec.model.path == "/mnt/models/Qwen3-4B"
    assert spec.data.train_files == [f"{MOUNT}/data/math/train.parquet"]
    assert spec.rollout.n == 5


def test_search_configuration_is_imported_as_search_mode_job() -> None:
    imported = import_verl(hydra(SEARCH))
    spec = make_valid_job(imported).spec

    assert spec.data.columns.answer == "reward_model.ground_truth.target"
    assert (spec.retrieval.mode, spec.retrieval.max_turns) == ("Search", 2)
    assert spec.validation.every_steps == 0  # 999999 is off
    assert any("max_tool_response_length" in line and "256 char" in line for line in imported.wrong)
    assert any("<search>query</search>" in line for line in imported.unmapped)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"algorithm.hybrid_grpo.group_size": 5}, "group_size: 5 differs from rollout.n"),
        ({"trainer.max_actor_ckpt_to_keep": 1}, "1 is below the minimum of 2"),
        ({"algorithm.adv_estimator": "gae"}, "gae is not GRPO"),
        ({"actor_rollout_ref.rollout.n": 1}, "1 completion per group has no advantage"),
        ({"actor_rollout_ref.rollout.max_num_batched_tokens": 512}, "is less than a sequence"),
        ({"data.train_files": "train.parquet"}, "train.parquet is a relative path"),
    ],
)
def test_invalid_verl_value_is_reported_and_imported_job_is_valid(
    changes: dict[str, Any], expected: str
) -> None:
    imported = import_verl(SMALLEST | changes)
    make_valid_job(imported)
    assert expected in "\n".join(imported.wrong)


@pytest.mark.parametrize(("prompt", "tokens"), [(512, 16384), (513, 16385)])
def test_micro_batch_budget_grows_when_group_exceeds_default(prompt: int, tokens: int) -> None:
    lengths = {"data.max_prompt_length": prompt, "data.max_response_length": 3968}
    training = make_valid_job(import_verl(SMALLEST | lengths)).spec.training
    assert training.tokens_per_micro_batch == tokens
    assert ("tokens_per_micro_batch" in training.model_fields_set) == (prompt > 512)


@pytest.mark.parametrize(("budget", "is_reported"), [(5120, False), (5119, True)])
def test_token_budget_below_one_group_is_reported_and_raised(
    budget: int, is_reported: bool
) -> None:
    lengths = {"data.max_prompt_length": 1024, "data.max_response_length": 1024}
    given = {"actor_rollout_ref.actor.ppo_max_token_len_per_gpu": budget}
    imported = import_verl(SMALLEST | lengths | given)
    assert make_valid_job(imported).spec.training.tokens_per_micro_batch == 5120
    assert any("is less than a prompt with" in line for line in imported.wrong) == is_reported


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [
        ({}, 0.2, 0.2),
        ({"clip_ratio": 0.1}, 0.1, 0.1),
        ({"clip_ratio": 0.1, "clip_ratio_high": 0.3}, 0.1, 0.3),
        ({"clip_ratio": 0.3, "clip_ratio_low": 0.1}, 0.1, 0.3),
        ({"clip_ratio": 0.3, "clip_ratio_low": 0.1, "clip_ratio_high": 0.2}, 0.1, 0.2),
    ],
)
def test_clip_ratio_sets_both_bounds_unless_specified(
    given: dict[str, float], low: float, high: float
) -> None:
    changes = {f"actor_rollout_ref.actor.{name}": value for name, value in given.items()}
    algorithm = make_valid_job(import_verl(SMALLEST | changes)).spec.algorithm
    assert (algorithm.clip_ratio_low, algorithm.clip_ratio_high) == (low, high)


def test_references_resolve_to_values_from_overrides() -> None:
    values = hydra(SEARCH) | read_overrides(["data.max_prompt_length=64", "++a.b=[1, 2]"])
    assert resolve_references(values, {})["actor_rollout_ref.rollout.prompt_length"] == 64
    assert values["a.b"] == [1, 2]


def test_script_options_and_groups_are_expanded() -> None:
    script = read_script(
        'C="$(pwd)/examples/c"\npython -m verl.trainer.main_ppo --config-path="$C" '
        "-cn=grpo -cd more engine=megatron data.seed=1"
    )
    assert script.options == {
        "--config-path": "./examples/c",
        "--config-name": "grpo",
        "--config-dir": "more",
    }
    assert (script.choices, script.overrides) == ({"engine": "megatron"}, {"data.seed": 1})


def test_integer_arithmetic_is_evaluated() -> None:
    script = read_script(
        "PROMPT=$((1024 * 2))\nANSWER=300\nrun data.max_prompt_length=$PROMPT "
        "data.max_response_length=$(( ANSWER + (8 - 2) / 4 )) "
        'data.a="$(( ${PROMPT} * 2 ))" data.b=$((2 ** 9)) data.c=$((UNKNOWN * 2)) data.d=$((1/0))'
    )
    computed = {"max_prompt_length": 2048, "max_response_length": 301, "a": 4096}
    assert {name: script.overrides.pop(f"data.{name}") for name in computed} == computed
    marked = {"b": "$((2 ** 9))", "c": "$((UNKNOWN * 2))", "d": "$((1/0))"}
    assert list(script.overrides) == [f"data.{name}" for name in marked]
    for name, text in marked.items():
        unknown = script.overrides[f"data.{name}"]
        assert isinstance(unknown, UnknownValue)
        assert unknown.text == text


TOOL_FILE = SMALLEST | {TOOLS: "tools.yaml", "data.max_prompt_length": 1024}


def with_tools(text: str | None) -> Imported:
    return import_verl(TOOL_FILE, read=lambda _: text)


@pytest.mark.row("D5")
def test_search_tool_becomes_retrieval_endpoint() -> None:
    imported = with_tools(FILES["examples/lookup/config/tools/lookup.yaml"])
    spec = make_valid_job(imported).spec

    assert spec.retrieval.mode is RetrievalMode.SEARCH
    [endpoint] = spec.retrieval.endpoints
    assert (endpoint.role, endpoint.protocol) == ("Retriever", "SearchR1")
    assert endpoint.url == "http://retriever.rag:9000/retrieve"
    assert (endpoint.top_k, endpoint.timeout_seconds, endpoint.max_concurrency) == (5, 12.0, 32)
    assert "tools: topk → spec.retrieval.endpoints[0].topK: 5" in imported.mapped
    assert "tools: rate_limit=32: no counterpart" in imported.unmapped
    assert imported.missing == []
    assert not any("give the service" in line for line in imported.unmapped)


def test_first_search_tool_becomes_endpoint() -> None:
    urls = ("http://a.rag/retrieve", "http://b.rag/retrieve")
    tools = ", ".join(f"{{config: {{retrieval_service_url: '{url}'}}}}" for url in urls)
    spec = make_valid_job(with_tools(f"tools: [{tools}]")).spec
    assert [endpoint.url for endpoint in spec.retrieval.endpoints] == [urls[0]]


@pytest.mark.parametrize(
    "changes", [{TOOLS: "tools/search.yaml"}, {"data.train_files": "/data/searchR1/a.parquet"}]
)
def test_search_mode_is_inferred_from_file_names(
    changes: dict[str, Any],
) -> None:
    imported = import_verl(SMALLEST | {"data.max_prompt_length": 1024} | changes)
    retrieval = make_valid_job(imported).spec.retrieval
    assert retrieval.mode is RetrievalMode.SEARCH
    [endpoint] = imported.job["spec"]["retrieval"]["endpoints"]
    assert endpoint == {"name": "search", "url": "http://127.0.0.1:8000/retrieve", "topK": 3}


@pytest.mark.parametrize(("turns", "searches"), [(1, 1), (2, 1), (3, 2), (5, 4)])
def test_imported_max_turns_excludes_answer_turn(turns: int, searches: int) -> None:
    multi_turn = "actor_rollout_ref.rollout.multi_turn."
    given = {f"{multi_turn}max_assistant_turns": turns, f"{multi_turn}max_tool_response_length": 9}
    imported = import_verl(TOOL_FILE | {TOOLS: "search.yaml"} | given)
    assert imported.job["spec"]["retrieval"]["maxTurns"] == searches
    assert any("together to 9 characters" in line for line in imported.wrong)
    assert not any(line.startswith(multi_turn) for line in imported.unmapped)


def test_localhost_tool_service_is_reported() -> None:
    text = "tools: [{config: {retrieval_service_url: 'http://127.0.0.1:8000/retrieve'}}]"
    assert "in a cluster, specify a Service" in "\n".join(with_tools(text).wrong)


def test_non_search_tools_are_reported_without_enabling_search() -> None:
    imported = with_tools("tools: [{class_name: a.Calculator, config: {precision: 3}}]")
    assert make_valid_job(imported).spec.retrieval.mode is RetrievalMode.NONE
    assert any(line.startswith("tool Calculator: ") for line in imported.unmapped)


def test_missing_or_invalid_tool_file_is_reported() -> None:
    missing = import_verl(TOOL_FILE)
    assert any(
        "tools.yaml" in line and "specify retrieval.endpoints" in line for line in missing.missing
    )
    assert "tools.yaml: it has no list of tools" in "\n".join(with_tools("a: 1").wrong)


def test_inherited_value_is_reported_with_file() -> None:
    composition = compose("lookup_grpo", ["examples/lookup/config"], FILES.get)
    composition.override(SMALLEST)
    imported = import_verl(
        composition.values, composition.inherited, composition.missing, FILES.get
    )
    make_valid_job(imported)

    mapped = "training.learningRate: 3e-06 (from optim/adam.yaml)"
    assert any(line.endswith(mapped) for line in imported.mapped)
    [line] = [line for line in imported.unmapped if line.startswith("defaults of optim/adam.yaml")]
    assert "actor_rollout_ref.actor.optim.betas" in line


@pytest.mark.parametrize("text", ["- 1", "a: b: c", "", "just words"])
def test_malformed_configurations_scripts_and_overrides_are_rejected(text: str) -> None:
    with pytest.raises(Unreadable):
        hydra(text)
    with pytest.raises(Unreadable):
        read_script(text)
    with pytest.raises(Unreadable, match="write an override as"):
        read_overrides(["data"])


def _paths(value: Any, place: tuple[str, ...] = ()) -> set[str]:
    if not isinstance(value, dict) or "properties" not in value:
        return {field_path(place)}
    below = [_paths(item, (*place, name)) for name, item in value["properties"].items()]
    return {field_path(place)}.union(*below)


def test_mapped_verl_and_trl_fields_exist_in_job_schema() -> None:
    known = _paths(job_schema()["properties"]["spec"])
    for name, foreign in {**VERL_FIELDS, **OTHER_FIELDS}.items():
        assert not foreign.path or foreign.path in known, name
        assert foreign.path or foreign.note, name


def test_clip_ratio_c_is_mapped_to_dual_clip() -> None:
    name = "actor_rollout_ref.actor.clip_ratio_c"
    assert make_valid_job(import_verl(SMALLEST)).spec.algorithm.dual_clip == 3.0
    assert make_valid_job(import_verl(SMALLEST | {name: 10.0})).spec.algorithm.dual_clip == 10.0


@pytest.mark.parametrize(
    "name",
    [
        "reward_model.model.path",
        "reward_model.num_workers",
        "actor_rollout_ref.rollout.val_kwargs.n",
    ],
)
def test_verl_field_is_not_matched_by_last_path_segment(name: str) -> None:
    [line] = [each for each in import_verl(SMALLEST | {name: 4}).unmapped if each.startswith(name)]
    assert line.endswith("no counterpart")


def test_mini_batch_equal_to_batch_is_reported_as_mapped() -> None:
    name = "actor_rollout_ref.actor.ppo_mini_batch_size"
    imported = import_verl(SMALLEST | {"data.train_batch_size": 8, name: 8})
    assert f"{name} → the whole batch: 8" in imported.mapped


@pytest.mark.parametrize(
    ("experiment", "name"),
    [
        ("a" * 44, "a" * 44),
        ("a" * 45, "a" * 44),
        ("7" * 44, "verl-" + "7" * 39),
        ("q7", "q7"),
    ],
)
def test_imported_job_name_is_truncated_experiment_name(experiment: str, name: str) -> None:
    imported = import_verl(SMALLEST | {"trainer.experiment_name": experiment})
    assert make_valid_job(imported).metadata.name == name


def test_imported_single_step_run_saves_one_checkpoint() -> None:
    imported = import_verl(SMALLEST | {"trainer.total_training_steps": 1, "trainer.save_freq": -1})
    assert make_valid_job(imported).spec.checkpoint.every_steps == 1
