"""`TrainerError`: an error with the exit code and the message that the operator shows."""

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode


class TrainerError(Exception):
    """Ends the attempt with this exit code; the message names the cause and the remedy."""

    def __init__(self, exit_code: ExitCode, message: str, short_of: Shortage | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.short_of = short_of
        """The memory term that was too small, if memory ran out."""

    def __reduce__(self) -> tuple[type["TrainerError"], tuple[object, ...]]:
        return type(self), (self.exit_code, str(self), self.short_of)
