import asyncio
import time

import pytest

from raggrpo_trainer.gateway.working_time import within


async def test_result_of_work_is_returned() -> None:
    async def work() -> str:
        return "done"

    assert await within(60.0, time.monotonic, work()) == "done"


async def test_work_times_out_on_the_clock_and_is_canceled() -> None:
    canceled = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(600)
        finally:
            canceled.set()

    with pytest.raises(TimeoutError):
        await within(0.05, time.monotonic, work())
    await asyncio.wait_for(canceled.wait(), 60)


async def test_paused_clock_does_not_time_out() -> None:
    async def work() -> str:
        await asyncio.sleep(0.3)
        return "done"

    assert await within(0.1, lambda: 0.0, work()) == "done"
