"""Errors of a runtime: what it could not observe or do, and whether trying again helps."""


class OperatorError(Exception):
    """The cluster, Ray or a process failed to do something; `retryable` says whether to retry."""

    retryable = True


class TransientError(OperatorError):
    """Trying again, after a delay that the caller chooses, may help."""


class Unreachable(TransientError):
    """A job's own server gave no answer, or none that can be read: for decisions it is the same."""


class PermanentError(OperatorError):
    """Retrying is pointless until something has been fixed by hand."""

    retryable = False


class AccessDenied(OperatorError):
    """HTTP 401 or 403: a condition for people. From a job's own server it counts as no answer."""


class NotFound(OperatorError):
    """HTTP 404: the object, or its kind, does not exist."""


class Conflict(OperatorError):
    """HTTP 409: it exists already, or it changed since it was read."""


class AlreadyExists(Conflict):
    """HTTP 409 on create: an object of this kind has the name."""


class NameTaken(OperatorError):
    """An object that is not the job's has a name the job needs; it is left as it is."""
