from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.cause import Cause
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_operator.core.lifecycle.observed import Observed
from support.fakes.fake_runtime import T0, FakeRuntime, Scenario, make_scenario, make_scenario_job

MAX_POLLS = 250
Segment = tuple[Stage, int, float]
"""Stage, completed steps and duration in seconds."""


def poll_interval(timeline: list[Segment]) -> float:
    """Return the poll interval in seconds: 5, or more if the timeline would take over MAX_POLLS."""
    return max(5.0, sum(duration for _, _, duration in timeline if duration < 1e5) / MAX_POLLS)


def steps(first: int, seconds: list[float]) -> list[Segment]:
    return [(Stage.TRAINING, first + i, duration) for i, duration in enumerate(seconds)]


STARTED: list[Segment] = [
    (Stage.CONNECTING, 0, 5),
    (Stage.LOADING_MODEL, 0, 60),
    (Stage.READING_DATA, 0, 40),
    (Stage.STARTING_ROLLOUT, 0, 90),
    (Stage.WARMING_RETRIEVAL, 0, 10),
    (Stage.FIRST_STEP, 0, 30),
]
SLOW_START: list[Segment] = [
    (Stage.CONNECTING, 0, 30),
    (Stage.LOADING_MODEL, 0, 1700),
    (Stage.READING_DATA, 0, 1700),
    (Stage.STARTING_ROLLOUT, 0, 1700),
    (Stage.WARMING_RETRIEVAL, 0, 1700),
    (Stage.FIRST_STEP, 0, 1100),
]
LONG_SAVES = [
    segment for step in range(10, 80, 10) for segment in [(Stage.CHECKPOINTING, step, 600.0)]
]
HEALTHY: dict[str, list[Segment]] = {
    "even steps": STARTED + steps(1, [15.0] * 40),
    "a slow start": SLOW_START + steps(1, [20.0] * 10),
    "a long save": [*STARTED, *steps(1, [15.0] * 9), (Stage.CHECKPOINTING, 10, 1700)],
    "consecutive saves without observed steps": STARTED + LONG_SAVES,
    "a long validation": [*STARTED, *steps(1, [15.0] * 9), (Stage.VALIDATING, 10, 3500)],
    "validation and save at each step": STARTED
    + [
        segment
        for step in range(1, 8)
        for segment in [
            (Stage.TRAINING, step, 15.0),
            (Stage.VALIDATING, step, 1500.0),
            (Stage.CHECKPOINTING, step, 900.0),
        ]
    ],
    "bursts of steps": STARTED + steps(1, [1.0, 1.0, 1.0, 1.0, 50.0] * 8),
    "growing steps": STARTED + steps(1, [10.0 * 1.25**i for i in range(18)]),
    "steps of a minute after quick ones": STARTED + steps(1, [2.0] * 9 + [58.0] * 6),
    "a long export": [*STARTED, *steps(1, [15.0] * 9), (Stage.EXPORTING, 10, 1700)],
    "a slow retrieval service": STARTED + steps(1, [30.0, 30.0, 290.0] * 6),
    "a slow start after a resume": [
        *STARTED[:2],
        (Stage.STARTING_ROLLOUT, 40, 1700),
        (Stage.FIRST_STEP, 40, 1100),
        *steps(41, [15.0] * 10),
    ],
}


@dataclass
class TimelineRuntime(FakeRuntime):
    """Fake runtime whose /progress follows a timeline that starts at the submission."""

    timeline: list[Segment] = field(default_factory=list)

    async def observe(self, job: RagGrpoJob) -> Observed:
        if self.attempt is not None:
            self.attempt.hangs = True  # only the timeline advances
        return await super().observe(job)

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the submission of the attempt."""
        return (self.now - self.attempt.started).total_seconds() if self.attempt else 0.0

    def _progress(self) -> Progress | None:
        if self.attempt is None:
            return None
        remaining, recent = self.elapsed_seconds, []
        for stage, step, duration in self.timeline:  # noqa: B007
            if remaining < duration:
                break
            remaining -= duration
            recent += [duration] if stage is Stage.TRAINING else []
        usual = sorted(recent[-8:])[len(recent[-8:]) // 2] if recent else 0.0
        return Progress(
            attempt=self.attempt.number,
            stage=stage,
            step=step,
            total_steps=10_000,
            started_from_step=self.timeline[0][1],
            seconds_per_step=usual,
        )


def make_timeline_scenario(
    timeline: list[Segment], changes: dict[str, Any] | None = None
) -> Scenario:
    return Scenario(make_scenario_job(changes), TimelineRuntime(timeline=timeline))


async def poll_until(scenario: Scenario, seconds: float) -> None:
    """Reconcile until `seconds` after the submission, or until the attempt is being stopped."""
    await scenario.until(lambda status: bool(status.attempts and status.attempts[0].started))
    runtime = scenario.runtime
    assert isinstance(runtime, TimelineRuntime)
    while runtime.elapsed_seconds < seconds and scenario.status.restart_state.retry.intent is None:
        now = runtime.now
        await scenario.round()
        runtime.now = max(runtime.now, now + timedelta(seconds=poll_interval(runtime.timeline)))


@pytest.mark.row("B13")
@pytest.mark.parametrize("timeline", HEALTHY.values(), ids=HEALTHY.keys())
async def test_healthy_runs_are_not_stalled(timeline: list[Segment]) -> None:
    scenario = make_timeline_scenario(timeline)

    await poll_until(
        scenario, sum(duration for _, _, duration in timeline) - poll_interval(timeline)
    )

    assert scenario.status.restart_state.retry.intent is None
    assert len(scenario.attempts) == 1


def hang_cases() -> Iterator[tuple[str, list[Segment], float]]:
    trained = STARTED + steps(1, [15.0] * 10)
    yield "a step", [*trained, (Stage.TRAINING, 11, 1e6)], 150.0
    yield "a short step", [*STARTED, *steps(1, [1.0] * 10), (Stage.TRAINING, 11, 1e6)], 60.0
    yield "loading", [(Stage.CONNECTING, 0, 5), (Stage.LOADING_MODEL, 0, 1e6)], 1800.0
    yield "reading data", [*STARTED[:2], (Stage.READING_DATA, 0, 1e6)], 1800.0
    yield "starting rollout", [*STARTED[:3], (Stage.STARTING_ROLLOUT, 0, 1e6)], 1800.0
    yield "warming retrieval", [*STARTED[:4], (Stage.WARMING_RETRIEVAL, 0, 1e6)], 1800.0
    yield "first step", [*STARTED[:5], (Stage.FIRST_STEP, 0, 1e6)], 1200.0
    yield "a save", [*trained, (Stage.CHECKPOINTING, 11, 1e6)], 1800.0
    yield "a validation", [*trained, (Stage.VALIDATING, 11, 1e6)], 3600.0
    yield "the export", [*trained, (Stage.EXPORTING, 11, 1e6)], 1800.0
    yield "the end", [*trained, (Stage.FINISHED, 11, 1e6)], 1800.0


HANGS = {name: (timeline, limit) for name, timeline, limit in hang_cases()}


@pytest.mark.row("B13")
@pytest.mark.parametrize("name", HANGS)
async def test_stall_is_detected_in_each_stage(name: str) -> None:
    timeline, limit = HANGS[name]
    elapsed = sum(duration for _, _, duration in timeline[:-1])
    scenario = make_timeline_scenario(timeline)

    await poll_until(scenario, elapsed + limit + 100)

    assert scenario.status.restart_state.retry.intent is Cause.STALLED
    runtime = scenario.runtime
    assert isinstance(runtime, TimelineRuntime)
    # One poll until the stall is first observed, one until its deadline is observed as exceeded.
    detected_after = runtime.elapsed_seconds - poll_interval(timeline) - elapsed
    assert limit - 1 < detected_after <= limit + 2 * poll_interval(timeline)


async def test_remaining_time_is_unknown_before_first_step() -> None:
    started = sum(duration for _, _, duration in STARTED)
    scenario = make_timeline_scenario(STARTED + steps(1, [15.0] * 2))
    await poll_until(scenario, started + 10)
    assert (scenario.status.progress.stage, scenario.status.progress.seconds_per_step) == (
        "Training",
        0,
    )
    assert scenario.status.progress.estimated_remaining_seconds is None

    await poll_until(scenario, started + 25)
    assert scenario.status.progress.estimated_remaining_seconds == 15 * (10_000 - 2)


async def test_suspension_is_not_reported_as_stall() -> None:
    scenario = make_scenario()
    await scenario.until(lambda status: status.progress.step == 25)
    scenario.edit({"suspend": True})
    await scenario.until_quiet()

    scenario.runtime.now += timedelta(hours=9)
    scenario.edit({})
    await scenario.until_quiet()

    assert [record.cause for record in scenario.attempts] == [Cause.SUSPENDED, Cause.SUCCEEDED]


async def test_slow_provisioning_is_not_reported_as_stall() -> None:
    scenario = make_scenario(changes={"recovery.deadlines": {"provisioningSeconds": 90_000}})
    scenario.runtime.cluster_seconds = 86_400.0
    await scenario.until(lambda status: status.attempt == 1)

    while scenario.runtime.now - T0 < timedelta(days=1):
        await scenario.round()
        scenario.runtime.now += timedelta(minutes=2)
    await scenario.until_quiet()

    assert [record.cause for record in scenario.attempts] == [Cause.SUCCEEDED]
