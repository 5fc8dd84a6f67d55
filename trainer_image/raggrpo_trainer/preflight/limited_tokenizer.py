"""Limit the memory of chat templates, which may be expressions such as `'a' * 10 ** 10`."""

import os
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raggrpo_trainer.data.tokenizer import Tokenizer

MAX_TEMPLATE_MEMORY = 512 << 20
"""Bytes that a chat template may allocate to render one prompt."""
_MEMORY = Path("/proc/self/statm")
_DATA_PAGES = 5
"""Index of the pages of private memory in `statm`."""


class LimitedTokenizer:
    """A tokenizer whose chat template raises MemoryError beyond MAX_TEMPLATE_MEMORY."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """Return {"input_ids": [...]}."""
        return self._tokenizer(text, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the conversation in the chat format of the model."""
        with _limited_memory(MAX_TEMPLATE_MEMORY):
            return self._tokenizer.apply_chat_template(conversation, **options)


@contextmanager
def _limited_memory(size: int) -> Iterator[None]:
    """Let this process allocate at most `size` bytes more, if the system is Linux.

    Processes started meanwhile inherit the soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if not _MEMORY.exists():
        yield
        return
    used = int(_MEMORY.read_text().split()[_DATA_PAGES]) * os.sysconf("SC_PAGE_SIZE")
    limits = [each for each in (soft, hard) if each != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([used + size, *limits]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
