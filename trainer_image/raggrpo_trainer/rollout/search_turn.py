"""What a turn of mode Search asks for, read as Search-R1 reads it (arXiv 2503.09516). Pure."""

import re
from typing import Final

SEARCH_END: Final = "</search>"
"""Ends a turn. The token that completes it may carry more text, which belongs to the turn."""
NO_QUERY: Final = (
    "<information>Nothing was searched for. To search, write the query between <search> and "
    "</search>.</information>"
)
"""What the policy reads after a turn that ended without a query."""
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


def query_of(text: str) -> str | None:
    """Return the query of a turn that ended with SEARCH_END; empty if it holds none.

    None if the turn has given its answer before: the first tag counts.
    """
    action = _ACTION.search(text)
    if action is None:
        return ""
    return action[2].strip() if action[1] == "search" else None
