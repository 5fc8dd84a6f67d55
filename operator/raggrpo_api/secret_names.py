"""Which names of variables, headers and fields look like a secret (C15). Reads no values."""

import re
from typing import Final

SECRET_NAME_PATTERN: Final = (
    "(?i)((^|[_-])(key|token|pwd|pat)([_-]|$)|apikey|accesskey|(auth|access|api)token"
    "|secret|passw|credential|authorization|cookie)"
)
"""Works in Python and in RE2; TOKENIZERS_PARALLELISM and max_tokens are no secrets."""


def looks_secret(name: str) -> bool:
    """Tell whether a literal value under this name must be refused."""
    return re.search(SECRET_NAME_PATTERN, name) is not None
