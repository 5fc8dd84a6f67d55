"""Translation of errors that a rank raises."""

import pytest
import torch
from ray.exceptions import RayTaskError

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.ranks.ranks import task_error

CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def translated(function: str, line: str, cause: Exception) -> TrainerError:
    """Translate the error that awaiting a call raises: it has no attribute `function_name`."""
    text = f"{function} (pid=7)\nTraceback\n{line}\n" + "frame after frame\n" * 500
    error = task_error(RayTaskError(function, text, cause).as_instanceof_cause())
    assert isinstance(error, TrainerError)
    return error


@pytest.mark.parametrize(
    ("method", "line", "code", "short_of"),
    [
        ("step", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.STEP),
        ("build", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.TRAINING_STATE),
        ("save", "std::bad_alloc", ExitCode.HOST_OUT_OF_MEMORY, Shortage.TRAINER_HOST),
    ],
)
@pytest.mark.parametrize("cause", [torch.OutOfMemoryError("CUDA out of memory"), ValueError()])
def test_rank_out_of_memory_error_names_line_and_memory_term(
    method: str, line: str, code: ExitCode, short_of: Shortage, cause: Exception
) -> None:
    error = translated(f"ray::rank-1-0:RankActor.{method}()", line, cause)
    assert line in str(error)
    assert (error.exit_code, error.short_of) == (code, short_of)


def test_unrecognized_rank_errors_are_reported_as_program_errors() -> None:
    error = translated("ray::RankActor.step()", "KeyError: 'x'", KeyError("x"))
    assert error.exit_code is ExitCode.PROGRAM_ERROR
