import asyncio

import pytest

from raggrpo_operator.kubernetes_runtime.operator_process import (
    WATCHES,
    WatchFailed,
    monitor_watches,
)


async def test_canceled_watches_are_not_a_failure() -> None:
    begun = asyncio.Event()
    begun.set()
    watches = asyncio.create_task(asyncio.sleep(60), name=WATCHES)
    looking = asyncio.create_task(monitor_watches(begun))
    await asyncio.sleep(0.01)

    watches.cancel()
    await asyncio.sleep(0.05)

    assert not looking.done()
    looking.cancel()


@pytest.mark.row("E7")
async def test_operator_exits_when_watch_fails() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise TypeError("of one watch")

    begun = asyncio.Event()
    begun.set()
    watches = asyncio.create_task(fail(), name=WATCHES)

    with pytest.raises(WatchFailed):
        await asyncio.wait_for(monitor_watches(begun), 5)
    assert isinstance(watches.exception(), TypeError)
