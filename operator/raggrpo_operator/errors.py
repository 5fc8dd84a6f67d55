"""Errors that a runtime raises, and whether a retry can help."""


class OperatorError(Exception):
    """An operation on the cluster, Ray or a process failed."""

    retryable = True


class TransientError(OperatorError):
    """Retrying may help; the caller chooses the delay."""


class Unreachable(TransientError):
    """A server of the job did not respond, or its response is unreadable."""


class KeyMissing(TransientError):
    """An installation key is not mounted; a person must restore the Secret."""


class KeyNotMounted(KeyMissing):
    """An installation key is only in the operator's memory."""


class PermanentError(OperatorError):
    """Retrying cannot help until a person has fixed the cause."""

    retryable = False


class AccessDenied(OperatorError):
    """HTTP 401 or 403. A server of the job that returns one of them counts as unreachable."""


class QuotaExceeded(AccessDenied):
    """HTTP 403 because a ResourceQuota does not admit the object; quota may become available."""


class NotFound(OperatorError):
    """HTTP 404: the object or its kind does not exist."""


class Conflict(OperatorError):
    """HTTP 409: the object already exists, or it has changed since it was read."""


class AlreadyExists(Conflict):
    """HTTP 409 on create: an object of this kind and name exists."""


class NameTaken(OperatorError):
    """An object of another owner has a name that the job needs; the object is not changed."""
