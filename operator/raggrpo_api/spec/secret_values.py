"""Which values are secrets whatever they are called: credentials in URLs, tokens, webhooks."""

import re
from typing import Final
from urllib.parse import unquote_plus

from .secret_names import has_secret_query

_CREDENTIALS_IN_URL: Final = r"://[^/?#\s:@]*:[^/?#\s@]+@|(?i:https?://[^/?#\s@]+@)"
_WEBHOOKS: Final = (
    r"(?i:hooks\.slack\.com/(services|workflows|triggers)/|discord(app)?\.com/api/webhooks/"
    r"|webhook\.office\.com/|hooks\.zapier\.com/hooks/|api\.telegram\.org/bot)"
)
_TOKENS: Final = (
    "hf_[A-Za-z0-9]{20}|sk-[A-Za-z0-9_-]{20}|gh[pousr]_[A-Za-z0-9]{20}|github_pat_|glpat-"
    "|xox[abprs]-[0-9]|A[KS]IA[0-9A-Z]{16}|AIza[A-Za-z0-9_-]{30}|eyJ[A-Za-z0-9_-]{8,}[.]eyJ"
    "|-----BEGIN [A-Z ]*PRIVATE KEY|^(?i:bearer|basic) [A-Za-z0-9+/._~=-]{12,}$"
)
SECRET_VALUE_PATTERN: Final = f"{_CREDENTIALS_IN_URL}|{_WEBHOOKS}|{_TOKENS}"
"""Valid in Python and in RE2; no part can match at many lengths, so that it is fast in both."""


def holds_secret(value: str) -> bool:
    """Return whether a literal value must be refused under any name."""
    if re.search(SECRET_VALUE_PATTERN, value):
        return True
    return "://" in value and has_secret_query(unquote_plus(value))
