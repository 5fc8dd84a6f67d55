from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kubernetes_runtime.process.pace import Pace

JOB = JobKey("default", "job-0")


def with_busy_jobs(count: int) -> Pace:
    pace = Pace(poll_seconds=5, status_seconds=10)
    for number in range(count):
        pace.set_busy(JobKey("default", f"job-{number}"), is_busy=True)
    return pace


def test_few_jobs_are_asked_and_written_as_the_settings_say() -> None:
    pace = with_busy_jobs(100)

    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (5, 10)


def test_many_jobs_share_twenty_polls_and_ten_writes_a_second() -> None:
    pace = with_busy_jobs(1000)

    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (50, 100)


def test_jobs_that_have_ended_leave_their_turns_to_the_others() -> None:
    pace = with_busy_jobs(1000)

    for number in range(950):
        pace.set_busy(JobKey("default", f"job-{number}"), is_busy=False)

    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (5, 10)


def test_a_namespace_with_many_jobs_slows_down_its_own() -> None:
    pace, neighbour = with_busy_jobs(2000), JobKey("other", "job")
    pace.set_busy(neighbour, is_busy=True)

    assert (pace.poll_seconds(neighbour), pace.status_seconds(neighbour)) == (5, 10)
    assert (pace.poll_seconds(JOB), pace.status_seconds(JOB)) == (200, 400)
