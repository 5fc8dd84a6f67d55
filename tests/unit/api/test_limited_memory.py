import resource
import threading
import time

import pytest

from raggrpo_api.limited_memory import limited_memory


def test_allocation_beyond_limit_raises_memory_error() -> None:
    with pytest.raises(MemoryError), limited_memory(64 << 20):
        bytearray(1 << 30)
    bytearray(1 << 30)


def test_limits_of_overlapping_blocks_are_removed() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    inside = threading.Event()

    def enter_first() -> None:
        with limited_memory(1 << 30):
            inside.set()
            time.sleep(0.2)

    def enter_second() -> None:
        inside.wait()
        with limited_memory(1 << 30):
            time.sleep(0.2)

    threads = [threading.Thread(target=each) for each in (enter_first, enter_second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
