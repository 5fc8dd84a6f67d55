"""Resolution of references in a configuration."""

from typing import Any

import pytest

from raggrpo_operator.core.importing.composition import compose
from raggrpo_operator.core.importing.overrides import UnknownValue
from raggrpo_operator.core.importing.references import resolve_references
from raggrpo_operator.core.importing.verl import import_verl


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${root}/qwen", "/models/qwen"),
        ("${root}-${batch}", "/models-64"),
        ("${batch}", 64),
        ("${lens.p}", 512),  # itself a reference
        ("${root}/${name}", "/models/first_run"),
        ("${lens.${which}}", 512),
        (["${root}/a", "b"], ["/models/a", "b"]),
        ("${.sibling}", 7),
        ("${..batch}", 64),
        ("${oc.select:lens.p,3}", 512),
        ("${oc.select:nothing,3}", 3),
        ("${oc.select:nothing}", None),
        ("${oc.env:TURNS,3}", 3),
        ("${usual}", 5),
        ("no reference", "no reference"),
    ],
)
def test_standalone_embedded_and_nested_references_are_resolved(value: Any, expected: Any) -> None:
    values = {
        "root": "/models",
        "batch": 64,
        "lens.p": "${plen}",
        "plen": 512,
        "which": "p",
        "name": "${project}_run",
        "project": "first",
        "a.sibling": 7,
        "a.b": value,
    }
    assert resolve_references(values, {"usual": 5})["a.b"] == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("${oc.env:HOME}/data", "${oc.env:HOME} is known only while verl runs"),
        ("${now:%Y}", "${now:%Y} is known only while verl runs"),
        ("${made}/x", "${oc.env:MADE} is known only while verl runs"),
        ("${nothing.here}", "${nothing.here} is not in the configuration"),
        ("${a.b}", "are circular: a.b → a.b"),
        ("${plain} ${a.b}", "are circular: a.b → a.b"),
        ("${c}", "are circular: c → d → c"),
        ("${d}", "are circular: c → d → c"),
        ("${e0}", "are circular: e0 → e1 → e2 → … → e0"),
        ("${block}", "${block} is a block of fields"),
        ("${open", "${open has no closing bracket"),
        ("${null}/x", "a reference in ${null}/x is null"),
        ("???", "the configuration requires a value"),
        ("${a b}", "${a b} is not supported"),
    ],
)
def test_unresolved_reference_is_reported_with_reason(value: str, expected: str) -> None:
    values = {"made": "${oc.env:MADE}", "c": "${d}", "d": "${c}", "block.x": 1, "null": None}
    values |= {f"e{i}": f"${{e{(i + 1) % 50}}}" for i in range(50)}
    value_of_ref = resolve_references(values | {"a.b": value, "plain": "x"}, {})["a.b"]
    assert isinstance(value_of_ref, UnknownValue)
    assert expected in value_of_ref.reason


@pytest.mark.parametrize("fields", [95, 950])
def test_reasons_of_circular_references_are_short(fields: int) -> None:
    block = "b" * 200
    values = {f"{block}.a{i}": f"${{.a{(i + 1) % 95}}}" for i in range(fields)}
    missing = import_verl(values | {"data.seed": f"${{{block}.a0}}"}).missing
    [line] = [each for each in missing if each.startswith("data.seed=")]
    assert "its references are circular: " in line
    assert len(line) < 500


def test_start_of_a_reason_of_one_long_word_is_shown() -> None:
    [line] = import_verl({"data.seed": f"${{{'o' * 400}"}).missing
    assert f": ${{{'o' * 297}…: override it" in line


def test_secret_in_a_reason_of_one_long_word_is_hidden() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    [line] = import_verl({"data.seed": f"${{{'o' * 280}/{secret}/{'o' * 400}"}).missing
    assert secret[:8] not in line


def test_secret_at_end_of_shortened_reason_is_not_shown_in_part() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    for length in range(200, 300):
        value = f"{'x' * length} {secret} ${{null}}"
        imported = import_verl({"null": None, "data.seed": value})
        assert secret[:8] not in "".join(imported.missing)


def test_unresolved_references_are_omitted_from_job() -> None:
    text = """
data: {train_files: '${oc.env:HOME}/a.parquet', max_prompt_length: '${lens.p}'}
lens: {p: '${plen}'}
plen: 256
actor_rollout_ref:
  model: {path: '${model_root}/qwen'}
  rollout: {n: 4}
model_root: /models
trainer:
  experiment_name: ${trainer.project_name}_${plen}
  project_name: first
  default_local_dir: /ck/${trainer.experiment_name}
  total_epochs: 1
"""
    imported = import_verl(compose("config", [], lambda _: None, text=text).values)
    spec = imported.job["spec"]
    assert spec["model"]["path"] == "/models/qwen"
    assert spec["data"]["maxPromptLength"] == 256
    assert spec["checkpoint"]["path"] == "/ck/first_256"
    assert "trainFiles" not in spec["data"]
    assert imported.missing == [
        "data.train_files=${oc.env:HOME}/a.parquet: ${oc.env:HOME} is known only while verl "
        "runs: override it"
    ]


def test_unresolved_inherited_reference_is_reported_only_for_mapped_field() -> None:
    values = {"data.seed": "${oc.env:SEED}", "data.odd": "${oc.env:ODD}", "data.train_files": "/a"}
    imported = import_verl(values, dict.fromkeys(values, "data/rows.yaml"))
    [line] = imported.missing
    assert line.startswith("data.seed=${oc.env:SEED} (from data/rows.yaml)")
    assert "defaults of data/rows.yaml: data.odd" in imported.unmapped


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("trainer.save_freq", "often", "trainer.save_freq is 'often', which is not a number"),
        ("data.max_prompt_length", [1], "data.max_prompt_length is [1], which is not a number"),
        ("trainer.total_training_steps", True, "is True, which is not a number"),
        ("data.val_max_samples", "a", "data.val_max_samples is 'a', which is not a number"),
        ("trainer.save_freq", float("nan"), "trainer.save_freq is nan, which is not a number"),
        ("data.train_batch_size", 10**20, f"data.train_batch_size is {10**20}, which is too large"),
        ("trainer.save_freq", "-1e400", "trainer.save_freq is '-1e400', which is too large"),
    ],
)
def test_unusable_number_is_rejected_with_field(name: str, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match="which is") as caught:
        import_verl({name: value})
    assert expected in str(caught.value)


@pytest.mark.parametrize("value", ["1:59" + ":59" * 50_000, [1] * 50_000])
def test_long_value_that_is_not_a_number_is_shortened(value: Any) -> None:
    with pytest.raises(ValueError, match="which is not a number") as caught:
        import_verl({"data.train_batch_size": value})
    assert len(str(caught.value)) < 200


def test_secret_in_place_of_number_is_hidden() -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyz012345"
    with pytest.raises(ValueError, match=r"train_batch_size is '\(hidden\)', which") as caught:
        import_verl({"data.train_batch_size": secret})
    assert secret not in str(caught.value)


def test_non_numeric_values_are_all_reported_at_once() -> None:
    with pytest.raises(
        ValueError, match=r"save_freq is 'b', which is not a number; trainer.test_f"
    ):
        import_verl({"trainer.test_freq": "a", "trainer.save_freq": "b"})


def test_numeric_string_is_converted_and_reported() -> None:
    imported = import_verl({"data.max_prompt_length": "1024", "data.train_files": "/a.parquet"})
    assert imported.job["spec"]["data"]["maxPromptLength"] == 1024
    assert (
        "data.max_prompt_length: '1024' is a string, not a number: changed to 1024"
        in imported.wrong
    )
