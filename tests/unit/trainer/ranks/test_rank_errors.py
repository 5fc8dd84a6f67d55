"""Translation of errors that a rank raises."""

import pytest
from ray.exceptions import RayTaskError

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.ranks.ranks import task_error

CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def translated(function: str, line: str) -> TrainerError:
    text = f"Traceback\n{line}\n" + "frame after frame\n" * 500
    error = task_error(RayTaskError(function, text, RuntimeError("wrapped")))
    assert isinstance(error, TrainerError)
    return error


@pytest.mark.parametrize(
    ("function", "line", "code", "short_of"),
    [
        ("RankActor.step", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.STEP),
        ("RankActor.build", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.TRAINING_STATE),
        ("ray::RankActor.build()", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.TRAINING_STATE),
        ("RankActor.save", "std::bad_alloc", ExitCode.HOST_OUT_OF_MEMORY, Shortage.TRAINER_HOST),
    ],
)
def test_rank_out_of_memory_error_names_line_and_memory_term(
    function: str, line: str, code: ExitCode, short_of: Shortage
) -> None:
    error = translated(function, line)
    assert line in str(error)
    assert (error.exit_code, error.short_of) == (code, short_of)


def test_unrecognized_rank_errors_are_reported_as_program_errors() -> None:
    assert translated("RankActor.step", "KeyError: 'x'").exit_code is ExitCode.PROGRAM_ERROR
