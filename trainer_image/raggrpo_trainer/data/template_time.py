"""Limit the time of chat templates, which are programs in a sandbox that may have any loops.

with limited_time():
    text = tokenizer.apply_chat_template(…)
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

MAX_TEMPLATE_SECONDS = 10.0
"""CPU time to render a conversation; a typical template renders 1,000 messages in 20 ms."""
_EVENTS = 64
"""Function calls and lines of the template between two comparisons with the limit."""
_TEMPLATE = "<template>"
"""File name of a template's code. Lines of other code are not traced, because that takes time."""


class TemplateTooSlow(Exception):
    """A chat template exceeds its time."""


@contextmanager
def limited_time() -> Iterator[None]:
    """Raise TemplateTooSlow in this thread when a template exceeds its time.

    A single operation, such as a search in a long text, is not interrupted.
    """
    deadline = time.thread_time() + MAX_TEMPLATE_SECONDS
    events = 0

    def trace(frame: FrameType, _event: str, _argument: Any) -> Any:
        nonlocal events
        events += 1
        if not events % _EVENTS and time.thread_time() > deadline:
            raise TemplateTooSlow(f"more than {MAX_TEMPLATE_SECONDS:.0f} seconds of CPU time")
        return trace if frame.f_code.co_filename == _TEMPLATE else None

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(previous)
