"""Rules that the API server itself checks, also while the operator is down (B2).

Only comparisons of values that are given: presets are unknown here, so every optional field is
guarded by has(). The operator's rules repeat and complete them; a test on a real API server shows
that whatever is refused here is refused there too.
"""

from collections.abc import Mapping

from .across import ACROSS_BLOCKS
from .blocks import IN_ONE_BLOCK
from .frozen import FROZEN
from .rule import CelRule

_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

VALIDATIONS: Mapping[str, tuple[CelRule, ...]] = {
    "": (
        CelRule(
            f"size(self.metadata.name) <= 44 && self.metadata.name.matches('{_NAME}')",
            "metadata.name: use lower-case letters, digits and hyphens, at most 44, "
            "beginning with a letter",
        ),
        *FROZEN,
    ),
    "spec": ACROSS_BLOCKS,
    **IN_ONE_BLOCK,
}
"""Place in the schema → its rules."""
