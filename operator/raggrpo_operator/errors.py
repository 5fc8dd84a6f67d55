"""`RuntimeTrouble`: what a runtime could not observe or do right now, and whether to try again."""


class RuntimeTrouble(Exception):
    """Trouble with the cluster, Ray or a process; the caller decides about the delay."""

    def __init__(self, message: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        self.retryable = retryable


class AccessRefused(RuntimeTrouble):
    """HTTP 401 or 403: a condition for people, never a reason to stop an attempt."""


class NotThere(RuntimeTrouble):
    """HTTP 404: the object, or its kind, does not exist."""


class Conflict(RuntimeTrouble):
    """HTTP 409: it exists already, or it changed since it was read."""
