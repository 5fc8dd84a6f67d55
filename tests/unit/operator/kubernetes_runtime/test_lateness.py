from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.lateness import Lateness

KEY = JobKey("default", "small")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_lateness() -> tuple[Lateness, Clock]:
    clock = Clock()
    return Lateness(clock), clock


def test_a_look_is_late_by_what_it_comes_after_the_time_it_was_asked_for() -> None:
    lateness, clock = make_lateness()
    assert lateness.of(KEY) == 0

    lateness.record_success(KEY, 5.0)
    clock.now = 505.0

    assert lateness.of(KEY) == 500


def test_a_look_that_nobody_asked_for_is_not_late() -> None:
    lateness, clock = make_lateness()
    lateness.record_success(KEY, 5.0)
    lateness.record_success(KEY, None)
    clock.now = 505.0

    assert lateness.of(KEY) == 0


def test_one_look_that_fails_takes_nothing_from_the_lateness_of_the_next() -> None:
    lateness, clock = make_lateness()
    lateness.record_success(KEY, 0.0)
    clock.now = 500.0
    lateness.record_failure(KEY)
    clock.now = 500.5

    assert lateness.of(KEY) == 500


def test_hours_of_looks_that_fail_are_no_lateness() -> None:
    lateness, clock = make_lateness()
    lateness.record_success(KEY, 0.0)
    for minute in range(120):
        clock.now = 60.0 * minute
        lateness.record_failure(KEY)
    clock.now += 60.0

    assert lateness.of(KEY) == 60
