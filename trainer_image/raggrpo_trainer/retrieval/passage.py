"""`Query` and `Passage`: an endpoint's input and output, independent of its protocol."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage returned by an endpoint; `score` is 1.0 if the response has none."""

    id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Query:
    """A query or a dialogue context; for role Actor with the fields that the policy generated."""

    context: str
    fields: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    """The sample's columns that templates name, as JSON text, which makes queries hashable."""

    @classmethod
    def of(cls, context: str, fields: Mapping[str, str], columns: Mapping[str, Any]) -> Self:
        """Return a query with its columns encoded as JSON."""
        texts = ((name, json.dumps(value)) for name, value in sorted(columns.items()))
        return cls(context, tuple(fields.items()), tuple(texts))

    @property
    def text(self) -> str:
        """The query as one text, for protocols without fields: field values, then context."""
        return "\n".join([*(value for _, value in self.fields), self.context])


Columns = Mapping[str, Any]
"""Columns of a sample by name; JSON values."""
