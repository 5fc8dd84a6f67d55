"""The fake runtime with a service that jobs call and that is down for a while."""

from dataclasses import dataclass, field
from datetime import datetime

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.preflight import CheckId
from raggrpo_api.trainer.progress import EndpointOutage, Progress, Stage
from support.fakes.fake_runtime import LOAD_SECONDS, T0, FakeRuntime, failed_check

DOWN = EndpointOutage(
    name="endpoint actor-8b",
    since="2026-11-21T12:01:00+00:00",
    cause="ConnectionRefused: Connect call failed",
)
REFUSES = failed_check(
    CheckId.RETRIEVAL_REACHABLE,
    "endpoint kb (http://kb:8000/retrieve): ConnectionRefused: Connect call failed",
    ExitCode.RETRIEVAL_UNAVAILABLE,
)
"""What preflight finds while the service is down."""
Between = tuple[float, float]
"""Seconds after the job's creation between which the service is down."""


@dataclass
class FakeServiceOutage(FakeRuntime):
    """No step is made while the service is down; the driver says that it waits."""

    down: list[Between] = field(default_factory=list)
    _looked: datetime = T0
    _waited: float = 0.0

    @property
    def is_down(self) -> bool:
        """Tell whether the service answers nobody now."""
        second = (self.now - T0).total_seconds()
        return any(begin <= second < end for begin, end in self.down)

    def _move(self) -> None:
        passed, self._looked = self.now - self._looked, self.now
        attempt = self.attempt
        has_loaded = attempt is not None and (self.now - attempt.started).seconds > LOAD_SECONDS
        if attempt is not None and attempt.is_alive and has_loaded and self.is_down:
            attempt.started += passed
            self._waited += passed.total_seconds()
        super()._move()

    def _progress(self) -> Progress | None:
        if (found := super()._progress()) is None:
            return None
        told = {"waited_seconds": self._waited}
        if self.is_down and found.started_from_step is not None:
            told |= {"stage": Stage.WAITING_FOR_ENDPOINT, "waiting_for": [DOWN]}
        return found.model_copy(update=told)
