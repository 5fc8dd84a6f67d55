"""Limit the memory of chat templates, which may be expressions such as `'a' * 10 ** 10`."""

from collections.abc import Mapping
from typing import Any

from raggrpo_api.limited_memory import limited_memory
from raggrpo_trainer.data.tokenizer import Tokenizer

MAX_TEMPLATE_MEMORY = 512 << 20
"""Bytes that a chat template may allocate to render one prompt."""


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
        with limited_memory(MAX_TEMPLATE_MEMORY):
            return self._tokenizer.apply_chat_template(conversation, **options)
