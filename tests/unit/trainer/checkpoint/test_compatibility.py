import pytest

from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Segment
from raggrpo_trainer.checkpoint.compatibility import (
    changed_values,
    check_compatible,
    meta_of,
    segments_after,
)
from raggrpo_trainer.checkpoint.folder import Meta
from raggrpo_trainer.checkpoint.identity import WEIGHTS
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError
from support.builders.operator.jobs import make_trainer_config


def make_meta_of(config: TrainerConfig) -> Meta:
    return meta_of(config, 40, Cursor(1, 2), {"reward_mean": 0.5})


def test_checkpoint_is_compatible_with_unchanged_configuration() -> None:
    assert check_compatible(make_meta_of(make_trainer_config()), make_trainer_config()) == []


def test_changes_of_operational_fields_are_compatible() -> None:
    changed = make_trainer_config(
        {
            "training.totalSteps": 5000,
            "training.gradientCheckpointing": True,
            "training.tokensPerMicroBatch": 1024,
            "rollout.gpuMemoryUtilization": 0.3,
            "checkpoint.everySteps": 7,
            "monitoring.logEverySteps": 3,
        }
    )

    assert check_compatible(make_meta_of(make_trainer_config()), changed) == []


@pytest.mark.row("B20")
def test_incompatible_values_are_reported_with_old_and_new() -> None:
    meta = make_meta_of(make_trainer_config({"training.seed": 6}))
    changed = make_trainer_config(
        {
            "training.seed": 9,
            "data.columns.answer": "label",
            "training.totalSteps": 5000,
            "rollout.temperature": 0.9,
        }
    )

    assert len(changed_values(meta, changed)) == 3
    with pytest.raises(TrainerError) as raised:
        check_compatible(meta, changed)
    assert raised.value.exit_code is ExitCode.CHECKPOINT_INCOMPATIBLE
    message = str(raised.value)
    assert "training.seed: 6 → 9" in message
    assert 'data.columns.answer: "answer" → "label"' in message
    assert "totalSteps" not in message
    assert "temperature" not in message


def test_changed_optimization_values_start_segment_after_checkpoint() -> None:
    meta = make_meta_of(make_trainer_config({"rollout.n": 5, "data.trainBatchSize": 256}))
    changed = make_trainer_config({"rollout.n": 3, "data.trainBatchSize": 128})

    assert check_compatible(meta, changed) == []
    changes = ["data.trainBatchSize: 256 → 128", "rollout.n: 5 → 3"]
    assert segments_after(meta, changed) == (Segment(first_step=41, changes=changes),)


def test_segments_of_checkpoint_are_continued() -> None:
    first = Segment(first_step=11, changes=["rollout.n: 5 → 3"])
    config = make_trainer_config()
    meta = meta_of(config, 40, Cursor(1, 2), {}, segments=[first])

    assert segments_after(meta, config) == (first,)
    cooler = make_trainer_config({"rollout.temperature": 0.5})
    second = Segment(first_step=41, changes=["rollout.temperature: 0.6 → 0.5"])
    assert segments_after(meta, cooler) == (first, second)


@pytest.mark.row("D14")
def test_changed_judge_prompt_is_incompatible() -> None:
    judge = {"name": "Judge", "url": "http://judge/v1", "judge": {"model": "m", "prompt": "Old."}}
    meta = make_meta_of(make_trainer_config({"reward.functions": [judge]}))
    other = make_trainer_config(
        {"reward.functions": [judge | {"judge": {"model": "m", "prompt": "New."}}]}
    )

    with pytest.raises(TrainerError) as raised:
        check_compatible(meta, other)
    assert raised.value.exit_code is ExitCode.CHECKPOINT_INCOMPATIBLE
    assert 'reward.functions[0].judge.prompt: "Old." → "New."' in str(raised.value)


def test_changed_data_row_count_is_incompatible() -> None:
    config = make_trainer_config()
    meta = meta_of(config, 40, Cursor(1, 2), {}, identity={"data rows": 10})
    assert check_compatible(meta, config, identity={"data rows": 10}) == []
    with pytest.raises(TrainerError, match="data rows: 10 → 11"):
        check_compatible(meta, config, identity={"data rows": 11})


def test_different_resume_hash_is_rejected_even_with_equal_values() -> None:
    config = make_trainer_config()
    attempt = config.attempt.model_copy(update={"resume_hash": "f00"})
    with pytest.raises(TrainerError, match=r"resumeHash: \w+ → f00"):
        check_compatible(make_meta_of(config), config.model_copy(update={"attempt": attempt}))


def test_different_world_size_is_compatible_and_logged() -> None:
    config = make_trainer_config()
    wider = config.model_copy(update={"world": config.world.model_copy(update={"num_ranks": 3})})
    assert check_compatible(make_meta_of(config), wider) == ["saved by 1 ranks, resharded to 3"]


@pytest.mark.parametrize(
    ("old", "new"), [({WEIGHTS: "a"}, {WEIGHTS: "b"}), ({WEIGHTS: "a"}, {}), ({}, {WEIGHTS: "b"})]
)
def test_adapters_resume_only_with_the_same_initial_weights(
    old: dict[str, object], new: dict[str, object]
) -> None:
    config = make_trainer_config({"training.lora": {"rank": 4}})
    meta = meta_of(config, 40, Cursor(1, 2), {}, identity=old)
    assert check_compatible(meta, config, identity=old) == []
    with pytest.raises(TrainerError, match="model weights: ") as raised:
        check_compatible(meta, config, identity=new)
    assert raised.value.exit_code is ExitCode.CHECKPOINT_INCOMPATIBLE
