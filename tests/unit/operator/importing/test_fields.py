"""Translation of each field of verl, including its limits."""

from typing import Any

import pytest

from raggrpo_operator.core.importing.overrides import UnknownValue
from raggrpo_operator.core.importing.translation import MOUNT, Imported
from raggrpo_operator.core.importing.verl import import_verl

ACTOR = "actor_rollout_ref.actor."
ROLLOUT = "actor_rollout_ref.rollout."
SMALLEST = {
    "data.train_files": "/data/train.parquet",
    "actor_rollout_ref.model.path": "/models/m",
    f"{ROLLOUT}n": 4,
}
UNKNOWN = UnknownValue("$X", "$X is not set in the script")


def with_(changes: dict[str, Any]) -> Imported:
    return import_verl(SMALLEST | changes)


def value_at(imported: Imported, path: str) -> Any:
    value: Any = imported.job["spec"]
    for name in path.split("."):
        value = value.get(name) if value else None
    return value


def about(lines: list[str], *names: str) -> list[str]:
    """Return the lines that start with one of verl's names."""
    return [line for line in lines if line.startswith(names)]


def test_verl_defaults_are_written_to_imported_job() -> None:
    imported = with_({})
    assert imported.job["spec"] == {
        "data": {
            "trainFiles": ["/data/train.parquet"],
            "trainBatchSize": 1024,
            "maxPromptLength": 512,
            "maxResponseLength": 512,
            "columns": {"answer": "reward_model.ground_truth"},
        },
        "model": {"path": "/models/m"},
        "algorithm": {
            "groupSize": 4,
            "clipRatioLow": 0.2,
            "clipRatioHigh": 0.2,
            "dualClip": 3.0,
            "lossAggregation": "TokenMean",
            "normalizeByStd": True,
        },
        "rollout": {"n": 4, "temperature": 1.0, "gpuMemoryUtilization": 0.5},
        "training": {
            "epochs": 30,
            "miniBatchPrompts": 256,
            "learningRate": 1e-6,
            "weightDecay": 0.01,
            "maxGradNorm": 1.0,
            "gradientCheckpointing": True,
        },
        "reward": {"functions": [{"name": "ExactMatch"}]},
        "checkpoint": {"everySteps": 100, "path": f"{MOUNT}/checkpoints/verl_examples/gsm8k"},
        "validation": {"everySteps": 0, "beforeTraining": False},
        "resources": {"gpusPerNode": 8},
        "volumes": [
            {"name": "work", "claimName": "work", "mountPath": MOUNT},
            {"name": "data-volume", "claimName": "data", "mountPath": "/data"},
            {"name": "models-volume", "claimName": "models", "mountPath": "/models"},
        ],
    }
    assert [line.partition(": ")[0] for line in imported.wrong] == [
        "trainer.save_freq",
        "trainer.default_local_dir",
    ]
    assert "-1 saves no checkpoint" in imported.wrong[0]
    assert about(imported.mapped, "trainer.test_freq")[0].endswith(
        ": 0 (-1 is off, verl's default)"
    )
    assert imported.unmapped == imported.missing == []
    for what in ("reward_model.ground_truth (a column", "verl's reward by data_source"):
        assert len(about(imported.mapped, what)) == 1


def test_group_of_one_completion_is_reported_and_raised_to_two() -> None:
    imported = import_verl({"data.train_files": "/data/train.parquet"})
    assert f"{ROLLOUT}n: 1 completion per group has no advantage: changed to 2" in imported.wrong
    assert value_at(imported, "rollout.n") == value_at(imported, "algorithm.groupSize") == 2


@pytest.mark.parametrize(
    ("changes", "path", "expected", "note"),
    [
        ({"data.train_max_samples": 64}, "data.maxSamples", 64, ""),
        ({"data.train_max_samples": -1}, "data.maxSamples", 0, ""),
        ({"data.val_max_samples": 1}, "validation.maxSamples", 1, ""),
        ({"data.truncation": "error"}, "data.allowTruncation", False, ""),
        ({"data.truncation": "left"}, "data.allowTruncation", True, " (was left)"),
        (
            {f"{ACTOR}loss_agg_mode": "seq-mean-token-mean"},
            "algorithm.lossAggregation",
            "SequenceMean",
            "",
        ),
        ({f"{ACTOR}optim.lr_warmup_steps": 1}, "training.warmupSteps", 1, ""),
        (
            {"trainer.total_training_steps": 11, f"{ACTOR}optim.lr_warmup_steps_ratio": 0.25},
            "training.warmupSteps",
            2,
            "",
        ),
        ({f"{ACTOR}clip_ratio": 0.1}, "algorithm.clipRatioLow", 0.1, ""),
        ({f"{ROLLOUT}max_num_batched_tokens": 1024}, "rollout.maxNumBatchedTokens", 1024, ""),
        ({f"{ROLLOUT}n": 2}, "rollout.n", 2, ""),
        ({"trainer.save_freq": 1}, "checkpoint.everySteps", 1, ""),
        ({"trainer.max_actor_ckpt_to_keep": 2}, "checkpoint.keepLast", 2, ""),
        ({"trainer.max_actor_ckpt_to_keep": 3}, "checkpoint.keepLast", 3, ""),
    ],
)
def test_supported_value_is_mapped_without_error(
    changes: dict[str, Any], path: str, expected: Any, note: str
) -> None:
    imported = with_(changes)
    name = list(changes)[-1]
    assert value_at(imported, path) == expected
    assert f"{name} → spec.{path}: {expected}{note}" in imported.mapped
    assert about(imported.wrong, *changes) == about(imported.unmapped, *changes) == []


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("data.val_max_samples", 0, "validation.maxSamples"),
        ("data.val_max_samples", -1, "validation.maxSamples"),
        (f"{ACTOR}optim.lr_warmup_steps", 0, "training.warmupSteps"),
        (f"{ACTOR}optim.lr_warmup_steps", -1, "training.warmupSteps"),
    ],
)
def test_verl_null_values_are_omitted(name: str, value: int, path: str) -> None:
    assert value_at(with_({name: value}), path) is None


@pytest.mark.parametrize(
    ("changes", "path", "expected", "reported"),
    [
        (
            {"data.train_batch_size": 8, f"{ACTOR}ppo_mini_batch_size": 9},
            "training.miniBatchPrompts",
            None,
            "9 prompts of a batch of 8",
        ),
        (
            {f"{ROLLOUT}max_num_batched_tokens": 1023},
            "rollout.maxNumBatchedTokens",
            None,
            "1023 is less than a sequence of 1024 tokens: it will be computed",
        ),
        (
            {"trainer.max_actor_ckpt_to_keep": 1},
            "checkpoint.keepLast",
            2,
            "1 is below the minimum of 2",
        ),
        (
            {"algorithm.group_size": 5},
            "algorithm.groupSize",
            4,
            "5 differs from rollout.n: changed to 4",
        ),
        ({"trainer.save_freq": 0}, "checkpoint.everySteps", 100, "0 saves no checkpoint"),
        (
            {"trainer.total_training_steps": 11, "trainer.save_freq": -1},
            "checkpoint.everySteps",
            5,
            "-1 saves no checkpoint",
        ),
    ],
)
def test_unsupported_value_is_reported_once_with_replacement(
    changes: dict[str, Any], path: str, expected: Any, reported: str
) -> None:
    imported = with_(changes)
    name = list(changes)[-1]
    assert value_at(imported, path) == expected
    [line] = about(imported.wrong, name)
    assert line.startswith(f"{name}: {reported}")
    assert about(imported.unmapped, name) == []


def test_batch_smaller_than_default_mini_batch_is_accepted() -> None:
    imported = with_({"data.train_batch_size": 8})
    assert value_at(imported, "training.miniBatchPrompts") is None
    assert about(imported.wrong, ACTOR) == []


@pytest.mark.parametrize(
    ("frequency", "steps", "note"),
    [
        (-1, 0, " (-1 is off)"),
        (0, 0, " (0 is off)"),
        (1, 1, ""),
        (999_998, 999_998, ""),
        (999_999, 0, " (999999 is off)"),
    ],
)
def test_validation_interval_is_mapped(frequency: int, steps: int, note: str) -> None:
    given = {"data.val_files": "/data/test.parquet", "trainer.test_freq": frequency}
    imported = with_(given)
    assert f"trainer.test_freq → spec.validation.everySteps: {steps}{note}" in imported.mapped
    assert value_at(imported, "validation.beforeTraining") is True


@pytest.mark.parametrize(
    ("files", "steps", "before"), [({}, 0, False), ({"data.val_files": UNKNOWN}, 5, True)]
)
def test_validation_is_off_only_when_validation_files_are_absent(
    files: dict[str, Any], steps: int, before: bool
) -> None:
    imported = with_(files | {"trainer.test_freq": 5})
    assert value_at(imported, "validation.everySteps") == steps
    assert value_at(imported, "validation.beforeTraining") is before


@pytest.mark.parametrize(
    ("given", "coefficient", "unmapped"),
    [
        ({"use_kl_loss": True}, 0.001, []),
        ({"use_kl_loss": True, "kl_loss_coef": 0.5}, 0.5, []),
        ({"kl_loss_coef": 0.5}, None, ["kl_loss_coef=0.5: use_kl_loss is off"]),
        (
            {"use_kl_loss": UNKNOWN, "kl_loss_coef": 0.5},
            None,
            ["kl_loss_coef=0.5: use_kl_loss is unknown"],
        ),
        ({"use_kl_loss": False}, None, []),
    ],
)
def test_kl_coefficient_is_mapped_when_kl_loss_is_enabled(
    given: dict[str, Any], coefficient: float | None, unmapped: list[str]
) -> None:
    imported = with_({f"{ACTOR}{name}": value for name, value in given.items()})
    assert value_at(imported, "algorithm.klCoefficient") == coefficient
    assert about(imported.unmapped, ACTOR) == [f"{ACTOR}{line}" for line in unmapped]


def test_clip_bounds_are_omitted_when_clip_ratio_is_unknown() -> None:
    imported = with_({f"{ACTOR}clip_ratio": UNKNOWN, f"{ACTOR}clip_ratio_low": 0.1})
    algorithm = imported.job["spec"]["algorithm"]
    assert (algorithm["clipRatioLow"], algorithm["dualClip"]) == (0.1, 3.0)
    assert "clipRatioHigh" not in algorithm


@pytest.mark.parametrize(
    ("cycles", "is_reported"),
    [({}, False), ({"num_cycles": 0.5}, False), ({"num_cycles": 1}, True)],
)
def test_num_cycles_other_than_one_half_is_reported_for_cosine_schedule(
    cycles: dict[str, float], is_reported: bool
) -> None:
    optim = {f"{ACTOR}optim.{k}": v for k, v in ({"warmup_style": "cosine"} | cycles).items()}
    reported = about(with_(optim).wrong, f"{ACTOR}optim.")
    assert ["num_cycles" in line for line in reported] == [True] * is_reported


@pytest.mark.parametrize(("steps", "decay"), [(-1, None), (0, None), (1, 1)])
def test_cosine_decay_steps_default_to_total_steps(steps: int, decay: int | None) -> None:
    optim = {"warmup_style": "cosine", "total_training_steps": steps}
    imported = with_({f"{ACTOR}optim.{name}": value for name, value in optim.items()})
    assert value_at(imported, "training.decaySteps") == decay


@pytest.mark.parametrize("unknown", ["data.max_prompt_length", f"{ROLLOUT}n"])
def test_token_limits_are_copied_when_lengths_are_unknown(
    unknown: str,
) -> None:
    limits = {f"{ROLLOUT}max_num_batched_tokens": 64, f"{ACTOR}ppo_max_token_len_per_gpu": 128}
    values = SMALLEST | limits | {unknown: UNKNOWN}
    paths = ("rollout.maxNumBatchedTokens", "training.tokensPerMicroBatch")

    imported = import_verl(values)
    assert [value_at(imported, path) for path in paths] == [64, 128]
    assert about(imported.wrong, *limits) == about(imported.unmapped, *limits) == []
    imported = import_verl(values, dict.fromkeys(limits, "base.yaml"))
    assert [value_at(imported, path) for path in paths] == [None, None]


def test_too_small_inherited_token_budget_is_dropped_without_error() -> None:
    name = f"{ACTOR}ppo_max_token_len_per_gpu"
    imported = import_verl(SMALLEST | {name: 128}, {name: "base.yaml"})
    assert value_at(imported, "training.tokensPerMicroBatch") is None
    assert about(imported.wrong, name) == []


@pytest.mark.parametrize(("given", "epochs"), [({"trainer.total_epochs": 3}, 3), ({}, None)])
def test_epochs_are_used_when_steps_are_unknown(given: dict[str, Any], epochs: int | None) -> None:
    imported = with_(given | {"trainer.total_training_steps": UNKNOWN})
    assert value_at(imported, "training.epochs") == epochs


def test_overridden_field_is_reported_once() -> None:
    imported = with_(
        {
            "trainer.total_training_steps": 10,
            "trainer.total_epochs": 3,
            "trainer.experiment_name": "first",
            f"{ACTOR}ppo_mini_batch_size": 1024,
            "algorithm.group_size": 4,
        }
    )
    [epochs] = imported.unmapped
    assert epochs == "trainer.total_epochs=3: total_training_steps takes precedence"
    assert f"{ACTOR}ppo_mini_batch_size → the whole batch: 1024" in imported.mapped
    assert "algorithm.group_size → spec.algorithm.groupSize: 4" in imported.mapped


@pytest.mark.parametrize(
    ("given", "python"),
    [
        ({"path": "/code/reward.py", "name": "score"}, "reward:score"),
        ({"path": "/code/reward.py"}, "reward:compute_score"),
    ],
)
def test_custom_reward_function_keeps_its_signature(given: dict[str, str], python: str) -> None:
    imported = with_({f"custom_reward_function.{name}": value for name, value in given.items()})
    assert imported.job["spec"]["reward"] == {
        "functions": [{"name": "Python", "python": python, "signature": "Verl"}],
        "codeFrom": {"path": "/code"},
    }
    assert f"custom_reward_function → reward Python {python}" in imported.mapped


@pytest.mark.parametrize("path", ["reward.py", "/code/my-reward.py"])
def test_custom_reward_function_without_module_path_is_reported(path: str) -> None:
    imported = with_({"custom_reward_function.path": path})
    [line] = [each for each in imported.unmapped if each.startswith("custom_reward_function")]
    assert "signature Verl" in line


def test_missing_configuration_files_are_reported() -> None:
    assert import_verl(SMALLEST, missing=["base.yaml"]).missing == ["base.yaml"]


def test_hub_model_is_mapped_to_its_source() -> None:
    imported = with_({"actor_rollout_ref.model.path": "Qwen/Q"})
    assert imported.job["spec"]["model"] == {"source": "hf://Qwen/Q"}
    assert any("specify model.path" in line for line in imported.mapped)


def test_relative_model_and_files_are_mapped_to_volume_paths() -> None:
    imported = with_({"actor_rollout_ref.model.path": "./a/q", "data.train_files": "a/b.parquet"})
    assert value_at(imported, "model.path") == f"{MOUNT}/models/a/q"
    assert value_at(imported, "data.trainFiles") == [f"{MOUNT}/a/b.parquet"]
    work = {"name": "work", "claimName": "work", "mountPath": MOUNT}
    assert value_at(imported, "volumes") == [work]


def test_unmapped_inherited_values_are_reported_grouped_by_file() -> None:
    odd = {"trainer.odd": 1, "trainer.open": UNKNOWN}
    imported = import_verl(SMALLEST | odd, dict.fromkeys(odd, "base.yaml"))
    assert imported.unmapped == ["defaults of base.yaml: trainer.open, trainer.odd"]
    assert imported.missing == []


@pytest.mark.parametrize(
    ("length", "shown"), [(80, "x" * 80), (81, "x" * 79 + "…"), (200, "x" * 79 + "…")]
)
def test_reported_value_is_truncated_when_long(length: int, shown: str) -> None:
    assert with_({"trainer.odd": "x" * length}).unmapped == [f"trainer.odd={shown}: no counterpart"]
