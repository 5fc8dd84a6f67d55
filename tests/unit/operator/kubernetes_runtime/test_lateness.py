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


def test_reconcile_lateness_is_time_since_due() -> None:
    lateness, clock = make_lateness()
    assert lateness.of(KEY) == 0

    lateness.record_success(KEY, 5.0)
    clock.now = 505.0

    assert lateness.of(KEY) == 500


def test_reconcile_without_requeue_is_not_late() -> None:
    lateness, clock = make_lateness()
    lateness.record_success(KEY, 5.0)
    lateness.record_success(KEY, None)
    clock.now = 505.0

    assert lateness.of(KEY) == 0


def test_failed_reconcile_keeps_lateness() -> None:
    lateness, clock = make_lateness()
    lateness.record_success(KEY, 0.0)
    clock.now = 500.0
    lateness.record_failure(KEY)
    clock.now = 500.5

    assert lateness.of(KEY) == 500


def test_retry_intervals_do_not_accumulate_lateness() -> None:
    lateness, clock = make_lateness()
    lateness.record_success(KEY, 0.0)
    for minute in range(120):
        clock.now = 60.0 * minute
        lateness.record_failure(KEY)
    clock.now += 60.0

    assert lateness.of(KEY) == 60
