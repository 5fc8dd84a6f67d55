"""Which names of variables, headers and fields look like secrets. Never looks at values."""

import re
from typing import Final

_WHOLE_WORDS: Final = "(key|token|pwd|pat|sig|sas|dsn|jwt|psk|otp)"
_LAST_WORDS: Final = "(pass|auth)"
_ANYWHERE: Final = (
    "(apikey|accesskey|privatekey|signingkey|(auth|access|api|session|refresh|bearer|private)token"
    "|secret|passw|passphrase|passcode|credential|signature|authorization|cookie|webhook)"
)
SECRET_NAME_PATTERN: Final = (
    f"(?i)((^|[_-]){_WHOLE_WORDS}([_-]|$)|(^|[_-]){_LAST_WORDS}$|{_ANYWHERE})"
)
"""Valid in Python and in RE2; must not match TOKENIZERS_PARALLELISM or max_tokens."""

SECRET_QUERY_PATTERN: Final = (
    f"(?i)[?&;#](([^?=&;#]*[_-])?({_WHOLE_WORDS}([_-][^?=&;#]*)?|{_LAST_WORDS})"
    f"|[^?=&;#]*{_ANYWHERE}[^?=&;#]*)=[^?&;#]"
)
"""Matches a URL whose query or fragment has a value for such a name; for RE2, which is linear."""


def has_secret_query(url: str) -> bool:
    """Return whether SECRET_QUERY_PATTERN matches, which would take Python quadratic time."""
    pairs = (part.partition("=") for part in re.split("[?&;#]", url)[1:])
    return any(value and looks_secret(name) for name, _, value in pairs)


def looks_secret(name: str) -> bool:
    """Return whether a literal value under this name must be refused."""
    return re.search(SECRET_NAME_PATTERN, name) is not None
