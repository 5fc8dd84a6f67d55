import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raggrpo_operator.errors import PermanentError, TransientError
from raggrpo_operator.kubernetes_runtime.process import work_queue
from raggrpo_operator.kubernetes_runtime.process.work_queue import (
    IN_PROGRESS_PER_WORKER,
    QueueObserver,
    WorkQueue,
)

Work = Callable[[str], Awaitable[float | None]]


@asynccontextmanager
async def running(
    work: Work,
    workers: int = 8,
    observer: QueueObserver | None = None,
    group: Callable[[str], str] = str,
    clock: Callable[[], float] = time.monotonic,
) -> AsyncIterator[WorkQueue[str]]:
    queue = WorkQueue(work, workers=workers, group=group, observer=observer, clock=clock)
    task = asyncio.create_task(queue.run())
    try:
        yield queue
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 (the queue has no hook for tests)
            await asyncio.sleep(0.001)


async def test_key_added_repeatedly_is_processed_once() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    async with running(work) as queue:
        for _ in range(5):
            queue.add("a")
        queue.add("b")
        await until(lambda: len(done) == 2)

    assert done == ["a", "b"]


async def test_key_added_while_running_is_processed_again() -> None:
    started: list[str] = []
    proceed = asyncio.Event()

    async def work(key: str) -> None:
        started.append(key)
        await proceed.wait()

    async with running(work) as queue:
        queue.add("a")
        await until(lambda: started == ["a"])
        queue.add("a")
        queue.add("a")
        await asyncio.sleep(0)
        assert started == ["a"]
        assert queue.depth == 1
        proceed.set()
        await until(lambda: len(started) == 2)
        await until(lambda: queue.depth == 0)

    assert started == ["a", "a"]


async def test_operator_error_is_retried() -> None:
    attempts: list[str] = []

    async def work(key: str) -> None:
        attempts.append(key)
        if len(attempts) < 2:
            raise TransientError("not yet")

    async with running(work) as queue:
        queue.add("a")
        await until(lambda: len(attempts) == 2)
        await until(lambda: not queue._failures)  # the backoff is reset


async def test_unexpected_error_is_retried_and_does_not_stop_queue() -> None:
    attempts: Counter[str] = Counter()

    async def work(key: str) -> None:
        attempts[key] += 1
        if attempts["a"] == 1 and key == "a":
            raise ZeroDivisionError

    async with running(work) as queue:
        queue.add("a")
        queue.add("b")
        await until(lambda: attempts == {"a": 2, "b": 1})


async def test_work_queue_backoff_grows_to_maximum() -> None:
    queue: WorkQueue[str] = WorkQueue(lambda _: asyncio.sleep(0), workers=1, group=str)

    delays = [queue._retry_delay("a", retryable=True) for _ in range(12)]

    assert 0.4 <= delays[0] <= 0.6
    assert delays[0] < delays[2] < delays[5]
    assert all(48 <= delay <= 72 for delay in delays[8:])


async def test_permanent_error_is_retried_with_maximum_delay() -> None:
    queue: WorkQueue[str] = WorkQueue(lambda _: asyncio.sleep(0), workers=1, group=str)

    assert queue._retry_delay("a", retryable=False) >= 48


async def test_shorter_delay_replaces_longer_delay_and_add_cancels_timer() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    async with running(work) as queue:
        queue.add_after("a", 0.02)
        queue.add_after("a", 3600)
        await until(lambda: done == ["a"])
        queue.add_after("b", 3600)
        queue.add("b")
        await until(lambda: done == ["a", "b"])
        assert not queue._timers


async def test_work_result_is_used_as_requeue_delay() -> None:
    done: list[str] = []

    async def work(key: str) -> float | None:
        done.append(key)
        return 0.01 if len(done) < 3 else None

    async with running(work) as queue:
        queue.add("a")
        await until(lambda: len(done) == 3)
        assert not queue._timers


async def test_work_queue_concurrency_is_limited_to_workers() -> None:
    now = 0
    max_running = 0

    async def work(key: str) -> None:
        nonlocal now, max_running
        now += 1
        max_running = max(max_running, now)
        await asyncio.sleep(0.001)
        now -= 1

    async with running(work, workers=3) as queue:
        for number in range(20):
            queue.add(str(number))
        await until(lambda: queue.depth == 0 and now == 0)

    assert max_running == 3


def namespace_of(key: str) -> str:
    return key.partition("/")[0]


class Stalling:
    """Work that never ends in namespaces whose names start with "bad"."""

    def __init__(self) -> None:
        self.started: list[str] = []

    async def __call__(self, key: str) -> None:
        self.started.append(key)
        if key.startswith("bad"):
            await asyncio.Event().wait()


@pytest.mark.row("E4")
@pytest.mark.parametrize(("namespaces", "num_running"), [(1, 4), (2, 6), (4, 7)])
async def test_saturating_namespaces_leave_workers_for_others(
    namespaces: int, num_running: int
) -> None:
    work = Stalling()
    async with running(work, workers=8, group=namespace_of, clock=lambda: 0.0) as queue:
        for number in range(200):
            queue.add(f"bad-{number % namespaces}/{number}")
        await until(lambda: len(work.started) == num_running)
        for number in range(20):
            queue.add(f"good/{number}")
        await until(lambda: len(work.started) == num_running + 20)

    assert work.started[num_running:] == [f"good/{number}" for number in range(20)]


@pytest.mark.row("E4")
async def test_slow_work_releases_its_worker_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_queue, "SLOW_SECONDS", 0.01)
    work = Stalling()
    async with running(work, workers=8, group=namespace_of) as queue:
        for number in range(20):
            queue.add(f"bad-{number}/job")
        await until(lambda: len(work.started) == 20)


async def test_number_of_slow_work_items_in_progress_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(work_queue, "SLOW_SECONDS", 0.01)
    work = Stalling()
    async with running(work, workers=1, group=namespace_of) as queue:
        for number in range(20):
            queue.add(f"bad-{number}/job")
        await until(lambda: len(work.started) == IN_PROGRESS_PER_WORKER)
        await asyncio.sleep(0.1)

    assert len(work.started) == IN_PROGRESS_PER_WORKER


async def test_namespaces_are_served_round_robin() -> None:
    started: list[str] = []

    async def work(key: str) -> None:
        started.append(key)

    async with running(work, workers=1, group=namespace_of) as queue:
        for key in ("a/1", "a/2", "a/3", "b/1", "c/1", "c/2"):
            queue.add(key)
        await until(lambda: len(started) == 6)

    assert started == ["a/1", "b/1", "c/1", "a/2", "c/2", "a/3"]


async def test_queue_observer_receives_depth_and_results() -> None:
    class RecordingObserver(QueueObserver):
        depths: list[int] = []
        results: list[str] = []

        def on_added(self, depth: int) -> None:
            self.depths.append(depth)

        def on_finished(self, seconds: float, result: str) -> None:
            self.results.append(result)

    observer = RecordingObserver()

    async def work(key: str) -> None:
        if key == "b":
            raise PermanentError("no")

    async with running(work, observer=observer) as queue:
        queue.add("a")
        queue.add("b")
        await until(lambda: len(observer.results) == 2)

    assert observer.depths == [1, 2]
    assert observer.results == ["success", "trouble"]


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["add", "later", "yield", "fail"])),
    max_size=60,
)


@given(STEPS, st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_key_never_runs_concurrently_and_additions_are_processed(
    steps: list[tuple[str, str]], workers: int
) -> None:
    async def scenario() -> None:
        running_now: set[str] = set()
        added: dict[str, int] = {}
        processed: dict[str, int] = {}
        failing: Counter[str] = Counter()
        twice: list[str] = []

        async def work(key: str) -> None:
            if key in running_now:
                twice.append(key)
            running_now.add(key)
            version = added.get(key, 0)
            try:
                await asyncio.sleep(0)
                if failing[key]:
                    failing[key] -= 1
                    raise TransientError("on purpose")
                processed[key] = version
            finally:
                running_now.discard(key)

        async with running(work, workers) as queue:
            for number, (key, step) in enumerate(steps, 1):
                if step == "fail":
                    failing[key] = 1
                if step == "yield":
                    await asyncio.sleep(0)
                elif step == "later":
                    added[key] = number
                    queue.add_after(key, 0.001)
                else:
                    added[key] = number
                    queue.add(key)
            for key in added:  # skip the backoff
                failing[key] = 0
                queue.add(key)
            await until(lambda: processed == added and not running_now)
        assert not twice

    asyncio.run(scenario())
