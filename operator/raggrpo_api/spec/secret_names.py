"""Which names of variables, headers and fields look like secrets. Never looks at values."""

import re
from typing import Final

_WORDS: Final = "(key|pwd|pw|pat|sig|sas|dsn|jwt|psk|otp|creds?)"
"""Secret as a word of their own: DB_PW, x-key-id."""
_LAST_WORDS: Final = "(pass|auth)"
"""Secret as the last word, perhaps with a number: DB_PASS_1, but not AUTH_MODE.

So is a last `token`, also within a word; elsewhere it is not: eos_token_id.
"""
_PAIRS: Final = "(pass[_.-](db|user|admin|root)|auth[_.-](header|value|cookie))"
"""Secret at the beginning of a word: AUTH_HEADER."""
_ANYWHERE: Final = (
    "((api|auth|access|private|signing|account|shared|master|storage|encryption|license|ssh)[_.-]?key"
    "|(auth|access|api|session|refresh|bearer|private|oauth|csrf)[_.-]?token"
    "|(pg|sql|db|redis|smtp|mongo|root|user|admin|ssh|ftp|mail|proxy|ldap)pass"
    "|secret|pswd|pass[_.-]?(w|phrase|code|key)|credential|signature|authorization|cookie|webhook)"
)
_HUMPS: Final = "(Key|Pass|Pwd|Pw|Sig|Sas|Dsn|Jwt|Pat|Otp|Psk)"
"""Secret as a word of a name in camel case: dbPass, but not maxTokens."""


def _pattern(begin: str, other: str, end: str) -> str:
    """Return a pattern for a name between two patterns; `other` is a character of a name."""
    word = f"{begin}({other}*[_.-])?"
    return (
        f"(?i:{word}{_WORDS}([_.-]{other}*)?{end}|{word}{_LAST_WORDS}[_.-]?[0-9]*{end}"
        f"|{begin}{other}*token([_.-]?([0-9]+|value|prod|dev))?{end}"
        f"|{word}{_PAIRS}{other}*{end}|{begin}{other}*{_ANYWHERE}{other}*{end})"
        f"|{begin}{other}*[a-z0-9]{_HUMPS}([A-Z0-9_.-]{other}*)?{end}"
    )


SECRET_NAME_PATTERN: Final = _pattern("^", ".", "$")
"""For RE2, which is linear; must not match TOKENIZERS_PARALLELISM or max_tokens."""
SECRET_QUERY_PATTERN: Final = _pattern("[?&;#]", "[^?=&;#]", "=[^?&;#]")
"""Matches a URL whose query or fragment has a value for such a name; for RE2, too."""


def has_secret_query(url: str) -> bool:
    """Return whether SECRET_QUERY_PATTERN matches, which would take Python quadratic time."""
    pairs = (part.partition("=") for part in re.split("[?&;#]", url)[1:])
    return any(value and is_secret_name(name) for name, _, value in pairs)


def is_secret_name(name: str) -> bool:
    """Return whether a literal value under this name must be refused."""
    return re.search(SECRET_NAME_PATTERN, name) is not None
