"""Logs with one JSON object per line, including the job and round of each record."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from raggrpo_api.fields.text import printable

_context: ContextVar[dict[str, Any]] = ContextVar("_context", default={})  # noqa: B039 (never mutated)


@contextmanager
def log_context(**fields: Any) -> Iterator[None]:
    """Add fields to each record that is logged inside this context manager."""
    token = _context.set(_context.get() | fields)
    try:
        yield
    finally:
        _context.reset(token)


class JsonFormatter(logging.Formatter):
    """Format each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON."""
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": printable(record.getMessage()),
            **_context.get(),
        }
        if record.exc_info:
            fields["traceback"] = printable(self.formatException(record.exc_info))
        return json.dumps(fields, default=str)


def configure_logs(level: str) -> None:
    """Log to standard output as JSON."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for noisy in ("aiohttp.access", "kopf.objects"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
