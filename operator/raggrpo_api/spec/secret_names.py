"""Which names of variables, headers and fields look like secrets. Never looks at values."""

import re
from typing import Final

_WHOLE_WORDS: Final = "(key|token|pwd|pat)"
_ANYWHERE: Final = (
    "(apikey|accesskey|(auth|access|api)token|secret|passw|credential|authorization|cookie)"
)
SECRET_NAME_PATTERN: Final = f"(?i)((^|[_-]){_WHOLE_WORDS}([_-]|$)|{_ANYWHERE})"
"""Valid in Python and in RE2; must not match TOKENIZERS_PARALLELISM or max_tokens."""

SECRET_QUERY_PATTERN: Final = (
    "(?i)^[^?#]*[?]([^#]*&)?"
    f"(([^=&#]*[_-])?{_WHOLE_WORDS}([_-][^=&#]*)?|[^=&#]*{_ANYWHERE}[^=&#]*)=[^&#]"
)
"""Matches a URL whose query has a value for such a name."""


def looks_secret(name: str) -> bool:
    """Return whether a literal value under this name must be refused."""
    return re.search(SECRET_NAME_PATTERN, name) is not None
