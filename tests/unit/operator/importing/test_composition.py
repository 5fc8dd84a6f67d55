"""Composition of Hydra defaults lists."""

from collections.abc import Mapping

import pytest

from raggrpo_operator.core.importing.composition import Composition, compose
from raggrpo_operator.core.importing.overrides import Unreadable
from support.builders.data.verl_tree import FILES


def composed(files: Mapping[str, str], **choices: str) -> Composition:
    return compose("main", ["c"], {f"c/{n}.yaml": t for n, t in files.items()}.get, choices)


@pytest.mark.row("D5")
@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"main": "{defaults: [base, _self_], a: 1}", "base": "{a: 2, b: 2}"}, {"a": 1, "b": 2}),
        ({"main": "{defaults: [_self_, base], a: 1}", "base": "{a: 2}"}, {"a": 2}),
        ({"main": "{defaults: [base], a: 1}", "base": "a: 2"}, {"a": 1}),
        ({"main": "defaults: [{db: x}]", "db/x": "a: 1"}, {"db.a": 1}),
        ({"main": "defaults: [{db@p.q: x}]", "db/x": "a: 1"}, {"p.q.a": 1}),
        ({"main": "defaults: [{db: null}]\nb: 1"}, {"b": 1}),
        (
            {"main": "defaults: [{db: [x, y]}]", "db/x": "a: 1", "db/y": "b: 2"},
            {"db.a": 1, "db.b": 2},
        ),
        ({"main": "defaults: [db/x]", "db/x": "a: 1"}, {"db.a": 1}),
        ({"main": "defaults: [base@p]", "base": "a: 1"}, {"p.a": 1}),
        ({"main": "defaults: [{db@_global_: x}]", "db/x": "a: 1"}, {"a": 1}),
        ({"main": "defaults: [{db: x}]", "db/x": "# @package _global_\na: 1"}, {"a": 1}),
        (
            {"main": "defaults: [{a: x}]", "a/x": "defaults: [{b: y}, {/b@_here_: y}]\nc: 1"}
            | {"a/b/y": "# @package p.q\nd: 1", "b/y": "e: 2"},
            {"p.q.d": 1, "a.e": 2, "a.c": 1},
        ),
        (
            {"main": "defaults: [{db@p: x}]", "db/x": "defaults: [{../o@o: y}, z]"}
            | {"o/y": "b: 2", "db/z": "c: 1"},
            {"p.o.b": 2, "p.c": 1},
        ),
        (
            {"main": "defaults: [{e: dp}, {db: '${e}_db'}]", "e/dp": "a: 1", "db/dp_db": "b: 2"},
            {"e.a": 1, "db.b": 2},
        ),
        (
            {"main": "defaults: [base, {override e: mg}]", "base": "defaults: [{e: dp}]"}
            | {"e/mg": "a: 3"},
            {"e.a": 3},
        ),
        ({"main": "defaults: [base, _self_]\na: {b: 1}", "base": "a: null"}, {"a.b": 1}),
        ({"main": "defaults: [base, _self_]\na: null", "base": "a: {b: 1}"}, {"a": None}),
        ({"main": "defaults: [{optional db: x}]\nb: 1"}, {"b": 1}),
        ({"main": "defaults: [{optional db: x}]", "db/x": "a: 1"}, {"db.a": 1}),
        (
            {"main": "{defaults: [{override hydra/job_logging: none}], hydra: {mode: RUN}, b: 1}"},
            {"b": 1},
        ),
    ],
)
def test_files_are_composed_in_defaults_list_order(
    files: Mapping[str, str], expected: Mapping[str, object]
) -> None:
    composition = composed(files)
    assert composition.values == expected
    assert composition.missing == []


def test_command_line_choice_selects_config_group_option() -> None:
    files = {"main": "defaults: [{e: dp}, {db@p: '${e}_db'}]", "e/mg": "a: 1", "db/mg_db": "b: 2"}
    assert composed(files, e="mg").values == {"e.a": 1, "p.b": 2}
    files = {"main": "defaults: [{optional e: dp}]", "e/dp": "a: 1", "e/mg": "a: 2"}
    assert composed(files, e="mg").values == {"e.a": 2}


def test_missing_file_is_reported_with_including_file() -> None:
    composition = composed(
        {"main": "defaults: [{db: x}, base, _self_]\na: 1", "base": "defaults: [z]"}
    )
    assert composition.values == {"a": 1}
    assert composition.missing == [
        "db/x.yaml, in the defaults of main.yaml",
        "z.yaml, in the defaults of base.yaml",
    ]
    assert composed({}).missing == ["main.yaml"]
    open_choice = composed({"main": "defaults: [{db: '${e}_db'}]"})
    assert open_choice.missing == ["db/${e}_db.yaml, in the defaults of main.yaml"]


def test_inherited_values_are_listed_with_source_file() -> None:
    composition = composed({"main": "defaults: [base, _self_]\na: 1", "base": "{a: 2, b: 2, c: 3}"})
    assert composition.inherited == {"b": "base.yaml", "c": "base.yaml"}
    composition.override({"b": 5})
    assert composition.values == {"a": 1, "b": 5, "c": 3}
    assert composition.inherited == {"c": "base.yaml"}


def test_value_replaced_by_block_is_not_inherited() -> None:
    composition = composed({"main": "defaults: [base, _self_]\na: {b: 1}", "base": "a: 2"})
    assert (composition.values, composition.inherited) == ({"a.b": 1}, {})


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"main": "defaults: [base]", "base": "defaults: [main]"}, "main.yaml includes itself"),
        ({"main": "defaults: [base]", "base": "- 1"}, "base.yaml: it is not a mapping"),
        ({"main": "defaults: [base]", "base": "a: b: c"}, "base.yaml: .*line 1, column 5"),
    ],
)
def test_circular_defaults_and_non_mappings_are_rejected(
    files: Mapping[str, str], expected: str
) -> None:
    with pytest.raises(Unreadable, match=expected):
        composed(files)


def test_config_groups_are_found_in_hydra_search_path() -> None:
    composition = compose("lookup_grpo", ["examples/lookup/config"], FILES.get)
    assert composition.missing == []
    values = composition.values
    assert values["data.train_batch_size"] == 64
    assert values["data.max_prompt_length"] == 700
    assert values["actor_rollout_ref.actor.grad_clip"] == 0.5
    assert values["actor_rollout_ref.actor.ppo_mini_batch_size"] == 32
    assert values["actor_rollout_ref.actor.optim.lr"] == 3e-6
    assert composition.inherited["actor_rollout_ref.actor.optim.lr"] == "optim/adam.yaml"
