import asyncio

from raggrpo_trainer.driver.stop_signal import wait_or_stop


async def test_stop_signal_cancels_task() -> None:
    stop = asyncio.Event()
    task = asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(stop.set)

    assert await wait_or_stop(stop, task)

    await asyncio.wait([task])
    assert task.cancelled()


async def test_completed_task_is_not_canceled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(0, result="done"))

    assert not await wait_or_stop(asyncio.Event(), task)
    assert task.result() == "done"
