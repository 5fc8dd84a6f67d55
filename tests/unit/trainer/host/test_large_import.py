import gc

import pytest

from raggrpo_trainer.host.large_import import large_import


def test_garbage_is_looked_for_again_afterwards_even_when_the_import_fails() -> None:
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
