import asyncio

from raggrpo_trainer.driver.stop_signal import wait_or_stop


async def test_a_stop_signal_ends_what_waits_for_a_service_for_ever() -> None:
    stop, task = asyncio.Event(), asyncio.ensure_future(asyncio.Event().wait())
    asyncio.get_running_loop().call_soon(stop.set)

    assert await wait_or_stop(stop, task)

    await asyncio.wait([task])
    assert task.cancelled()


async def test_work_that_is_done_has_its_result() -> None:
    task = asyncio.ensure_future(asyncio.sleep(0, result="done"))

    assert not await wait_or_stop(asyncio.Event(), task)
    assert task.result() == "done"
