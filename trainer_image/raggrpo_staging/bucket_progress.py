"""Progress of uploads to object stores."""

from collections.abc import Callable as Function

from fsspec.callbacks import Callback


class UploadCallback(Callback):  # type: ignore[misc]
    """Passes on the bytes that a client has sent, whichever method it reports them with."""

    def __init__(self, count: Function[[int], None]) -> None:
        super().__init__()
        self._count, self._sent = count, 0

    def relative_update(self, inc: int = 1) -> None:
        """Count bytes."""
        self._count(inc)

    def absolute_update(self, value: int) -> None:
        """Count the bytes since the last update."""
        self._count(value - self._sent)
        self._sent = value
