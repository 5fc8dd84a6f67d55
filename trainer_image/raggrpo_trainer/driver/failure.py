"""Convert the error that ended an attempt into Progress.failure."""

from raggrpo_api.fields.text import error_first
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Failure
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.out_of_memory import Kind, out_of_memory


def to_failure(error: Exception) -> Failure:
    """Return a Failure with exit code, message and the sizing term that was too small, if known."""
    if isinstance(error, TrainerError):
        short_of = str(error.short_of or "")
        return Failure(exit_code=error.exit_code, message=str(error)[:1000], short_of=short_of)
    shortage = out_of_memory(error)
    if shortage is not None and shortage.kind is Kind.HOST:  # the driver allocates only host memory
        message = f"the driver ran out of memory: {shortage.line}; increase resources.memory"
        return Failure(
            exit_code=ExitCode.HOST_OUT_OF_MEMORY,
            message=message[:1000],
            short_of=str(Shortage.HEAD_HOST),
        )
    if shortage is not None:
        return Failure(exit_code=ExitCode.CUDA_OUT_OF_MEMORY, message=shortage.line)
    message = error_first(f"{type(error).__name__}: {error}", 1000)
    return Failure(exit_code=ExitCode.PROGRAM_ERROR, message=message)
