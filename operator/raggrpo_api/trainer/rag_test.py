"""Results of `raggrpo rag-test`, written by a trainer process."""

from raggrpo_api.fields.base import ApiModel


class Variant(ApiModel):
    """A call whose body differs from the job's in one field."""

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
    """Percentiles of the latency of successful calls, in seconds; None without such calls."""
    p95: float | None
    p99: float | None
    failures: dict[str, int]
    """Count by cause."""


class StepTest(ApiModel):
    """All queries of a training step, called as in training."""

    questions: int
    seconds: float
    failures: dict[str, int]
    """Count by cause."""


class EndpointTest(ApiModel):
    """Results of an endpoint; if the first call fails, the other measurements are skipped."""

    name: str
    url: str
    failure: str = ""
    """Why the first call failed."""
    first_seconds: float = 0.0
    variants: list[Variant] = []
    levels: list[LoadLevel] = []
    saturates_at: int = 0
    """Number of concurrent calls at which throughput stops growing; 0: not reached."""
    step: StepTest | None = None


class RagTest(ApiModel):
    """Results of all endpoints that are not managed."""

    endpoints: list[EndpointTest]
