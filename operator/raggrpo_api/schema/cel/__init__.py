"""CEL rules, which the API server enforces even while the operator is down.

They only compare values that the user set: presets are unknown here, so has() guards every
optional field. The operator's rules repeat and complete them; a test on a real API server makes
sure that the operator also refuses whatever is refused here.
"""

from collections.abc import Mapping

from .across import ACROSS_BLOCKS
from .blocks import IN_ONE_BLOCK
from .frozen import FROZEN
from .rule import CelRule
from .sizes import SIZES

_NAME = "^[a-z]([-a-z0-9]*[a-z0-9])?$"

VALIDATIONS: Mapping[str, tuple[CelRule, ...]] = {
    "": (
        CelRule(
            f"size(self.metadata.name) <= 44 && self.metadata.name.matches('{_NAME}')",
            "metadata.name: use lower-case letters, digits and hyphens, at most 44, "
            "beginning with a letter",
        ),
        FROZEN,
    ),
    "spec": (*ACROSS_BLOCKS, *SIZES["spec"]),
    **IN_ONE_BLOCK,
    "spec.env": SIZES["spec.env"],
}
"""Place in the schema → its rules."""
