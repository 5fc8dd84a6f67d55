"""What is asked of an endpoint and what comes back. No logic of any protocol."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage returned by an endpoint; `score` is 1.0 if the answer had none."""

    id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Query:
    """A query or dialogue context; for role Actor also the fields the policy wrote."""

    context: str
    fields: tuple[tuple[str, str], ...] = ()
    columns: tuple[tuple[str, str], ...] = ()
    """The sample's columns that templates name, each as JSON text so that equal ones compare."""

    @classmethod
    def of(cls, context: str, fields: Mapping[str, str], columns: Mapping[str, Any]) -> Self:
        """Return the query with its columns as JSON texts."""
        texts = ((name, json.dumps(value)) for name, value in sorted(columns.items()))
        return cls(context, tuple(fields.items()), tuple(texts))

    @property
    def text(self) -> str:
        """The query for protocols without fields: the fields' values, then the context."""
        return "\n".join([*(value for _, value in self.fields), self.context])


Columns = Mapping[str, Any]
"""A sample's columns by name, JSON values."""
