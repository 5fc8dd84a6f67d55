"""`CallFailed`: a call to a service or to user code that returned nothing usable, and why."""

from enum import StrEnum


class FailureCause(StrEnum):
    """Why a retrieval or reward call returned nothing usable."""

    TIMEOUT = "Timeout"
    CONNECTION_REFUSED = "ConnectionRefused"
    """Nothing listens there, or there is no route."""
    CONNECTION_LOST = "ConnectionLost"
    """The connection broke before the answer was complete."""
    DNS_FAILURE = "DnsFailure"
    TLS_FAILURE = "TlsFailure"
    HTTP_STATUS = "HttpStatus"
    SERVICE_ERROR = "ServiceError"
    """The answer came with a good status, but says that something went wrong."""
    BAD_JSON = "BadJson"
    MISSING_FIELD = "MissingField"
    """A field of the answer is missing or has the wrong type."""
    RAISED = "Raised"
    """A Python reward raised an exception."""
    NOT_A_NUMBER = "NotANumber"
    """A reward was NaN, infinite or not a number at all."""


class CallFailed(Exception):
    """One call failed; the caller adds the source as a SampleFailed."""

    def __init__(self, cause: FailureCause, detail: str, *, transient: bool = False) -> None:
        super().__init__(f"{cause}: {detail}")
        self.cause = cause
        self.detail = detail
        self.transient = transient
        """Whether a retry may succeed."""
