"""Results of `raggrpo rag-test`, written by a trainer process and shown by the command."""

from raggrpo_api.fields.base import ApiModel


class Variant(ApiModel):
    """One call whose body differs from the job's in a single point."""

    name: str
    passages: int = 0
    seconds: float = 0.0
    failure: str = ""


class LoadLevel(ApiModel):
    """A few seconds at a fixed number of calls in flight, without batching, retries or caching."""

    in_flight: int
    answered: int
    per_second: float
    """Answered calls."""
    p50: float | None
    """Latency of answered calls in seconds, like the other percentiles; None if there are none."""
    p95: float | None
    p99: float | None
    failures: dict[str, int]
    """Count by cause."""


class StepTest(ApiModel):
    """All queries of one training step, issued the way training issues them."""

    questions: int
    seconds: float
    failures: dict[str, int]
    """Count by cause."""


class EndpointTest(ApiModel):
    """One endpoint; if the first call fails, everything after it is skipped."""

    name: str
    url: str
    failure: str = ""
    """Why the first call failed."""
    first_seconds: float = 0.0
    variants: list[Variant] = []
    levels: list[LoadLevel] = []
    saturates_at: int = 0
    """Calls in flight beyond which throughput no longer grows; 0: not reached."""
    step: StepTest | None = None


class RagTest(ApiModel):
    """All endpoints the operator does not run itself."""

    endpoints: list[EndpointTest]
