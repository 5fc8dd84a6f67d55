"""What `raggrpo rag-test` measures: the trainer's process writes it, the command shows it (A15)."""

from .base import ApiModel


class Variant(ApiModel):
    """One call whose body differs from the job's in one thing."""

    name: str
    passages: int = 0
    seconds: float = 0.0
    failure: str = ""


class LoadLevel(ApiModel):
    """A few seconds with so many calls in flight, without batches, retries and memory."""

    in_flight: int
    answered: int
    per_second: float
    """Answers."""
    p50: float | None
    """Seconds of the answered calls, as the other percentiles; None without an answer."""
    p95: float | None
    p99: float | None
    failures: dict[str, int]
    """Number by cause."""


class StepTest(ApiModel):
    """All that one training step asks, in the way in which training asks it."""

    questions: int
    seconds: float
    failures: dict[str, int]
    """Number by cause."""


class EndpointTest(ApiModel):
    """One endpoint; all but the first call is left out after a first call that failed."""

    name: str
    url: str
    failure: str = ""
    """Why the first call failed."""
    first_seconds: float = 0.0
    variants: list[Variant] = []
    levels: list[LoadLevel] = []
    saturates_at: int = 0
    """Calls in flight from which on more of them bring no more answers; 0: not reached."""
    step: StepTest | None = None


class RagTest(ApiModel):
    """All endpoints that the operator does not run itself."""

    endpoints: list[EndpointTest]
