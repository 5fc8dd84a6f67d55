"""Parse a turn of mode Search as Search-R1 does (arXiv 2503.09516). Pure."""

import re
from typing import Final

SEARCH_END: Final = "</search>"
"""Stop string of a turn. Text after it in the same token belongs to the turn, too."""
NO_QUERY: Final = (
    "<information>Nothing was searched for. To search, write the query between <search> and "
    "</search>.</information>"
)
"""Text inserted after a turn without a query."""
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


def search_query(text: str) -> str | None:
    """Return the query of a turn that ended with SEARCH_END, or "" if the turn has no query.

    Returns None if an <answer> comes before the query, because only the first tag counts.
    """
    action = _ACTION.search(text)
    if action is None:
        return ""
    return action[2].strip() if action[1] == "search" else None
