"""Which services are down, and whether the step waits for them. Knows no HTTP.

    with outages.waited_for():     # the step needs answers now
        await collect(batch)

Services that are down while nothing waits for them, as when passages are fetched ahead, are not
reported: the step goes on without them.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime

from raggrpo_api.trainer.progress import EndpointOutage

NAME_LENGTH, CAUSE_LENGTH = 128, 256
"""Characters that `Progress` takes."""

Report = Callable[[Sequence[EndpointOutage]], None]
Needs = Callable[[str], bool]
"""Whether the step cannot go on without a service."""


def every_service(_: str) -> bool:
    """Need each that is down."""
    return True


class Outages:
    """The services that are down, told to `report` whenever the step begins or ends to wait."""

    def __init__(
        self,
        report: Report = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._report, self._clock, self._wall_clock = report, clock, wall_clock
        self._down: dict[str, EndpointOutage] = {}
        self._stretches: list[Needs] = []
        """Of waiting, and what each needs."""
        self._since: float | None = None
        self._waited = 0.0

    @property
    def waited_seconds(self) -> float:
        """How long the step has waited for services in all."""
        now = 0.0 if self._since is None else self._clock() - self._since
        return self._waited + now

    def working_time(self) -> float:
        """Return a clock's reading (seconds) that stands still while the step waits."""
        return self._clock() - self.waited_seconds

    def mark_down(self, name: str, cause: str) -> None:
        """Note that a service is down; what is noted already keeps its time."""
        if name not in self._down:
            since = self._wall_clock().isoformat(timespec="seconds")
            self._down[name] = EndpointOutage(
                name=name[:NAME_LENGTH], since=since, cause=cause[:CAUSE_LENGTH]
            )
            self._tell()

    def mark_up(self, name: str) -> None:
        """Note that a service answers again."""
        if self._down.pop(name, None) is not None:
            self._tell()

    @contextmanager
    def reporting(self, needs: Needs = every_service) -> Iterator[None]:
        """Mark a stretch in which the step cannot go on without the services that it needs."""
        self._stretches.append(needs)
        self._tell()
        try:
            yield
        finally:
            self._stretches.remove(needs)
            self._tell()

    def _tell(self) -> None:
        told = tuple(
            outage
            for name, outage in self._down.items()
            if any(needs(name) for needs in self._stretches)
        )
        if told and self._since is None:
            self._since = self._clock()
        elif not told and self._since is not None:
            self._waited, self._since = self.waited_seconds, None
        self._report(told)
