"""`Outages`: the services that are down, and how long steps wait for services.

    with outages.reporting():     # the step needs the services now
        await collect(batch)

Outages outside such a block, for example while passages are prefetched, delay no step and are not
reported.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from raggrpo_api.trainer.progress import EndpointOutage

MAX_NAME_CHARACTERS = 128
MAX_CAUSE_CHARACTERS = 256
"""Length limits of the fields of `EndpointOutage`."""

Report = Callable[[Sequence[EndpointOutage]], None]
Needs = Callable[[str], bool]
"""Predicate: whether the step needs the service with this name."""


def every_service(_: str) -> bool:
    """Return True: the step needs every service."""
    return True


class Outages:
    """Tracks outages; reports the outages that the step waits for whenever they change."""

    def __init__(
        self,
        report: Report = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._report = report
        self._clock, self._wall_clock = clock, wall_clock
        self._down: dict[str, EndpointOutage] = {}
        self._needs: list[Needs] = []
        """One predicate for each open `reporting` block."""
        self._waiting_since: float | None = None
        self._waited = 0.0

    @property
    def waited_seconds(self) -> float:
        """Total seconds that steps have waited for services."""
        current = 0.0 if self._waiting_since is None else self._clock() - self._waiting_since
        return self._waited + current

    def working_time(self) -> float:
        """Return the time in seconds of a clock that is paused while a step waits for services."""
        return self._clock() - self.waited_seconds

    def mark_down(self, name: str, cause: str) -> None:
        """Record that a service is down; a known outage keeps its start time."""
        if name not in self._down:
            since = self._wall_clock().isoformat(timespec="seconds")
            self._down[name] = EndpointOutage(
                name=name[:MAX_NAME_CHARACTERS], since=since, cause=cause[:MAX_CAUSE_CHARACTERS]
            )
            self._update()

    def mark_up(self, name: str) -> None:
        """Record that a service is up again."""
        if self._down.pop(name, None) is not None:
            self._update()

    @contextmanager
    def reporting(self, needs: Needs = every_service) -> Iterator[None]:
        """Report outages of the services that the step needs within the block."""
        self._needs.append(needs)
        self._update()
        try:
            yield
        finally:
            self._needs.remove(needs)
            self._update()

    def _update(self) -> None:
        waiting_for = tuple(
            outage
            for name, outage in self._down.items()
            if any(needs(name) for needs in self._needs)
        )
        if waiting_for and self._waiting_since is None:
            self._waiting_since = self._clock()
        elif not waiting_for and self._waiting_since is not None:
            self._waited, self._waiting_since = self.waited_seconds, None
        self._report(waiting_for)
