"""`python -m raggrpo_trainer.checkpoint_export`: write a Hugging Face folder from a checkpoint.

Works in one process on a CPU, also while the job is running or after it has failed: the checkpoint
is only read. Needs host memory for the model in fp32 and once more in its own data type.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from raggrpo_api.fields.text import one_line
from raggrpo_api.foreign_files import remove_folder
from raggrpo_api.spec.lora import LoraSpec
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.checkpoint.folder import Checkpoint, is_complete, sync_tree
from raggrpo_trainer.checkpoint.identity import WEIGHTS, FileDigests, weights_digest
from raggrpo_trainer.checkpoint.selection import BEST, NEWEST, select_checkpoint
from raggrpo_trainer.errors import TrainerError

MAX_PROBLEM = 500
"""Characters of an error of the file system in a message."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Export the selected checkpoint, print its step and score as JSON; return the exit code."""
    parser = argparse.ArgumentParser(prog="raggrpo_trainer.checkpoint_export", description=__doc__)
    parser.add_argument("path", type=Path, help="checkpoint folder of a job, or one checkpoint")
    parser.add_argument("output", type=Path, help="folder to create")
    parser.add_argument("--step", default=NEWEST, help=f"{NEWEST}, {BEST} or a step number")
    parser.add_argument("--model", default="", help="the job's initial model (default: recorded)")
    options = parser.parse_args(arguments)
    try:
        checkpoint = select_checkpoint(options.path, options.step)
        export_checkpoint(checkpoint, options.output, model=options.model)
    except TrainerError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    except (OSError, ValueError) as error:
        problem = one_line(str(error), MAX_PROBLEM)
        sys.stderr.write(f"cannot export the checkpoint: {problem}; specify another path\n")
        return ExitCode.CONFIG_ERROR
    summary = {"step": checkpoint.name.step, "score": checkpoint.marker.score}
    sys.stdout.write(json.dumps(summary | {"scored_by": checkpoint.marker.scored_by}) + "\n")
    return 0


def export_checkpoint(checkpoint: Checkpoint, output: Path, *, model: str = "") -> None:
    """Write the checkpoint's model to a new folder; on errors the folder does not exist.

    `model` is the folder of the initial model, which has the architecture and the tokenizer; by
    default the one that the checkpoint records. Raises TrainerError CONFIG_ERROR if `output` exists
    or the model is missing or not that of the adapters, and CHECKPOINT_WRITE_FAILED if a file
    cannot be read or written.
    """
    source = Path(model or checkpoint.meta.model_path)
    if not (source / "config.json").is_file():
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"{source} is not the folder of the initial model (no config.json): specify --model",
        )
    if output == Path():
        raise TrainerError(ExitCode.CONFIG_ERROR, "the output is empty: specify a new folder")
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise TrainerError(ExitCode.CONFIG_ERROR, f"{output} exists: specify a new folder")
    draft = output.with_name(f"{output.name}.tmp")
    try:
        checkpoint.verify()
        _require_base(checkpoint, source)
        remove_folder(draft, ignore_errors=True)  # left by a killed export
        draft.mkdir(parents=True)
        _write_model(checkpoint, source, draft)
        sync_tree(draft)
        draft.replace(output)
    except (OSError, ValueError) as error:
        raise _read_or_write_error(checkpoint, output, error) from error
    finally:
        remove_folder(draft, ignore_errors=True)


def _require_base(checkpoint: Checkpoint, source: Path) -> None:
    """Raise TrainerError CONFIG_ERROR if a checkpoint of adapters belongs to other weights."""
    values = checkpoint.meta.resume_values
    if "training.lora" not in values:
        return
    digest = weights_digest(source, FileDigests(checkpoint.folder))  # not entered: without cache
    if digest != values.get(WEIGHTS):
        raise TrainerError(
            ExitCode.CONFIG_ERROR,
            f"the model weights in {source} differ from those that the adapters in "
            f"{checkpoint.folder} were trained with: specify the initial model with --model",
        )


def _write_model(checkpoint: Checkpoint, source: Path, output: Path) -> None:
    from transformers.utils import logging

    from raggrpo_trainer.checkpoint.safe_load import SafeReader, load_into
    from raggrpo_trainer.policy.lora import merged_parameters
    from raggrpo_trainer.policy.lora_folder import write_lora_folder
    from raggrpo_trainer.policy.model import load_model
    from raggrpo_trainer.weights.export import folder_dtype, write_folder

    def load(state: dict[str, Any]) -> None:
        load_into({"model": state}, SafeReader(checkpoint.folder))

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # reports have escapes; `load_model` checks what it loads
    warnings.filterwarnings("ignore", message="torch.distributed is disabled")
    if (lora := checkpoint.meta.resume_values.get("training.lora")) is not None:
        write_lora_folder(source, output, LoraSpec.model_validate(lora), load)
        return
    model = load_model(str(source), attention=None)
    load(model.state_dict())
    parameters = merged_parameters(model, folder_dtype(source))
    write_folder(model, parameters, source, output, writes=True)


def _read_or_write_error(checkpoint: Checkpoint, output: Path, error: Exception) -> TrainerError:
    message = f"cannot export {checkpoint.folder} to {output}: {error}"
    if not is_complete(checkpoint.folder):
        message = f"the job removed {checkpoint.folder} during the export: repeat the command"
    return TrainerError(ExitCode.CHECKPOINT_WRITE_FAILED, message)


if __name__ == "__main__":
    sys.exit(main())
