"""`large_import`: how torch and vLLM are imported; must not know them."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_import() -> Iterator[None]:
    """Import without looking for garbage, and never look for it in what was imported.

    These libraries make a million objects that stay until the process ends. To look through them
    again and again takes a quarter of an engine's start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
