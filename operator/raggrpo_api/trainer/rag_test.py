"""Results of `raggrpo rag-test`, written by a trainer process."""

from typing import Final

from raggrpo_api.fields.base import ApiModel

AS_CONFIGURED: Final = "as configured"
"""Name of the variant with the body that the job sends."""


class Variant(ApiModel):
    """Result of a call whose body differs in at most one field from the body that the job sends."""

    name: str
    passages: int = 0
    seconds: float = 0.0
    failure: str = ""


class LoadLevel(ApiModel):
    """A measurement with a fixed number of concurrent calls, without batching, retries or cache."""

    in_flight: int
    answered: int
    per_second: float
    """Successful calls per second."""
    p50: float | None
    """Median latency of successful calls in seconds, or None without successful calls."""
    p95: float | None
    """95th percentile of the latency of successful calls, in seconds."""
    p99: float | None
    """99th percentile of the latency of successful calls, in seconds."""
    failures: dict[str, int]
    """Number of failed calls by cause."""


class StepTest(ApiModel):
    """All queries of a training step, called as in training."""

    questions: int
    seconds: float
    failures: dict[str, int]
    """Number of failed calls by cause."""


class EndpointTest(ApiModel):
    """Results of one endpoint; if the first call fails, the other measurements are skipped."""

    name: str
    url: str
    failure: str = ""
    """Why the first call failed, or ""."""
    first_seconds: float = 0.0
    variants: list[Variant] = []
    levels: list[LoadLevel] = []
    saturates_at: int = 0
    """Number of concurrent calls at which throughput stops growing; 0: not reached."""
    step: StepTest | None = None


class RagTest(ApiModel):
    """Results of all endpoints that are not managed."""

    endpoints: list[EndpointTest]
