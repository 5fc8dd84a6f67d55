"""Which names of variables, headers and fields look like a secret (C15). Reads no values."""

import re
from typing import Final

_WHOLE_WORDS: Final = "(key|token|pwd|pat)"
_ANYWHERE: Final = (
    "(apikey|accesskey|(auth|access|api)token|secret|passw|credential|authorization|cookie)"
)
SECRET_NAME_PATTERN: Final = f"(?i)((^|[_-]){_WHOLE_WORDS}([_-]|$)|{_ANYWHERE})"
"""Works in Python and in RE2; TOKENIZERS_PARALLELISM and max_tokens are no secrets."""

SECRET_QUERY_PATTERN: Final = (
    "(?i)^[^?#]*[?]([^#]*&)?"
    f"(([^=&#]*[_-])?{_WHOLE_WORDS}([_-][^=&#]*)?|[^=&#]*{_ANYWHERE}[^=&#]*)=[^&#]"
)
"""Matches a URL whose query gives a value to such a name."""


def looks_secret(name: str) -> bool:
    """Tell whether a literal value under this name must be refused."""
    return re.search(SECRET_NAME_PATTERN, name) is not None
