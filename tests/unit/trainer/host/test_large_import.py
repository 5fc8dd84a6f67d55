import gc

import pytest

from raggrpo_trainer.host.large_import import large_import


def test_garbage_collection_is_enabled_after_failed_import() -> None:
    before = gc.get_freeze_count()

    def fail() -> None:
        with large_import():
            assert not gc.isenabled()
            raise ImportError("no such library")

    with pytest.raises(ImportError):
        fail()

    assert gc.isenabled()
    assert gc.get_freeze_count() > before
    gc.unfreeze()
