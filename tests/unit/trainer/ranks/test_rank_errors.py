"""What the driver makes of an error inside a rank."""

import pytest
from ray.exceptions import RayTaskError

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.ranks.ranks import task_error

CUDA = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def told(function: str, line: str) -> TrainerError:
    text = f"Traceback\n{line}\n" + "frame after frame\n" * 500
    found = task_error(RayTaskError(function, text, RuntimeError("wrapped")))
    assert isinstance(found, TrainerError)
    return found


@pytest.mark.parametrize(
    ("function", "line", "code", "short_of"),
    [
        ("RankActor.step", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.STEP),
        ("RankActor.build", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.TRAINING_STATE),
        ("ray::RankActor.build()", CUDA, ExitCode.CUDA_OUT_OF_MEMORY, Shortage.TRAINING_STATE),
        ("RankActor.save", "std::bad_alloc", ExitCode.HOST_OUT_OF_MEMORY, Shortage.TRAINER_HOST),
    ],
)
def test_the_reason_is_kept_whole_and_the_call_tells_what_was_short(
    function: str, line: str, code: ExitCode, short_of: Shortage
) -> None:
    found = told(function, line)
    assert line in str(found)
    assert (found.exit_code, found.short_of) == (code, short_of)


def test_other_errors_stay_the_programs_own() -> None:
    assert told("RankActor.step", "KeyError: 'x'").exit_code is ExitCode.PROGRAM_ERROR
