import asyncio

import pytest

from raggrpo_trainer.http.background_tasks import BackgroundTasks
from raggrpo_trainer.http.shared_calls import SharedCalls


def make_cache(max_results: int = 100, max_bytes: int = 10) -> SharedCalls[str, str]:
    return SharedCalls(BackgroundTasks(), max_results, lambda key, text: len(key + text), max_bytes)


async def add(cache: SharedCalls[str, str], key: str, text: str) -> None:
    async def call() -> str:
        if not text:
            raise ValueError
        return text

    try:
        assert await cache.get(key, call) == text
    except ValueError:
        assert not text
    await asyncio.sleep(0)  # runs callbacks of the task


async def test_cache_evicts_oldest_results_beyond_memory() -> None:
    cache = make_cache()
    for key in "abc":
        await add(cache, key, "xxx")
    assert [key for key in "abc" if key in cache] == ["b", "c"]


async def test_cache_evicts_least_recently_used_result() -> None:
    cache = make_cache()
    for key in "abac":
        await add(cache, key, "xxx")
    assert [key for key in "abc" if key in cache] == ["a", "c"]


async def test_result_larger_than_cache_is_returned_but_not_cached() -> None:
    cache = make_cache()
    await add(cache, "a", "x" * 50)
    assert "a" not in cache
    await add(cache, "b", "xxx")
    assert "b" in cache


@pytest.mark.parametrize("text", ["xxx", ""])
async def test_memory_of_dropped_calls_is_released(text: str) -> None:
    cache = make_cache(max_results=1)
    for number in range(20):
        await add(cache, str(number), text)
    await add(cache, "a", "xxx")
    assert "a" in cache
