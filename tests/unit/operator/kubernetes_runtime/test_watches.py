import asyncio

import pytest

from raggrpo_operator.kubernetes_runtime.operator_process import (
    WATCHES,
    WatchFailed,
    monitor_watches,
)


async def test_canceled_watches_are_not_treated_as_failure() -> None:
    started = asyncio.Event()
    started.set()
    watches = asyncio.create_task(asyncio.sleep(60), name=WATCHES)
    monitoring = asyncio.create_task(monitor_watches(started))
    await asyncio.sleep(0.01)

    watches.cancel()
    await asyncio.sleep(0.05)

    assert not monitoring.done()
    monitoring.cancel()


@pytest.mark.row("E7")
async def test_operator_exits_when_watch_fails() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise TypeError("of one watch")

    started = asyncio.Event()
    started.set()
    watches = asyncio.create_task(fail(), name=WATCHES)

    with pytest.raises(WatchFailed):
        await asyncio.wait_for(monitor_watches(started), 5)
    assert isinstance(watches.exception(), TypeError)
