"""Find the passages in an answer of any shape, by the job's mapping or by the usual names.

An answer that does not fit is shown by its keys and types, never by its values, and a mapping
that fits it is proposed. Does no I/O.
"""

import re
from collections.abc import Iterator
from typing import Any

from raggrpo_api.fields.json_values import values_at
from raggrpo_api.spec.retrieval import ResponseMapping
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.diagnosis import has_error, reported_error, service_error
from raggrpo_trainer.http.responses import Stream

from .default_fields import (
    ID_PATHS,
    SCORE_PATHS,
    TEXT_PATHS,
    guess_id_path,
    guess_score_path,
    guess_text_path,
    parse_number,
)
from .passage import Passage

ITEMS_PATHS = ("results", "result", "hits.hits", "hits", "documents", "docs", "passages", "items",
         "matches", "data", "data.results", "$")  # fmt: skip
"""The usual names, best first."""

MAX_ITEMS = 1000
SHOWN_CHARACTERS = 480
SHOWN_KEYS = 12
SHOWN_LEVELS = 5
PROPOSED_LEVELS = 6
IN_ITEM_LEVELS = 3
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_@:-]{1,64}")


class MappingMismatch(CallFailed):
    """An answer in which the mapping finds nothing; `shape` shows it whole."""

    def __init__(self, problem: "_Unfit", answer: Any, *, needs_score: bool = False) -> None:
        proposal = suggested_mapping(answer, needs_score=needs_score)
        self.shape = shape(answer)
        remedy = f"set {as_spec(proposal)}; " if proposal else ""
        shown = self.shape[:SHOWN_CHARACTERS]
        if problem.place > 1:  # the results before it fit
            shown = f"{shape(problem.item)[:SHOWN_CHARACTERS]} as result {problem.place}"
        super().__init__(FailureCause.MISSING_FIELD, f"{problem}; {remedy}received {shown}")


class _Unfit(ValueError):
    """What is missing, and in which result (counted from 1; 0: in none)."""

    def __init__(self, problem: str, item: Any = None, place: int = 0) -> None:
        super().__init__(problem)
        self.item, self.place = item, place


def map_response(
    answer: Any, mapping: ResponseMapping, *, needs_score: bool = False
) -> tuple[Passage, ...]:
    """Return an answer's passages in its order.

    Of a stream, the results of all events that the mapping fits are joined; if it fits none, it is
    applied to `{"events": [...]}`. `needs_score`: a result without a score does not fit. Raises
    DoesNotFit, or CallFailed (ServiceError) if the stream tells of an error.
    """
    if not isinstance(answer, Stream):
        return _passages(answer, mapping, needs_score)
    for said in answer.errors:
        raise service_error(said)
    fits, joined = False, tuple[Passage, ...]()
    for event in answer.events:
        if has_error(event) and (error := reported_error(event)):
            raise error
        try:
            found = _read(event, mapping, needs_score)
        except _Unfit:
            found = ()
        else:
            fits = True
        if not found and (error := reported_error(event)):
            raise error
        joined = _joined_with(joined, found)
    return joined if fits else _passages({"events": answer.events}, mapping, needs_score)


def shape(value: Any) -> str:
    """Return the keys and types of a JSON value, without any of its values."""
    return _shape(value.events if isinstance(value, Stream) else value, SHOWN_LEVELS)


def suggested_mapping(answer: Any, *, needs_score: bool = False) -> ResponseMapping | None:
    """Return a mapping that fits an answer, or None if it holds no list of texts."""
    best, longest = None, 0
    for path, items in _lists(answer, "$", PROPOSED_LEVELS):
        leaves = dict(_leaves(items[0], "", IN_ITEM_LEVELS))
        text, length = guess_text_path(leaves, path)
        if length <= longest:
            continue
        mapping = ResponseMapping(
            items=path,
            id=guess_id_path({at: each for at, each in leaves.items() if at != text}),
            text=text,
            score=guess_score_path(
                {at: each for at, each in leaves.items() if parse_number(each) is not None}
            ),
        )
        try:
            _read(answer, mapping, needs_score)
        except _Unfit:
            continue
        best, longest = mapping, length
    return best


def as_spec(mapping: ResponseMapping) -> str:
    """Return a mapping as one writes it in a job."""
    fields = {name: path for name, path in mapping.model_dump().items() if path}
    return f"response: {{{', '.join(f'{name}: {_quoted(p)}' for name, p in fields.items())}}}"


def _passages(answer: Any, mapping: ResponseMapping, needs_score: bool) -> tuple[Passage, ...]:
    try:
        return _read(answer, mapping, needs_score)
    except _Unfit as error:
        raise MappingMismatch(error, answer, needs_score=needs_score) from None


def _read(answer: Any, mapping: ResponseMapping, needs_score: bool) -> tuple[Passage, ...]:
    """Return the passages. Raises _Unfit naming what is missing and where."""
    problem: _Unfit | None = None
    for path in [mapping.items] if mapping.items else ITEMS_PATHS:
        items = _items(path, answer)
        if items is None:
            continue
        passages: list[Passage] = []
        for place, item in enumerate(items, 1):
            if item is None:
                continue
            try:
                passages.append(_passage(item, mapping, needs_score))
            except ValueError as error:
                which = f"result {place} of {len(items)}" if passages else "a result"
                seen = place if passages else 0
                problem = problem or _Unfit(f"{path}: {which} {error}", item, seen)
                break
        else:
            return tuple(passages)
    raise problem or _Unfit(f"no list of results at {mapping.items or 'a usual name'}")


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
    text = _first(item, mapping.text, TEXT_PATHS)
    match text:
        case [str() as only]:  # a field of several values that has one
            text = only
    if not isinstance(text, str):
        raise ValueError(f"has no text at {mapping.text or 'a usual name'}")
    key = _first(item, mapping.id, ID_PATHS)
    if mapping.id and not isinstance(key, str | int | float):
        raise ValueError(f"has no id at {mapping.id}")
    found = _first(item, mapping.score, SCORE_PATHS)
    score = parse_number(found)
    if score is None and (mapping.score or needs_score or found is not None):
        raise ValueError(f"has no finite score at {mapping.score or 'a usual name'}")
    # Without ids, the text itself identifies a passage.
    given = str(key) if isinstance(key, str | int | float) else ""
    return Passage(given or text, text, 1.0 if score is None else score)


def _joined_with(earlier: tuple[Passage, ...], later: tuple[Passage, ...]) -> tuple[Passage, ...]:
    """Return the later results if they repeat the earlier ones, else both without doubles."""
    if not later or len(later) < len(earlier):
        repeats = False
    else:
        texts: dict[str, list[str]] = {}
        for each in later:
            texts.setdefault(each.id, []).append(each.text)
        repeats = all(
            any(text.startswith(each.text) for text in texts.get(each.id, ())) for each in earlier
        )
    if repeats:
        return later
    if len(earlier) == MAX_ITEMS:
        return earlier
    known = {(each.id, each.text) for each in earlier} if later else set()
    return (earlier + tuple(p for p in later if (p.id, p.text) not in known))[:MAX_ITEMS]


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
    elif isinstance(item, list) and item and path and levels:
        only = item[0]
        if len(item) == 1 and isinstance(only, str):
            yield path, only
        elif isinstance(only, dict):
            yield from _leaves(only, f"{path}[0]", levels - 1)
    elif not isinstance(item, dict | list):
        yield path or "$", item


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
