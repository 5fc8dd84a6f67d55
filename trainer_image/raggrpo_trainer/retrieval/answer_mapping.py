"""Find the passages in an answer of any shape, by the job's mapping or by the usual names.

An answer that does not fit is shown by its keys and types, never by its values, and a mapping
that fits it is proposed. Does no I/O.
"""

import math
import re
from collections.abc import Iterator
from typing import Any

from raggrpo_api.json_values import values_at
from raggrpo_api.spec.retrieval import ResponseMapping
from raggrpo_trainer.http.answers import Stream
from raggrpo_trainer.sample_failures import CallFailed, FailureCause

from .passage import Passage

ITEMS = ("results", "result", "hits.hits", "hits", "documents", "docs", "passages", "items",
         "matches", "data", "data.results", "$")  # fmt: skip
TEXTS = ("text", "contents", "content", "passage", "page_content", "snippet", "document.text",
         "document.contents", "document.content", "node.text", "_source.text", "_source.contents",
         "_source.content", "metadata.text", "payload.text", "body", "document", "$")  # fmt: skip
IDS = ("id", "_id", "doc_id", "document_id", "chunk_id", "document.id", "node.id", "metadata.id",
       "uuid")  # fmt: skip
SCORES = ("score", "_score", "similarity", "relevance", "relevance_score", "rerank_score")
"""The usual names, best first. Never a distance, of which less is better."""

MAX_ITEMS = 1000
SHOWN_CHARACTERS = 480
SHOWN_KEYS = 12
SHOWN_LEVELS = 5
PROPOSED_LEVELS = 6
IN_ITEM_LEVELS = 3
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_@:-]{1,64}")


class DoesNotFit(CallFailed):
    """An answer in which the mapping finds nothing; `shape` shows it whole."""

    def __init__(self, problem: str, answer: Any, *, needs_score: bool = False) -> None:
        proposal = proposed(answer, needs_score=needs_score)
        self.shape = shape(answer)
        remedy = f"set {written(proposal)}; " if proposal else ""
        super().__init__(
            FailureCause.MISSING_FIELD,
            f"{problem}; {remedy}received {self.shape[:SHOWN_CHARACTERS]}",
        )


def passages_in(
    answer: Any, mapping: ResponseMapping, *, needs_score: bool = False
) -> tuple[Passage, ...]:
    """Return an answer's passages in its order.

    Of a stream, the last event that the mapping fits counts; if none does, the mapping is applied
    to `{"events": [...]}`. `needs_score`: a result without a score does not fit. Raises DoesNotFit.
    """
    if not isinstance(answer, Stream):
        return _passages(answer, mapping, needs_score)
    for event in reversed(answer.events):
        try:
            return _read(event, mapping, needs_score)
        except ValueError:
            continue
    return _passages({"events": answer.events}, mapping, needs_score)


def shape(value: Any) -> str:
    """Return the keys and types of a JSON value, without any of its values."""
    return _shape(value.events if isinstance(value, Stream) else value, SHOWN_LEVELS)


def proposed(answer: Any, *, needs_score: bool = False) -> ResponseMapping | None:
    """Return a mapping that fits an answer, or None if it holds no list of texts."""
    for path, items in _lists(answer, "$", PROPOSED_LEVELS):
        leaves = dict(_leaves(items[0], "", IN_ITEM_LEVELS))
        text = _likely(leaves, TEXTS, ("text", "content", "body", "passage"), str)
        if not text:
            continue
        numbers = {at: each for at, each in leaves.items() if _number(each) is not None}
        mapping = ResponseMapping(
            items=path,
            id=_likely({a: e for a, e in leaves.items() if a != text}, IDS,
                       ("id", "ref", "key", "sku", "uuid"), (str, int), only_named=True),
            text=text,
            score=_likely(numbers, SCORES, ("score", "rel", "sim", "rank_score"), (int, float, str),
                          only_named=True),
        )  # fmt: skip
        try:
            _read(answer, mapping, needs_score)
        except ValueError:
            continue
        return mapping
    return None


def written(mapping: ResponseMapping) -> str:
    """Return a mapping as one writes it in a job."""
    fields = {name: path for name, path in mapping.model_dump().items() if path}
    return f"response: {{{', '.join(f'{name}: {_quoted(p)}' for name, p in fields.items())}}}"


def _passages(answer: Any, mapping: ResponseMapping, needs_score: bool) -> tuple[Passage, ...]:
    try:
        return _read(answer, mapping, needs_score)
    except ValueError as error:
        raise DoesNotFit(str(error), answer, needs_score=needs_score) from None


def _read(answer: Any, mapping: ResponseMapping, needs_score: bool) -> tuple[Passage, ...]:
    """Return the passages. Raises ValueError naming what is missing and where."""
    problem = ""
    for path in [mapping.items] if mapping.items else ITEMS:
        items = _items(path, answer)
        if items is None:
            continue
        try:
            return tuple(_passage(each, mapping, needs_score) for each in items)
        except ValueError as error:
            problem = problem or f"{path}: {error}"
    raise ValueError(problem or f"no list of results at {mapping.items or 'a usual name'}")


def _items(path: str, answer: Any) -> list[Any] | None:
    """Return the results at a path, the lists that `[*]` leads to joined; None if it is no list."""
    found = values_at(path, answer)
    lists = [each for each in found if isinstance(each, list)]
    if "[*]" in path and found and not lists:
        return found[:MAX_ITEMS]
    if not lists:
        return None
    return [item for each in lists for item in each][:MAX_ITEMS]


def _passage(item: Any, mapping: ResponseMapping, needs_score: bool) -> Passage:
    """Return one result. Raises ValueError naming what it lacks."""
    text = _first(item, mapping.text, TEXTS)
    if not isinstance(text, str):
        raise ValueError(f"a result has no text at {mapping.text or 'a usual name'}")
    key = _first(item, mapping.id, IDS)
    if mapping.id and not isinstance(key, str | int | float):
        raise ValueError(f"a result has no id at {mapping.id}")
    found = _first(item, mapping.score, SCORES)
    score = _number(found)
    if score is None and (mapping.score or needs_score or found is not None):
        raise ValueError(f"a result has no finite score at {mapping.score or 'a usual name'}")
    # Without ids, the text itself identifies a passage.
    given = str(key) if isinstance(key, str | int | float) else ""
    return Passage(given or text, text, 1.0 if score is None else score)


def _first(item: Any, path: str, usual: tuple[str, ...]) -> Any:
    for each in [path] if path else usual:
        for value in values_at(each, item):
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return value
            if value is None and not path:
                continue
            if each not in ("$", "document"):
                return value
    return None


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _lists(value: Any, path: str, levels: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield the non-empty lists of a JSON value with their paths, outer ones first."""
    level = [(value, path)]
    for _ in range(levels):
        below: list[tuple[Any, str]] = []
        for each, at in level:
            if isinstance(each, list) and each:
                yield at, each
                below.append((each[0], f"{at}[*]"))
            elif isinstance(each, dict):
                below += [(item, _joined(at, key)) for key, item in _plain_items(each)]
        level = below


def _leaves(item: Any, path: str, levels: int) -> Iterator[tuple[str, Any]]:
    if isinstance(item, dict) and levels:
        for key, each in _plain_items(item):
            yield from _leaves(each, _joined(path, key), levels - 1)
    elif not isinstance(item, dict | list):
        yield path or "$", item


def _likely(
    leaves: dict[str, Any],
    usual: tuple[str, ...],
    parts: tuple[str, ...],
    kinds: type | tuple[type, ...],
    *,
    only_named: bool = False,
) -> str:
    """Return the path of the leaf that is most likely meant: by name, else the longest text."""
    fit = {at: each for at, each in leaves.items() if isinstance(each, kinds)}
    for path in usual:
        if path in fit:
            return path
    for path in fit:
        if any(part in path.rpartition(".")[2].lower() for part in parts):
            return path
    return "" if only_named else max(fit, key=lambda path: len(str(fit[path])), default="")


def _plain_items(value: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(key, each) for key, each in value.items() if _PLAIN_KEY.fullmatch(key)]


def _joined(path: str, key: str) -> str:
    return key if path in ("", "$") else f"{path}.{key}"


def _shape(value: Any, levels: int) -> str:
    match value:
        case dict() if not levels:
            return "{…}"
        case dict():
            shown = [
                f"{_key(k)}: {_shape(v, levels - 1)}" for k, v in [*value.items()][:SHOWN_KEYS]
            ]
            return f"{{{', '.join([*shown, *(['…'] if len(value) > SHOWN_KEYS else [])])}}}"
        case []:
            return "[]"
        case list():
            return f"[{len(value)} × {_shape(value[0], levels - 1) if levels else '…'}]"
        case str():
            return "text"
        case bool():
            return "true or false"
        case None:
            return "null"
        case _:
            return "number"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else repr(key[:24])


def _quoted(path: str) -> str:
    return f'"{path}"' if "[" in path else path
