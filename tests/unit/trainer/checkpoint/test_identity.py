"""The identity of inputs is their content, wherever they are."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.spec.start_from import StartFrom
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.checkpoint.compatibility import check_compatible, meta_of, segments_after
from raggrpo_trainer.checkpoint.identity import (
    DIGESTS,
    FileDigests,
    content_identity,
    reward_files,
)
from raggrpo_trainer.data.sampler import Cursor
from raggrpo_trainer.errors import TrainerError
from support.builders.operator.jobs import make_trainer_config

REWARD = "from helper import score\ndef reward(sample):\n    return score(sample)\n"


def write_files(root: Path) -> None:
    for folder in ("model", "data", "code"):
        (root / folder).mkdir(parents=True)
    (root / "model" / "config.json").write_text('{"hidden_size": 8}')
    (root / "model" / "model.safetensors").write_bytes(b"weights")
    (root / "model" / "tokenizer.json").write_text('{"vocab": 1}')
    (root / "model" / "tokenizer_config.json").write_text(
        json.dumps({"pad_token": "p", "chat_template": "{{ messages }}"})
    )
    (root / "data" / "train.jsonl").write_text('{"prompt": "q", "answer": "a"}\n')
    (root / "data" / "corpus.jsonl").write_text('{"id": "1", "contents": "c"}\n')
    (root / "code" / "rewards.py").write_text(REWARD)
    (root / "code" / "helper.py").write_text("def score(sample):\n    return 1.0\n")
    (root / "code" / "notes.py").write_text("unused = 1\n")


def make_config(root: Path) -> TrainerConfig:
    return make_trainer_config(
        {
            "model.path": str(root / "model"),
            "data.trainFiles": [str(root / "data" / "train.jsonl")],
            "retrieval.mode": "Prompt",
            "retrieval.endpoints": [
                {"name": "kb", "managed": {"corpus": str(root / "data" / "corpus.jsonl")}}
            ],
            "reward.functions": [{"name": "Python", "python": "rewards:reward"}],
            "reward.codeFrom": {"path": str(root / "code")},
        }
    )


def identity_of(root: Path) -> dict[str, object]:
    with FileDigests(root / DIGESTS) as digests:
        return content_identity(make_config(root), digests)


def append(path: str) -> Callable[[Path], object]:
    def change(root: Path) -> None:
        with (root / path).open("ab") as file:
            file.write(b"\n# other")

    return change


def replace_text(path: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda root: (root / path).write_text((root / path).read_text().replace(old, new))


def overwrite_keeping_time(file: Path) -> None:
    """Write other content of the same size and time, as `cp -p` of another model can."""
    times = file.stat()
    file.write_bytes(b"WEIGHTS")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "model weights": replace_text("model/model.safetensors", "weights", "weightz"),
    "model config.json": replace_text("model/config.json", "8", "9"),
    "model generation_config.json": append("model/generation_config.json"),
    "model weights ": lambda root: overwrite_keeping_time(root / "model" / "model.safetensors"),
    "model tokenizer": replace_text("model/tokenizer.json", "1", "2"),
    "model tokenizer ": replace_text("model/tokenizer_config.json", '"p"', '"q"'),
    "chat template": replace_text("model/tokenizer_config.json", "{{ messages }}", "{{ tools }}"),
    "chat template ": append("model/chat_template.jinja"),
    "rows of data.trainFiles": replace_text("data/train.jsonl", '"a"', '"b"'),
    "corpus of endpoint kb": replace_text("data/corpus.jsonl", '"c"', '"d"'),
    "code of reward rewards:reward": append("code/rewards.py"),
    "code of reward rewards:reward ": replace_text("code/helper.py", "1.0", "0.5"),
}


@pytest.mark.row("B20")
@pytest.mark.parametrize("name", CHANGES)
def test_changed_content_at_same_path_is_incompatible_and_named(tmp_path: Path, name: str) -> None:
    write_files(tmp_path)
    config = make_config(tmp_path)
    meta = meta_of(config, 2, Cursor(), {}, identity=identity_of(tmp_path))

    CHANGES[name](tmp_path)

    with pytest.raises(TrainerError) as raised:
        check_compatible(meta, config, identity=identity_of(tmp_path))
    message = str(raised.value)
    assert f'{name.strip()}: "' in message
    assert message.count(" → ") == 2  # "(old → new)" and one input


def test_unused_weights_are_not_read(tmp_path: Path) -> None:
    write_files(tmp_path)
    before = identity_of(tmp_path)
    (tmp_path / "model" / "1_Pooling").mkdir()
    for name in ("other.safetensors", "1_Pooling/model.safetensors"):
        (tmp_path / "model" / name).touch()
        os.truncate(tmp_path / "model" / name, 200 << 30)
    assert identity_of(tmp_path) == before


@pytest.mark.row("B20")
def test_moved_files_are_compatible_and_start_no_segment(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "elsewhere" / "new"
    write_files(old)
    meta = meta_of(make_config(old), 2, Cursor(), {}, identity=identity_of(old))
    shutil.copytree(old, new)

    config, identity = make_config(new), identity_of(new)
    assert check_compatible(meta, config, identity=identity) == []
    assert segments_after(meta, config, identity=identity) == ()


@pytest.mark.parametrize(
    ("name", "data", "is_rejected"),
    [
        ("model weights", "Restart", True),
        ("model tokenizer", "Restart", True),
        ("rows of data.trainFiles", "Continue", True),
        ("rows of data.trainFiles", "Restart", False),
        ("chat template", "Continue", False),
        ("corpus of endpoint kb", "Continue", False),
        ("code of reward rewards:reward", "Continue", False),
    ],
)
def test_job_that_starts_from_another_needs_its_model_and_rows(
    tmp_path: Path, name: str, data: str, *, is_rejected: bool
) -> None:
    write_files(tmp_path)
    config = make_config(tmp_path)
    meta = meta_of(config, 2, Cursor(), {}, identity=identity_of(tmp_path))
    CHANGES[name](tmp_path)
    start = StartFrom.model_validate({"checkpoint": {"path": "/other"}, "data": data})

    with pytest.raises(TrainerError, match=name) if is_rejected else nullcontext():
        check_compatible(meta, config, identity=identity_of(tmp_path), start=start)


def test_file_that_reward_does_not_import_is_not_compared(tmp_path: Path) -> None:
    write_files(tmp_path)
    before = identity_of(tmp_path)
    append("code/notes.py")(tmp_path)
    assert identity_of(tmp_path) == before


PACKAGE = {
    "__init__.py": "",
    "score.py": "from .helper import score\nfrom . import limits\nimport other\n",
    "helper.py": "def score(sample): return 1.0\n",
    "limits.py": "",
    "unused.py": "",
}


@pytest.mark.parametrize(
    ("file", "is_compared"),
    [("score.py", True), ("helper.py", True), ("limits.py", True), ("unused.py", False)],
)
def test_modules_that_package_imports_are_compared(
    tmp_path: Path, file: str, *, is_compared: bool
) -> None:
    (tmp_path / "grading").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "grading" / name).write_text(text)
    reward = RewardSpec.model_validate({"codeFrom": {"path": str(tmp_path)}})
    files = reward_files("grading.score:score", reward)
    assert (tmp_path / "grading" / file in files) is is_compared


@pytest.mark.parametrize("text", ["def broken(:\n", "\0", "import nothing_like_this\n"])
def test_reward_code_that_cannot_be_parsed_is_compared_as_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "rewards.py").write_text(text)
    reward = RewardSpec.model_validate({"codeFrom": {"path": str(tmp_path)}})
    assert reward_files("rewards:score", reward) == [tmp_path / "rewards.py"]


def test_chat_template_of_job_replaces_that_of_model(tmp_path: Path) -> None:
    write_files(tmp_path)
    config = make_config(tmp_path)
    data = config.data.model_copy(update={"chat_template": "{{ messages[0].content }}"})
    with FileDigests(tmp_path / DIGESTS) as digests:
        identity = content_identity(config.model_copy(update={"data": data}), digests)
    assert "chat template" not in identity


def test_input_that_cannot_be_read_is_not_compared(tmp_path: Path) -> None:
    write_files(tmp_path)
    meta = meta_of(make_config(tmp_path), 2, Cursor(), {}, identity=identity_of(tmp_path))
    (tmp_path / "data" / "corpus.jsonl").unlink()
    identity = identity_of(tmp_path)

    assert "corpus of endpoint kb" not in identity
    assert check_compatible(meta, make_config(tmp_path), identity=identity) == []


def test_checkpoint_of_earlier_release_without_identity_is_compatible(tmp_path: Path) -> None:
    write_files(tmp_path)
    config = make_config(tmp_path)
    meta = meta_of(config, 2, Cursor(), {}, identity={"data rows": 1, "model tokenizer.json": "5f"})
    identity = {**identity_of(tmp_path), "data rows": 1}
    assert check_compatible(meta, config, identity=identity) == []
    assert segments_after(meta, config, identity=identity) == ()


# --- the cache of digests


def test_digest_is_cached_until_file_is_written(tmp_path: Path) -> None:
    file, cache = tmp_path / "weights", tmp_path / DIGESTS
    file.write_bytes(b"one")
    with FileDigests(cache) as digests:
        [first] = digests.of([file])
    cache.write_text(cache.read_text().replace(first, "cached"))
    with FileDigests(cache) as digests:
        assert digests.of([file]) == ["cached"]

    times = file.stat()
    file.write_bytes(b"two")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    with FileDigests(cache) as digests:
        [second] = digests.of([file])
    assert second not in (first, "cached")


@pytest.mark.parametrize("content", [b"", b'{"half', b"[]", b'{"/a": 3}'])
def test_invalid_cache_is_rewritten(tmp_path: Path, content: bytes) -> None:
    file, cache = tmp_path / "weights", tmp_path / DIGESTS
    file.write_bytes(b"one")
    cache.write_bytes(content)
    with FileDigests(cache) as digests:
        [digest] = digests.of([file])
    assert json.loads(cache.read_bytes())[str(file)][-1] == digest


def test_cache_that_cannot_be_written_is_not_an_error(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    file.write_bytes(b"one")
    with FileDigests(tmp_path / "absent" / DIGESTS) as digests:
        assert len(digests.of([file])) == 1
