import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.folder import Checkpoint
from raggrpo_trainer.checkpoint.hashing_save import save_hashed
from raggrpo_trainer.checkpoint.identity import WEIGHTS, FileDigests, weights_digest
from raggrpo_trainer.checkpoint_export import export_checkpoint, main
from raggrpo_trainer.errors import TrainerError
from support.builders.trainer import policies as policy_support
from support.builders.trainer.checkpoints import make_claim, make_meta, make_store, shards
from support.builders.trainer.policies import (
    Ranks,
    make_policy,
    parameters,
    uneven_groups,
    write_model,
)

pytestmark = pytest.mark.usefixtures("process_group")

LORA = LoraSpec(rank=4, alpha=6.0)


def save_policy(path: Path, model: Path, step: int = 1) -> Checkpoint:
    policy = make_policy(model)
    policy.step(uneven_groups(), step=1)
    store = make_store(make_claim(path))
    meta = replace(make_meta(step), model_path=str(model))
    return store.save(meta, lambda folder: save_hashed(policy.state_dict(), folder))


def save_adapters(path: Path, model: Path, base: Path) -> Checkpoint:
    """Save a checkpoint of adapters trained for `model` that records the weights in `base`."""
    policy = make_policy(model, lora=LORA)
    policy.step(uneven_groups(), step=2)
    values = {
        "training.lora": LORA.model_dump(mode="json", by_alias=True),
        WEIGHTS: weights_digest(base, FileDigests(path)),
    }
    meta = replace(make_meta(1), model_path=str(model), resume_values=values)
    store = make_store(make_claim(path))
    return store.save(meta, lambda folder: save_hashed(policy.state_dict(), folder))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_exported_adapters_equal_those_of_final_export(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    checkpoint = save_adapters(tmp_path / "checkpoints", model, model)
    trained = make_policy(model, lora=LORA)
    trained.step(uneven_groups(), step=2)
    trained.export_hf(tmp_path / "expected")

    export_checkpoint(checkpoint, tmp_path / "exported")

    assert files_of(tmp_path / "exported") == files_of(tmp_path / "expected")
    assert (tmp_path / "exported" / "adapter" / "adapter_model.safetensors").is_file()


def test_adapters_of_other_weights_are_not_exported(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    other = write_model(tmp_path / "other", layers=1)
    checkpoint = save_adapters(tmp_path / "checkpoints", model, other)
    with pytest.raises(TrainerError, match="differ from those that the adapters in") as raised:
        export_checkpoint(checkpoint, tmp_path / "exported")
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR
    assert not (tmp_path / "exported").exists()


@pytest.mark.row("A27")
@pytest.mark.parametrize("tied", [True, False])
def test_exported_checkpoint_has_weights_and_files_of_final_export(
    tmp_path: Path, *, tied: bool
) -> None:
    model = write_model(tmp_path / "model", tied=tied)
    checkpoint = save_policy(tmp_path / "checkpoints", model)
    trained = make_policy(model)
    trained.step(uneven_groups(), step=1)
    trained.export_hf(tmp_path / "expected")

    export_checkpoint(checkpoint, tmp_path / "exported")

    expected = {p.name: p.read_bytes() for p in (tmp_path / "expected").iterdir()}
    assert {p.name: p.read_bytes() for p in (tmp_path / "exported").iterdir()} == expected
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    actual = {name: tensor.data for name, tensor in loaded.named_parameters()}
    assert all(torch.equal(actual[name], each) for name, each in parameters(trained).items())


def test_checkpoint_of_two_ranks_is_exported_by_one_process(
    two_ranks: Ranks, tmp_path: Path
) -> None:
    model = write_model(tmp_path / "model")

    def save_shards(folder: Path) -> dict[str, str]:
        two_ranks.run(policy_support.train_save_train, str(model), str(folder))
        return {}

    store = make_store(make_claim(tmp_path / "checkpoints"))
    checkpoint = store.save(replace(make_meta(1), model_path=str(model)), save_shards)
    export_checkpoint(checkpoint, tmp_path / "exported")
    trained = make_policy(model)
    for step in (1, 2):
        trained.step(uneven_groups(), step=step)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "exported")
    for name, expected in parameters(trained).items():
        torch.testing.assert_close(loaded.get_parameter(name).data, expected)


def test_command_exports_to_moved_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = write_model(tmp_path / "model")
    save_policy(tmp_path / "checkpoints", model, step=7)
    moved = model.rename(tmp_path / "moved")
    arguments = [str(tmp_path / "checkpoints"), str(tmp_path / "out" / "exported")]

    assert main(arguments) == ExitCode.CONFIG_ERROR
    assert f"{model} is not the folder of the initial model" in capsys.readouterr().err
    assert main([*arguments, "--model", str(moved), "--step", "7"]) == 0
    assert '"step": 7' in capsys.readouterr().out
    assert (tmp_path / "out" / "exported" / "config.json").is_file()


@pytest.mark.parametrize(
    "changed",
    [
        {"path": "x" * 5000}, {"output": "x" * 300}, {"output": "x" * 5000},
        {"step": "1" * 5000}, {"model": "x" * 5000}, {"model": "\x1b[2J"},
    ],
)  # fmt: skip
def test_unusable_arguments_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, str]
) -> None:
    model = write_model(tmp_path / "model")
    save_policy(tmp_path / "checkpoints", model)
    values = {"path": "checkpoints", "output": "out", "step": "newest", "model": "model"} | changed
    paths = {name: str(tmp_path / values[name]) for name in ("path", "output", "model")}

    options = ["--model", paths["model"], "--step", values["step"]]
    code = main([paths["path"], paths["output"], *options])

    assert code == ExitCode.CONFIG_ERROR
    message = capsys.readouterr().err
    assert "\x1b" not in message
    assert "1" * 100 not in message


def test_empty_output_is_reported(tmp_path: Path) -> None:
    checkpoint = save_policy(tmp_path / "checkpoints", write_model(tmp_path / "model"))
    with pytest.raises(TrainerError, match="the output is empty: specify a new folder") as raised:
        export_checkpoint(checkpoint, Path(""))
    assert raised.value.exit_code is ExitCode.CONFIG_ERROR


def test_reports_of_transformers_are_not_printed(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    extra = {"other\x1b[2J": torch.zeros(1)}  # transformers lists it in a colored table
    save_file(tensors | extra, model / "model.safetensors", {"format": "pt"})
    save_policy(tmp_path / "checkpoints", model)

    done = subprocess.run(
        [
            *(sys.executable, "-m", "raggrpo_trainer.checkpoint_export"),
            *(tmp_path / "checkpoints", tmp_path / "out"),
        ],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "\x1b" not in done.stderr
    assert "REPORT" not in done.stderr


def test_existing_folder_is_not_overwritten(tmp_path: Path) -> None:
    checkpoint = save_policy(tmp_path / "checkpoints", write_model(tmp_path / "model"))
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    with pytest.raises(TrainerError, match=r"mine exists: specify a new folder"):
        export_checkpoint(checkpoint, tmp_path / "mine")


def test_checkpoint_removed_by_running_job_is_reported(tmp_path: Path) -> None:
    checkpoint = save_policy(tmp_path / "checkpoints", write_model(tmp_path / "model"))
    for file in checkpoint.folder.iterdir():
        file.unlink()
    with pytest.raises(TrainerError, match=r"the job removed .* repeat the command"):
        export_checkpoint(checkpoint, tmp_path / "exported")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoints", "model"]


def test_changed_shard_is_not_exported(tmp_path: Path) -> None:
    checkpoint = save_policy(tmp_path / "checkpoints", write_model(tmp_path / "model"))
    shard = checkpoint.folder / "__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")

    with pytest.raises(TrainerError, match=r"damaged: __0_0.distcp differs from its") as raised:
        export_checkpoint(checkpoint, tmp_path / "exported")
    assert raised.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
    assert not (tmp_path / "exported").exists()


def test_unreadable_shards_are_reported(tmp_path: Path) -> None:
    store = make_store(make_claim(tmp_path / "checkpoints"))
    model = write_model(tmp_path / "model")
    checkpoint = store.save(replace(make_meta(1), model_path=str(model)), shards(1))
    with pytest.raises(TrainerError, match="cannot export") as error:
        export_checkpoint(checkpoint, tmp_path / "exported")
    assert error.value.exit_code is ExitCode.CHECKPOINT_WRITE_FAILED
