"""The fake runtime with outages of a service that the job calls."""

from dataclasses import dataclass, field
from datetime import datetime

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_api.trainer.progress import EndpointOutage, Progress, Stage
from support.fakes.fake_runtime import LOAD_SECONDS, T0, FakeRuntime, failed_check

OUTAGE = EndpointOutage(
    name="endpoint actor-8b",
    since="2026-11-21T12:01:00+00:00",
    cause="ConnectionRefused: Connect call failed",
)
SERVICE_DOWN_RESULT = failed_check(
    CheckId.RETRIEVAL_REACHABLE,
    "endpoint kb (http://kb:8000/retrieve): ConnectionRefused: Connect call failed",
    ExitCode.RETRIEVAL_UNAVAILABLE,
)
"""Preflight result while the service is down."""
Interval = tuple[float, float]
"""Start and end of an outage, in seconds after the job's creation."""


@dataclass
class FakeServiceOutage(FakeRuntime):
    """Fake runtime whose driver waits, and reports it, while the service is down."""

    down: list[Interval] = field(default_factory=list)
    _looked: datetime = T0
    _waited: float = 0.0

    @property
    def is_down(self) -> bool:
        """Whether the service is down now."""
        second = (self.now - T0).total_seconds()
        return any(start <= second < end for start, end in self.down)

    def _move(self) -> None:
        passed, self._looked = self.now - self._looked, self.now
        attempt = self.attempt
        has_loaded = attempt is not None and (self.now - attempt.started).seconds > LOAD_SECONDS
        if attempt is not None and attempt.is_alive and has_loaded and self.is_down:
            attempt.started += passed
            self._waited += passed.total_seconds()
        super()._move()

    def _progress(self) -> Progress | None:
        if (progress := super()._progress()) is None:
            return None
        changes = {"waited_seconds": self._waited}
        if self.is_down and progress.started_from_step is not None:
            changes |= {"stage": Stage.WAITING_FOR_ENDPOINT, "waiting_for": [OUTAGE]}
        return progress.model_copy(update=changes)
