"""Names of variables, headers and fields that look like secrets. Does not inspect values."""

import re
from typing import Final

_WORDS: Final = "(key|pwd|pw|pat|sig|sas|dsn|jwts?|psk|otp|creds?)"
"""Words that mark a name as secret if they are separate words in the name: DB_PW, x-key-id."""
_LAST_WORDS: Final = "(pass|auth|session|hmac|[cx]srf)"
"""Words that mark a name as secret if only a number may follow: DB_PASS_1, but not AUTH_MODE.

The same applies to _ENDS; eos_token_id does not match.
"""
_PAIRS: Final = "(pass[_.-](db|user|admin|root)|auth[_.-](header|value|cookie))"
"""Pairs of words that mark a name as secret, such as AUTH_HEADER."""
_ANYWHERE: Final = (
    "((api|auth|access|private|signing|account|shared|master|storage|encryption|license|ssh)[_.-]?key"
    "|(auth|access|api|session|refresh|bearer|private|oauth|csrf)[_.-]?token"
    "|(pg|sql|db|redis|smtp|mongo|root|user|admin|ssh|ftp|mail|proxy|ldap)pass"
    "|secret|pswd|pass[_.-]?(w|phrase|code|key)|credential|signature|authorization|cookie|webhook"
    "|connection[_.-]?string|(kube|docker)[_.-]?config[_.-]?(data|content|json|b64|base64)"
    "|(service[_.-]?account|gcp[_.-]?sa)[_.-](json|b64|base64|data)|id_(rsa|dsa|ecdsa|ed25519)"
    "|private[_.-]?pem|seed[_.-]?phrase|mnemonic)"
)
_ENDS: Final = (
    "(token|bearer|session[_.-]?id|sessid|conn[_.-]?str|[abd-mo-quv-z]key"
    "|(database|postgres(ql)?|pg|mysql|jdbc|mongo(db)?)[_.-]?ur[il]|db[_.-]?conn(ection)?"
    "|(anthropic|router|together|serper|aws|ngc|client|root|user|server|session|project)key"
    "|(basic|proxy|http|user)auth)"
)
"""Ends of names that mark a name as secret, also within a word: OPENAIKEY, but not MONKEY."""
_HUMPS: Final = "(Key|Pass|Pwd|Pw|Sig|Sas|Dsn|Jwt|Pat|Otp|Psk)"
"""Words that mark a camelCase name as secret: dbPass, but not maxTokens."""


def _pattern(start: str, other: str, end: str) -> str:
    """Return a pattern for names between `start` and `end`; `other` matches one character."""
    word = f"{start}({other}*[_.-])?"
    return (
        f"(?i:{word}{_WORDS}([_.-]{other}*)?{end}|{word}{_LAST_WORDS}[_.-]?[0-9]*{end}"
        f"|{start}{other}*{_ENDS}([_.-]?([0-9]+|value|data|prod|dev))?{end}"
        f"|{word}{_PAIRS}{other}*{end}|{start}{other}*{_ANYWHERE}{other}*{end})"
        f"|{start}{other}*[a-z0-9]{_HUMPS}([A-Z0-9_.-]{other}*)?{end}"
    )


SECRET_NAME_PATTERN: Final = _pattern("^", ".", "$")
"""RE2 pattern of secret names; must not match TOKENIZERS_PARALLELISM or max_tokens."""
SECRET_QUERY_PATTERN: Final = _pattern("[?&;#]", "[^?=&;#]", "=[^?&;#{]")
"""RE2 pattern of a URL whose query or fragment assigns a value to a secret name.

A placeholder such as `{message_id}` is not a value.
"""


def has_secret_query(url: str) -> bool:
    """Return whether SECRET_QUERY_PATTERN matches a URL, in linear time, unlike `re.search`."""
    pairs = (part.partition("=") for part in re.split("[?&;#]", url)[1:])
    return any(value[:1] not in ("", "{") and is_secret_name(name) for name, _, value in pairs)


def is_secret_name(name: str) -> bool:
    """Return whether a literal value with this name must be rejected."""
    return re.search(SECRET_NAME_PATTERN, name) is not None
