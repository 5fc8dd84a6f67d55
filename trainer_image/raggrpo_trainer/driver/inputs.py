"""The inputs of a training run: tokenizer, prompts, folders."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from raggrpo_api import names
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_trainer.checkpoint.identity import DIGESTS, FileDigests, content_identity
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts, stage_files
from raggrpo_trainer.data.tokenizer import Tokenizer, load_tokenizer


class Inputs(NamedTuple):
    """Tokenizer and prompts of a job."""

    tokenizer: Tokenizer
    train_prompts: list[Prompt]
    validation_prompts: list[Prompt]
    identity: Mapping[str, object]
    """Inputs that a checkpoint depends on: digests of files, and the number of prompts."""


def read_inputs(config: TrainerConfig) -> Inputs:
    """Read tokenizer and prompts, from local copies if `data.stageToLocalDisk` is set.

    Hash all files that checkpoints depend on, unless a cached digest is valid.
    """
    data = config.data
    tokenizer = load_tokenizer(config.model.path)

    def read(files: Sequence[str]) -> list[Prompt]:
        if data.stage_to_local_disk:
            files = stage_files(files, Path(tempfile.gettempdir()) / "raggrpo-data")
        return read_prompts(files, data, config.retrieval, config.reward, config.rollout.agent)

    train_prompts = read(data.train_files)
    with FileDigests(Path(config.checkpoint.path) / DIGESTS) as digests:
        identity = content_identity(config, digests) | {"data rows": len(train_prompts)}
    return Inputs(tokenizer, train_prompts, read(data.validation_files), identity)


def attempt_folder(config: TrainerConfig) -> Path:
    """Return the folder of this attempt's logs."""
    return Path(config.monitoring.log_dir) / names.ATTEMPTS_DIR / str(config.attempt.number)
