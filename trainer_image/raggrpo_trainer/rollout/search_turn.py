"""Parse a turn of mode Search as Search-R1 does (arXiv 2503.09516). Pure."""

from typing import Final

from raggrpo_trainer.tagged_text import tagged_texts

SEARCH_END: Final = "</search>"
"""Stop string of a turn. Text after it in the same token belongs to the turn, too."""
NO_QUERY: Final = (
    "<information>Nothing was searched for. To search, write the query between <search> and "
    "</search>.</information>"
)
"""Text inserted after a turn without a query."""


def search_query(text: str) -> str | None:
    """Return the query of a turn that ended with SEARCH_END, or "" if the turn has no query.

    Returns None if an <answer> comes before the query, because only the first tag counts.
    """
    name, content = next(tagged_texts(text, ("search", "answer")), ("search", ""))
    return content.strip() if name == "search" else None
