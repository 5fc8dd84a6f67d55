from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.pace import Pace

JOB = JobKey("default", "job-0")


def with_busy_jobs(count: int) -> Pace:
    pace = Pace(poll_seconds=5, status_seconds=10)
    for number in range(count):
        pace.set_busy(JobKey("default", f"job-{number}"), is_busy=True)
    return pace


def test_poll_intervals_match_settings_for_few_jobs() -> None:
    pace = with_busy_jobs(100)

    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (5, 10)


def test_poll_intervals_grow_with_busy_jobs() -> None:
    pace = with_busy_jobs(1000)

    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (50, 100)


def test_poll_intervals_shrink_when_jobs_settle() -> None:
    pace = with_busy_jobs(1000)

    for number in range(950):
        pace.set_busy(JobKey("default", f"job-{number}"), is_busy=False)

    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (5, 10)


def test_busy_namespace_slows_only_its_own_jobs() -> None:
    pace = with_busy_jobs(2000)
    neighbor = JobKey("other", "job")
    pace.set_busy(neighbor, is_busy=True)

    assert (pace.poll_seconds(neighbor), pace.status_seconds(neighbor)) == (5, 10)
    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (200, 400)
