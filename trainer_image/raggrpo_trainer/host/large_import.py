"""`large_import`: faster imports of torch and vLLM. Must not import them itself."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def large_import() -> Iterator[None]:
    """Disable garbage collection during an import and freeze the imported objects.

    These libraries create a million objects that live until the process exits. Repeated scans of
    these objects take a quarter of an engine's startup time and a tenth of a driver's import time.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
