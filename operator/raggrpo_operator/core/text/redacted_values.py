"""Values of a job or a configuration for display, with secrets hidden. Pure."""

import re
from collections.abc import Mapping
from typing import Any

from raggrpo_api.fields.json_values import FREE_JSON
from raggrpo_api.secrets.detection import HIDDEN
from raggrpo_api.secrets.redaction import redacted, redacted_field
from raggrpo_api.secrets.values import has_known_secret


def redacted_value(path: str, value: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a path for display. `values` are all values by path.

    The value of a pair such as `env[0].value` is hidden if its name looks like that of a secret.
    """
    block, _, field = path.rpartition(".")
    if field == "value":
        return redacted(value, str(values.get(f"{block}.name", "")))
    if not set(FREE_JSON).isdisjoint(re.split(r"[.\[]", block)):
        return redacted(value, field)
    shown = redacted_field(value, field)
    return HIDDEN if isinstance(shown, str) and has_known_secret(shown) else shown
