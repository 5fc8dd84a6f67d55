"""`TrainerError`: a failure with the exit code and message that the operator shows."""

from raggrpo_api.exit_codes import ExitCode


class TrainerError(Exception):
    """Ends the attempt with this exit code; the message says where to look and what to do."""

    def __init__(self, exit_code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.exit_code = exit_code
