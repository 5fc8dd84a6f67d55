"""`TrainerError`: an error with an exit code and the message that the operator shows."""

from raggrpo_api.fields.text import printable
from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode


class TrainerError(Exception):
    """An error that ends the attempt with `exit_code`; the message has the cause and the remedy."""

    def __init__(self, exit_code: ExitCode, message: str, short_of: Shortage | None = None) -> None:
        super().__init__(printable(message))
        self.exit_code = exit_code
        self.short_of = short_of
        """The sizing term that was too small; None if memory did not run out."""

    def __reduce__(self) -> tuple[type["TrainerError"], tuple[object, ...]]:
        return type(self), (self.exit_code, str(self), self.short_of)
