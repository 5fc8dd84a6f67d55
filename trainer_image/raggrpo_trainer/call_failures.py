"""`CallFailed`: the exception for a failed call to a service or to user code."""

from enum import StrEnum

from raggrpo_api.fields.text import printable

MAX_DETAIL = 4096
"""Maximum characters of a detail; that of a response may have its size."""


class FailureCause(StrEnum):
    """Cause of a failed call."""

    TIMEOUT = "Timeout"
    CONNECTION_REFUSED = "ConnectionRefused"
    """Nothing listens at the address, or there is no route to it."""
    CONNECTION_LOST = "ConnectionLost"
    """The connection broke before the response was complete."""
    DNS_FAILURE = "DnsFailure"
    TLS_FAILURE = "TlsFailure"
    HTTP_STATUS = "HttpStatus"
    SERVICE_ERROR = "ServiceError"
    """The response has a status of 2xx but reports an error."""
    BAD_JSON = "BadJson"
    MISSING_FIELD = "MissingField"
    """A field of the response is missing or has the wrong type."""
    BAD_URL = "BadUrl"
    """Values of placeholders would select another path of the URL."""
    RAISED = "Raised"
    """User code raised an exception."""
    EXITED = "Exited"
    """The process of user code exited."""
    NO_MODEL_CALL = "NoModelCall"
    """An agent returned a result without a completion by the policy."""
    MALFORMED_TOOL_CALL = "MalformedToolCall"
    """An agent failed after a reply of the policy that could not be parsed."""
    REQUEST_REJECTED = "RequestRejected"
    """An agent failed after the gateway rejected one of its requests."""
    FORWARD_FAILED = "ForwardFailed"
    """An agent failed after a call of a model that is not trained had failed."""
    FORWARD_TIMEOUT = "ForwardTimeout"
    """An agent failed after the endpoint of a model that is not trained had not answered."""
    MAX_TURNS = "MaxTurns"
    CONTEXT_LENGTH = "ContextLength"
    MISSING_LOGPROBS = "MissingLogprobs"
    """An engine returned no logprob for a token."""
    NOT_A_NUMBER = "NotANumber"
    """The result is NaN, infinite, too large or not a number."""
    WRONG_TYPE = "WrongType"
    """User code returned a value of the wrong type."""


class CallFailed(Exception):
    """A call failed; `cause` and `detail` describe the failure."""

    def __init__(
        self, cause: FailureCause, detail: str, *, transient: bool = False, status: int = 0
    ) -> None:
        shown = printable(detail[:MAX_DETAIL])
        super().__init__(f"{cause}: {shown}")
        self.cause = cause
        self.detail = shown
        self.transient = transient
        """Whether a retry may succeed."""
        self.status = status
        """Status of the HTTP response if it is the cause, else 0."""
