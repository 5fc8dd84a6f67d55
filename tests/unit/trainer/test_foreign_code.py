"""Content that runs code in other programs when it is loaded."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raggrpo_retriever.corpus import CorpusError, load_vectors
from raggrpo_trainer.data.conversation import InvalidValue, render
from raggrpo_trainer.data.tokenizer import load_tokenizer
from raggrpo_trainer.policy.model import load_model
from support.builders.trainer.policies import write_model


class Planted:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


def write_code_model(folder: Path, planted: Path) -> Path:
    """Write a model of an unknown type whose classes are in the folder, and create a file."""
    write_model(folder)
    config = json.loads((folder / "config.json").read_text())
    classes = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}
    classes["AutoTokenizer"] = "own.Tokenizer"
    own = {"model_type": "own", "architectures": ["Own"], "auto_map": classes}
    (folder / "config.json").write_text(json.dumps(config | own))
    tokenizer = {
        "tokenizer_class": "OwnTokenizer",
        "auto_map": {"AutoTokenizer": ["own.Tokenizer", None]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    (folder / "own.py").write_text(f"open({str(planted)!r}, 'w').close()\n")
    return folder


@pytest.mark.parametrize(
    "load",
    [lambda path: load_model(path, None), load_tokenizer],
    ids=["model", "tokenizer"],
)
def test_code_in_model_folder_is_not_run(tmp_path: Path, load: Callable[[str], object]) -> None:
    folder = write_code_model(tmp_path / "model", tmp_path / "planted")

    with pytest.raises(Exception):  # noqa: B017, PT011 - libraries raise errors of any type
        load(str(folder))
    assert not (tmp_path / "planted").exists()


def test_pickled_weights_are_not_unpickled(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    torch.save({"w": Planted(tmp_path / "planted")}, folder / "pytorch_model.bin")

    with pytest.raises(Exception):  # noqa: B017, PT011 - libraries raise errors of any type
        load_model(str(folder), None)
    assert not (tmp_path / "planted").exists()


def test_pickled_vectors_are_not_unpickled(tmp_path: Path) -> None:
    file = tmp_path / "vectors.npy"
    np.save(file, np.array([Planted(tmp_path / "planted")], dtype=object), allow_pickle=True)

    with pytest.raises(CorpusError):
        load_vectors(file, 1, 1)
    assert not (tmp_path / "planted").exists()


@pytest.mark.parametrize(
    "expression",
    [
        "''.__class__.__mro__[1].__subclasses__()",
        "cycler.__init__.__globals__.os.mkdir('{planted}')",
        "self.__init__.__globals__",
        "messages.append(1)",
        "lipsum.__globals__['os'].mkdir('{planted}')",
    ],
)
def test_chat_template_cannot_leave_the_sandbox(tmp_path: Path, expression: str) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}, "a")))
    template = "{{ " + expression.replace("{planted}", str(tmp_path / "planted")) + " }}"

    with pytest.raises(InvalidValue, match=r"SecurityError|UndefinedError|unsafe"):
        render("q", [], [], tokenizer, template)
    assert not (tmp_path / "planted").exists()
