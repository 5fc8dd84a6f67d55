"""Checks Paths, CheckpointWritable, CheckpointSpace and CheckpointFree."""

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from raggrpo_api import names
from raggrpo_api.memory.arithmetic import EXPORT_BYTES_PER_PARAMETER, GIB
from raggrpo_api.memory.parameters import checkpoint_bytes
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId, Facts
from raggrpo_trainer.checkpoint import backup as checkpoint_backup
from raggrpo_trainer.checkpoint.fence import live_job
from raggrpo_trainer.checkpoint.file_digests import file_sizes
from raggrpo_trainer.checkpoint.folder import CheckpointName
from raggrpo_trainer.errors import TrainerError

from .finding import Finding, finding_for, not_evaluated


def check_paths(config: TrainerConfig) -> Finding:
    """Check that all paths that the job reads exist and are readable."""
    paths = list(_read_paths(config))
    problems = []
    for field, text in paths:
        path = Path(text)
        if not path.exists():
            problems.append(f"{field} {text}: not found; mount its volume, or correct the path")
        elif not os.access(path, os.R_OK):
            problems.append(f"{field} {text}: not readable by user {os.getuid()}; make it readable")
    return finding_for(CheckId.PATHS, problems, f"all {len(paths)} paths exist and are readable")


def corpus_bytes(config: TrainerConfig) -> int:
    """Return the total size of the corpora of managed retrievers."""
    files = [Path(managed.corpus) for managed in config.retrieval.managed.values()]
    return sum(file.stat().st_size for file in files if file.is_file())


def check_writable(config: TrainerConfig, env: Mapping[str, str]) -> Finding:
    """Create, flush and delete a file in each folder that the job writes to; list the backups."""
    problems = []
    for field, text in _written_paths(config):
        try:
            _probe_write(Path(text))
        except OSError as error:
            problems.append(
                f"{field} {text}: not writable by user {os.getuid()} ({error.strerror}); "
                "make it writable"
            )
    if not problems:
        try:
            _probe_hard_link(Path(config.checkpoint.path))
        except OSError as error:
            problems.append(
                f"checkpoint.path {config.checkpoint.path}: its volume does not support hard links "
                f"({error.strerror}), which attempts need to claim the folder: use another volume"
            )
    if url := config.checkpoint.backup.url:
        try:
            checkpoint_backup.check_readable(url, env.get(names.ENV_CHECKPOINT_KEY, ""))
        except TrainerError as error:
            problems.append(str(error))
    return finding_for(CheckId.CHECKPOINT_WRITABLE, problems, config.checkpoint.path)


def check_space(config: TrainerConfig, facts: Facts) -> Finding:
    """Compare the free space with the size of the checkpoints that will be added."""
    if not facts.parameters:
        return not_evaluated(CheckId.CHECKPOINT_SPACE, "requires the size of the model")
    spec = config.checkpoint
    path = Path(spec.path)
    count = spec.keep_last + 1 + spec.keep_best
    folders = [path / str(name) for name in CheckpointName.all_in(path)]
    existing = sum(sum(file_sizes(folder).values()) for folder in folders)
    exported = EXPORT_BYTES_PER_PARAMETER * facts.parameters
    needed = max(0, count * checkpoint_bytes(config.training, facts) - existing) + exported
    free = shutil.disk_usage(_nearest_existing(path)).free
    evidence = f"{free / GIB:.1f} GiB free at {path}, {needed / GIB:.1f} GiB needed"
    remedy = "free up disk space, or decrease checkpoint.keepLast"
    problem = f"{evidence} for {count} checkpoints: {remedy}"
    return finding_for(CheckId.CHECKPOINT_SPACE, [problem] if free < needed else [], evidence)


def check_free(config: TrainerConfig) -> Finding:
    """Check that no other running job writes to the checkpoint folder."""
    path = Path(config.checkpoint.path)
    try:
        holder = live_job(path, config.attempt.job_uid)
    except (OSError, TrainerError) as error:
        problem = f"{path}/fence cannot be read ({error}): check the volume"
        return finding_for(CheckId.CHECKPOINT_FREE, [problem], "")
    problems = []
    if holder is not None:
        problems = [
            f"{path} is in use by job {holder}: delete or suspend that job, or set another "
            "checkpoint.path"
        ]
    return finding_for(
        CheckId.CHECKPOINT_FREE,
        problems,
        f"no other job writes to {path}",
        ExitCode.CHECKPOINT_PATH_IN_USE,
    )


def _read_paths(config: TrainerConfig) -> Iterator[tuple[str, str]]:
    yield "model.path", config.model.path
    for number, file in enumerate(config.data.train_files):
        yield f"data.trainFiles[{number}]", file
    for number, file in enumerate(config.data.validation_files):
        yield f"data.validationFiles[{number}]", file
    for number, endpoint in enumerate(config.retrieval.endpoints):
        if endpoint.managed is not None:
            yield f"retrieval.endpoints[{number}].managed.corpus", endpoint.managed.corpus
            if endpoint.managed.embedding is not None:
                place = f"retrieval.endpoints[{number}].managed.embedding.path"
                yield place, endpoint.managed.embedding.path
            if endpoint.managed.vectors:
                yield f"retrieval.endpoints[{number}].managed.vectors", endpoint.managed.vectors
    if config.reward.code_from.path:
        yield "reward.codeFrom.path", config.reward.code_from.path
    if config.rollout.agent is not None and config.rollout.agent.interpreter:
        yield "rollout.agent.interpreter", config.rollout.agent.interpreter


def _written_paths(config: TrainerConfig) -> Iterator[tuple[str, str]]:
    yield "checkpoint.path", config.checkpoint.path
    if not Path(config.monitoring.log_dir).is_relative_to(config.checkpoint.path):
        yield "monitoring.logDir", config.monitoring.log_dir
    for number, endpoint in enumerate(config.retrieval.endpoints):
        if endpoint.managed is not None and endpoint.managed.index_path:
            place = f"retrieval.endpoints[{number}].managed.indexPath"
            yield place, endpoint.managed.index_path


def _probe_write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    trial = folder / f".preflight-{uuid.uuid4().hex}"
    try:
        with trial.open("xb") as file:
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
    finally:
        trial.unlink(missing_ok=True)


def _probe_hard_link(folder: Path) -> None:
    """Create a hard link, which attempts need to claim the folder atomically. Raises OSError."""
    file, link = (folder / f".preflight-{uuid.uuid4().hex}" for _ in range(2))
    try:
        file.touch()
        os.link(file, link)
    finally:
        file.unlink(missing_ok=True)
        link.unlink(missing_ok=True)


def _nearest_existing(path: Path) -> Path:
    return path if path.exists() else _nearest_existing(path.parent)
