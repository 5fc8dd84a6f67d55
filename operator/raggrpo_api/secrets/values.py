"""Values in known formats of secrets under any name: credentials in URLs, tokens, webhooks.

`detection` recognizes further secrets, which the API server cannot recognize.
"""

import re
from typing import Final
from urllib.parse import unquote_plus

from .names import has_secret_query

_CREDENTIALS_IN_URL: Final = (
    r"://[^/?#\s:@]*:[^/?#\s@]+@|(?i:https?://[^/?#\s@]+@)|://[A-Za-z0-9_.-]{16,99}@"
    r"|(?i:(sql|mongo|postgres|rediss?|amqps?|db)([+][a-z]+)?://[^/\s:@]*:[^\s@]{1,128}@)"
    r"|^[^/\s:@]{1,128}:[^\s@]{1,128}@[^\s@:]{1,255}:[0-9]"  # a proxy needs no scheme
)
_ASSIGNED: Final = (
    r"(?i:(^|[;,&?\s])[-a-z._]{0,40}(password|passwd|pwd|accountkey|(api|access)[-_]?key"
    r"|sharedaccess(key|signature))\s*=\s*[^;,\s]|authorization\s*[:=]\s*[a-z0-9])"
)
"""Pattern of secrets that are assigned in connection strings and command lines."""
_WEBHOOKS: Final = (
    r"(?i:hooks\.slack\.com/(services|workflows|triggers)/|/hooks/[a-z0-9]{20}"
    r"|discord(app)?\.com/api/(v[0-9]+/)?webhooks/|(webhook\.office\.com|office\.com/webhook)/"
    r"|hooks\.zapier\.com/hooks/|api\.telegram\.org/bot|[?&]code=[^&])"
)
_TOKENS: Final = (
    "(^|[^A-Za-z0-9])(hf_[A-Za-z0-9]{20}|sk-[A-Za-z0-9_-]{0,24}[A-Za-z0-9]{16}|sk-(proj|ant|admin|svcacct)-[A-Za-z0-9_-]{16}|[rs]k_(live|test)_[A-Za-z0-9]{9}|gh[pousr]_[A-Za-z0-9]{20}"
    "|github_pat_|glpat-|npm_[A-Za-z0-9]{20}|pypi-A[A-Za-z0-9_-]{16}|SG[.][A-Za-z0-9_-]{16}"
    "|dapi[0-9a-f]{16}|ya29[.][A-Za-z0-9_-]{9}|xapp-[0-9]|nvapi-[A-Za-z0-9_-]{16}|hvs[.][A-Za-z0-9_-]{16}"
    "|pcsk_[A-Za-z0-9_]{16}|tvly-[A-Za-z0-9-]{16}|tskey-[a-z]|xox[abprs]-[0-9]|A[KS]IA[0-9A-Z]{16}"
    "|AIza[A-Za-z0-9_-]{30})|eyJ[A-Za-z0-9_-]{8,300}[.]eyJ|-----BEGIN [A-Z ]{0,40}PRIVATE KEY"
    r"|^(?i:(bearer|basic)\s+[A-Za-z0-9+/._~=-]{12,}|token\s+[A-Za-z0-9+/._~=-]{16,})$"
)
_MORE_TOKENS: Final = (
    "(^|[^A-Za-z0-9])(gsk_[A-Za-z0-9]{20}|r8_[A-Za-z0-9]{20}|xai-[A-Za-z0-9]{20}|pplx-[A-Za-z0-9]{20}|jina_[0-9a-f]{20}"
    "|rpa_[A-Z0-9]{20}|fw_[A-Za-z0-9]{20}|lsv2_[a-z]{2}_[0-9a-f]{20}|ntn_[A-Za-z0-9]{20}|dckr_pat_"
    "|do[opr]_v1_[0-9a-f]{20}|shp(at|ca|pa|ss)_[0-9a-fA-F]{20}|AT(AT|CT)T3[A-Za-z0-9]|GOCSPX-|whsec_[A-Za-z0-9]{16}"
    "|lin_api_|rubygems_[0-9a-f]{20}|sntry[su]_|PMAK-[0-9a-f]|NRAK-[A-Z0-9]|figd_[A-Za-z0-9]|sbp_[0-9a-f]{20}"
    "|LTAI[A-Za-z0-9]{16}|AKID[A-Za-z0-9]{28}|glrt-[A-Za-z0-9]|hvb[.][A-Za-z0-9]{16}|xox[ce][.-]|AGE-SECRET-KEY-1"
    "|wandb_v1_[A-Za-z0-9]{16}|1//0[A-Za-z0-9_-]{30}|[0-9]{8,10}:AA[A-Za-z0-9_-]{33}"
    "|(IQoJb3JpZ2lu|[FI]woGZXIvYXdz|FQoGZXIvYXdz)[A-Za-z0-9/+]|MII[A-Za-z0-9+/]{2}[AQgw]IBA"
    "|PuTTY-User-Key-File|SK[0-9a-f]{32})"
)
"""Tokens of further providers, temporary AWS credentials, and private keys (DER) in base64."""
SECRET_VALUE_PATTERNS: Final = (
    f"{_CREDENTIALS_IN_URL}|{_ASSIGNED}|{_WEBHOOKS}",
    _TOKENS,
    _MORE_TOKENS,
)
"""Patterns of secret values, valid in Python and RE2, without expensive backtracking.

There are several patterns, because the API server limits the cost of a rule.
"""


def has_known_secret(value: str) -> bool:
    """Return whether a literal value contains a secret in a known format."""
    if any(re.search(pattern, value) for pattern in SECRET_VALUE_PATTERNS):
        return True
    return "://" in value and has_secret_query(unquote_plus(value))
