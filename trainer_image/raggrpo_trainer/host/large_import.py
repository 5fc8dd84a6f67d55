"""`large_import`: faster imports of torch and vLLM. Must not import them itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_import() -> Iterator[None]:
    """Disable garbage collection during an import and freeze the imported objects.

    These libraries create a million objects that live until the process exits. Scanning them
    repeatedly takes a quarter of an engine's start and a tenth of a driver's imports.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
