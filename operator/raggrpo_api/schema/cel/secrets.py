"""CEL rules against secrets in plain text, for every block that may hold one."""

from raggrpo_api.spec.secret_names import SECRET_NAME_PATTERN, SECRET_QUERY_PATTERN
from raggrpo_api.spec.secret_values import SECRET_VALUE_PATTERNS

from .rule import CelRule, matches

NO_SECRET_NAME = CelRule(
    f"!has(self.value) || size(self.value) == 0 || !{matches('self.name', SECRET_NAME_PATTERN)}",
    "value: the name looks like a secret, give secretKeyRef instead of value",
)
NO_SECRET_IN_VALUE = tuple(
    CelRule(
        f"!has(self.value) || !{matches('self.value', pattern)}",
        "value: it looks like a secret, give secretKeyRef instead of value",
    )
    for pattern in SECRET_VALUE_PATTERNS
)
NO_SECRET_IN_URL = (
    CelRule(
        f"!has(self.url) || !{matches('self.url', SECRET_QUERY_PATTERN)}",
        "url: its query holds what looks like a secret; take it out, use a header with "
        "secretKeyRef",
        ".url",
    ),
    *(
        CelRule(
            f"!has(self.url) || !{matches('self.url', pattern)}",
            "url: it holds what looks like a secret; take it out, use a header with secretKeyRef",
            ".url",
        )
        for pattern in SECRET_VALUE_PATTERNS
    ),
)
