"""Limit the memory and time of chat templates, such as `'a' * 10 ** 10`."""

import time
from collections.abc import Mapping
from typing import Any

from raggrpo_api.limited_memory import limited_memory
from raggrpo_trainer.data.template_time import TemplateTooSlow
from raggrpo_trainer.data.tokenizer import Tokenizer

MAX_TEMPLATE_MEMORY = 512 << 20
"""Bytes that a chat template may allocate to render one prompt."""
MAX_TEMPLATE_SECONDS = 30.0
"""CPU time to render all prompts; a typical template renders 10,000 prompts in 10 s."""


class LimitedTokenizer:
    """A tokenizer whose chat template has limited memory and time.

    Raises MemoryError beyond MAX_TEMPLATE_MEMORY, and TemplateTooSlow beyond MAX_TEMPLATE_SECONDS.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._seconds, self._prompts = 0.0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """Return {"input_ids": [...]}."""
        return self._tokenizer(text, add_special_tokens=add_special_tokens)

    def apply_chat_template(self, conversation: Any, **options: Any) -> Any:
        """Return the conversation in the chat format of the model."""
        if self._seconds > MAX_TEMPLATE_SECONDS:
            limit = f"more than {MAX_TEMPLATE_SECONDS:.0f} seconds of CPU time"
            raise TemplateTooSlow(f"{limit} for all prompts, here after {self._prompts:,}")
        start = time.thread_time()
        with limited_memory(MAX_TEMPLATE_MEMORY):
            rendered = self._tokenizer.apply_chat_template(conversation, **options)
        self._seconds += time.thread_time() - start
        self._prompts += 1
        return rendered
