"""Read passages from a response of any shape, by the endpoint's `response` mapping. Does no I/O.

`response` gives the paths of the list of results and of text, id and score in each result. For
each path that it omits, default paths are tried (ITEMS_PATHS, `default_fields`). If a response does
not match, the error shows its keys and types, never its values, and suggests a mapping that
matches.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice
from typing import Any

from raggrpo_api.fields.json_values import values_at
from raggrpo_api.spec.retrieval import ResponseMapping
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.reported_errors import (
    has_error,
    reported_error,
    reported_failure,
    service_error,
)
from raggrpo_trainer.http.responses import Stream

from .default_fields import (
    CHUNK_ID_PATHS,
    DOCUMENT_ID_PATHS,
    OWN_ID_PATHS,
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
"""Default paths of the list of results, most specific first."""

MAX_ITEMS = 1000
MAX_STREAM_ITEMS = 100_000
"""Results in all events of a stream; reading them blocks the event loop."""
MAX_SHAPE_CHARACTERS = 480
MAX_SHAPE_KEYS = 12
MAX_SHAPE_DEPTH = 5
MAX_ITEMS_DEPTH = 6
MAX_FIELD_DEPTH = 3
MAX_SUGGESTION_LISTS = 20
"""Number of lists of a response that are tried as the list of results."""
MAX_SUGGESTION_FIELDS = 256
"""Number of fields of an object that are tried as text, id and score."""
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_@:-]{1,64}")


class MappingMismatch(CallFailed):
    """A response has no results at the mapped paths; `shape` contains its keys and types."""

    def __init__(self, problem: "_Mismatch", response: Any, *, needs_score: bool = False) -> None:
        suggestion = suggested_mapping(response, needs_score=needs_score)
        self.shape = shape(response)
        remedy = f"set {as_spec(suggestion)}; " if suggestion else ""
        received = self.shape[:MAX_SHAPE_CHARACTERS]
        if problem.number > 1:  # the earlier results match
            received = f"{shape(problem.item)[:MAX_SHAPE_CHARACTERS]} as result {problem.number}"
        super().__init__(FailureCause.MISSING_FIELD, f"{problem}; {remedy}received {received}")


class _Mismatch(ValueError):
    """A missing field, and the number of the result that lacks it, counted from 1.

    The number is 0 if there is no list of results, or if no result before the mismatch matches.
    """

    def __init__(self, problem: str, item: Any = None, number: int = 0) -> None:
        super().__init__(problem)
        self.item, self.number = item, number


def map_response(
    response: Any, mapping: ResponseMapping, *, needs_score: bool = False
) -> tuple[Passage, ...]:
    """Return the passages in a response, in its order.

    For a stream, the results of all events that match the mapping are merged; if none matches, the
    mapping is applied to `{"events": [...]}`. With `needs_score`, a result without a score is a
    mismatch. Raises MappingMismatch, or CallFailed: ServiceError if the stream reports an error,
    BadJson beyond MAX_STREAM_ITEMS.
    """
    if not isinstance(response, Stream):
        return _passages(response, mapping, needs_score)
    for error_body in response.errors:
        raise service_error(error_body)
    has_match = False
    num_results = 0
    merged = _MergedResults()
    for event in response.events:
        if failure := reported_failure(event):
            raise failure
        if has_error(event):
            raise service_error(event)
        try:
            passages = _read(event, mapping, needs_score)
        except _Mismatch:
            passages = ()
        else:
            has_match = True
        if not passages and (error := reported_error(event)):
            raise error
        num_results += len(passages)
        if num_results > MAX_STREAM_ITEMS:
            raise CallFailed(
                FailureCause.BAD_JSON,
                f"the events of the stream have more than {MAX_STREAM_ITEMS:,} results in total; "
                "return fewer results, or each result only once",
            )
        merged.add(passages)
    if has_match:
        return tuple(merged.passages)
    return _passages({"events": response.events}, mapping, needs_score)


def shape(value: Any) -> str:
    """Return the keys and types of a JSON value as text, without its values."""
    return _shape(value.events if isinstance(value, Stream) else value, MAX_SHAPE_DEPTH)


def suggested_mapping(response: Any, *, needs_score: bool = False) -> ResponseMapping | None:
    """Return a mapping that matches `response`, or None if `response` has no list of texts."""
    best, longest = None, 0
    lists = islice(_lists(response, "$", MAX_ITEMS_DEPTH), MAX_SUGGESTION_LISTS)
    for items_path, items in lists:
        leaves = dict(islice(_leaves(items[0], "", MAX_FIELD_DEPTH), MAX_SUGGESTION_FIELDS))
        text, length = guess_text_path(leaves, items_path)
        if length <= longest:
            continue
        mapping = ResponseMapping(
            items=items_path,
            id=guess_id_path({path: leaf for path, leaf in leaves.items() if path != text}),
            text=text,
            score=guess_score_path(
                {path: leaf for path, leaf in leaves.items() if parse_number(leaf) is not None}
            ),
        )
        try:
            _read(response, mapping, needs_score)
        except _Mismatch:
            continue
        best, longest = mapping, length
    return best


def as_spec(mapping: ResponseMapping) -> str:
    """Return a mapping in the format of a job's spec."""
    fields = {name: path for name, path in mapping.model_dump().items() if path}
    return f"response: {{{', '.join(f'{name}: {_quoted(p)}' for name, p in fields.items())}}}"


def _passages(response: Any, mapping: ResponseMapping, needs_score: bool) -> tuple[Passage, ...]:
    try:
        return _read(response, mapping, needs_score)
    except _Mismatch as error:
        raise MappingMismatch(error, response, needs_score=needs_score) from None


def _read(response: Any, mapping: ResponseMapping, needs_score: bool) -> tuple[Passage, ...]:
    """Return the passages in a response. Raises _Mismatch with the first missing field."""
    problem: _Mismatch | None = None
    for path in [mapping.items] if mapping.items else ITEMS_PATHS:
        items = _items(path, response)
        if items is None:
            continue
        passages: list[Passage] = []
        for number, item in enumerate(items, 1):
            if item is None:
                continue
            try:
                passages.append(_passage(item, mapping, needs_score))
            except ValueError as error:
                which = f"result {number} of {len(items)}" if passages else "a result"
                mismatch = _Mismatch(f"{path}: {which} {error}", item, number if passages else 0)
                problem = problem or mismatch
                break
        else:
            return tuple(passages)
    raise problem or _Mismatch(f"no list of results at {mapping.items or 'any default path'}")


def _items(path: str, response: Any) -> list[Any] | None:
    """Return the list of results at a path, with lists below `[*]` concatenated, or None."""
    values = values_at(path, response)
    lists = [value for value in values if isinstance(value, list)]
    if "[*]" in path and values and not lists:
        return values[:MAX_ITEMS]
    if not lists:
        return None
    return [item for each in lists for item in each][:MAX_ITEMS]


def _passage(item: Any, mapping: ResponseMapping, needs_score: bool) -> Passage:
    """Return the passage in one result. Raises ValueError with the missing field."""
    text = _first(item, mapping.text, TEXT_PATHS)
    match text:
        case [str() as single]:  # a multi-valued field with one value
            text = single
    if not isinstance(text, str):
        raise ValueError(f"has no text at {mapping.text or 'any default path'}")
    id_ = _first(item, mapping.id, ()) if mapping.id else _default_id(item)
    if mapping.id and not isinstance(id_, str | int | float):
        raise ValueError(f"has no id at {mapping.id}")
    raw_score = _first(item, mapping.score, SCORE_PATHS)
    score = parse_number(raw_score)
    if score is None and (mapping.score or needs_score or raw_score is not None):
        raise ValueError(f"has no finite score at {mapping.score or 'any default path'}")
    # Without ids, the text itself identifies a passage.
    key = str(id_) if isinstance(id_, str | int | float) else ""
    return Passage(key or text, text, 1.0 if score is None else score)


def _default_id(item: Any) -> Any:
    """Return the id at a default path; a chunk's number is unique only within its document."""
    for paths in (OWN_ID_PATHS, CHUNK_ID_PATHS, DOCUMENT_ID_PATHS):
        id_ = _first(item, "", paths)
        if not isinstance(id_, str | int | float):
            continue
        document = _first(item, "", DOCUMENT_ID_PATHS) if paths is CHUNK_ID_PATHS else None
        is_number = not isinstance(id_, str) or id_.isdigit()
        return f"{document}/{id_}" if is_number and document is not None else id_
    return None


class _MergedResults:
    """The results of a stream's events so far.

    Some services send all results so far with each event, others only the new results.
    """

    def __init__(self) -> None:
        self.passages: list[Passage] = []
        self._known: set[tuple[str, str]] = set()

    def add(self, later: tuple[Passage, ...]) -> None:
        """Replace the results if `later` repeats them, else add those that are new."""
        if len(later) >= len(self.passages) and self._are_repeated(later):
            self.passages, self._known = [*later], {(each.id, each.text) for each in later}
            return
        new = [each for each in later if (each.id, each.text) not in self._known]
        new = new[: MAX_ITEMS - len(self.passages)]
        self.passages.extend(new)
        self._known.update((each.id, each.text) for each in new)

    def _are_repeated(self, later: tuple[Passage, ...]) -> bool:
        """Return whether each text is the start of a text of `later` with the same id."""
        texts = sorted((each.id, each.text) for each in later)
        # Texts that start with a text follow it in order, so one comparison is enough for each.
        for each in self.passages:
            position = bisect_left(texts, (each.id, each.text))
            if position == len(texts):
                return False
            id_, text = texts[position]
            if id_ != each.id or not text.startswith(each.text):
                return False
        return True


def _first(item: Any, path: str, defaults: tuple[str, ...]) -> Any:
    """Return the first value at `path`, or at one of `defaults` if `path` is empty."""
    for candidate in [path] if path else defaults:
        for value in values_at(candidate, item):
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return value
            if value is None and not path:
                continue
            if candidate not in ("$", "document"):
                return value
    return None


def _lists(value: Any, path: str, depth: int) -> Iterator[tuple[str, list[Any]]]:
    """Yield path and items of the non-empty lists in a JSON value, outer lists first."""
    level = [(value, path)]
    for _ in range(depth):
        below: list[tuple[Any, str]] = []
        for each, at in level:
            if isinstance(each, list) and each:
                yield at, each
                below.append((each[0], f"{at}[*]"))
            elif isinstance(each, dict):
                below += [(item, _joined(at, key)) for key, item in _plain_items(each)]
        level = below


def _leaves(item: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(item, dict) and depth:
        for key, each in _plain_items(item):
            yield from _leaves(each, _joined(path, key), depth - 1)
    elif isinstance(item, list) and item and path and depth:
        first = item[0]
        if len(item) == 1 and isinstance(first, str):
            yield path, first
        elif isinstance(first, dict):
            yield from _leaves(first, f"{path}[0]", depth - 1)
    elif not isinstance(item, dict | list):
        yield path or "$", item


def _plain_items(value: dict[str, Any]) -> list[tuple[str, Any]]:
    fields = islice(value.items(), MAX_SUGGESTION_FIELDS)
    return [(key, each) for key, each in fields if _PLAIN_KEY.fullmatch(key)]


def _joined(path: str, key: str) -> str:
    return key if path in ("", "$") else f"{path}.{key}"


def _shape(value: Any, depth: int) -> str:
    match value:
        case dict() if not depth:
            return "{…}"
        case dict():
            shown = [
                f"{_key(k)}: {_shape(v, depth - 1)}" for k, v in [*value.items()][:MAX_SHAPE_KEYS]
            ]
            return f"{{{', '.join([*shown, *(['…'] if len(value) > MAX_SHAPE_KEYS else [])])}}}"
        case []:
            return "[]"
        case list():
            return f"[{len(value)} × {_shape(value[0], depth - 1) if depth else '…'}]"
        case str():
            return "text"
        case bool():
            return "boolean"
        case None:
            return "null"
        case _:
            return "number"


def _key(key: str) -> str:
    return key if _PLAIN_KEY.fullmatch(key) else repr(key[:24])


def _quoted(path: str) -> str:
    return f'"{path}"' if "[" in path else path
