"""What Progress says of the error that ends an attempt. Decides nothing."""

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Failure
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.out_of_memory import Kind, out_of_memory


def failure_of(error: Exception) -> Failure:
    """Return exit code, message and what was short of memory, if that is why."""
    if isinstance(error, TrainerError):
        short_of = str(error.short_of or "")
        return Failure(exit_code=error.exit_code, message=str(error)[:1000], short_of=short_of)
    found = out_of_memory(error)
    if found is not None and found.kind is Kind.HOST:  # the driver has no device
        code, short_of = ExitCode.HOST_OUT_OF_MEMORY, str(Shortage.HEAD_HOST)
        message = f"the driver: {found.line}: raise resources.memory"
        return Failure(exit_code=code, message=message[:1000], short_of=short_of)
    if found is not None:
        return Failure(exit_code=ExitCode.CUDA_OUT_OF_MEMORY, message=found.line)
    message = f"{type(error).__name__}: {error}"[:1000]
    return Failure(exit_code=ExitCode.PROGRAM_ERROR, message=message)
