"""Errors that a service reports in the body of a response of status 2xx. Does no I/O.

Field names are compared without case and underscores: `errCode` and `err_code` are `errcode`.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from raggrpo_trainer.call_failures import CallFailed, FailureCause

from .diagnosis import is_transient_status

CODE_FIELDS: Final = ("code", "errcode", "errno", "errorcode", "retcode", "ret")
"""Fields whose number is 0 or 2xx after a success."""
STATUS_FIELDS: Final = ("status", "statuscode")
"""Fields whose number is an error from 400; other numbers have different meanings."""
SUCCESS_FLAGS: Final = ("success", "ok", "succeeded", "issuccess")
FAILURE_FLAGS: Final = ("iserror", "haserror", "failed")
ERROR_FIELDS: Final = ("error", "errors")
PARTIAL_FLAGS: Final = {"timedout": "the search timed out", "partialresults": "partial results",
    "ispartial": "partial results", "searchcutoff": "the search was cut off"}  # fmt: skip
"""Flags of search servers whose response misses results."""
MESSAGE_FIELDS: Final = (
    "message", "msg", "errmsg", "errormessage", "statusmsg", "detail", "error", "errors", "reason",
    "description", "title", "content", "text", "type",
)  # fmt: skip
"""Fields in which services describe an error, most specific first."""
HEADER_FIELDS: Final = (
    "status", "header", "responseheader", "meta", "baseresp",
    "response", "rawresponse", "responses",
)  # fmt: skip
"""Fields whose objects may contain code, message and flags of the whole response."""
FAILURE_WORDS: Final = frozenset(
    {"error", "fail", "failed", "failure", "exception", "timeout", "unavailable", "unauthorized"}
    | {"forbidden", "denied", "rejected", "aborted", "invalid"}
)
SUCCESS: Final = re.compile(
    r"(?i)^(?!.*\b(not|no|un\w+|fail\w*|error\w*)\b).*(\bok\b|\bsucce|成功)"
)
"""Pattern of messages and codes that state a success."""
MAX_ERROR_DEPTH: Final = 3


def reported_failure(value: Any) -> CallFailed | None:
    """Return the failure that a response states, which makes its results unusable, or None."""
    for each in _headers(value):
        if partial := _partial_results(each):
            detail = f"the service reports incomplete results: {partial}"
            return CallFailed(FailureCause.SERVICE_ERROR, detail, transient=True)
        code = next(filter(None, (_error_code(each, name, is_code) for name, is_code in _CODES)), 0)
        if code or _has_failure_word(each):
            words = each if _message(each, MAX_ERROR_DEPTH) else value
            return service_error(words, code)
    return None


def reported_error(value: Any) -> CallFailed | None:
    """Return the failure or error that a response without results reports in its body, or None."""
    if failure := reported_failure(value):
        return failure
    return service_error(value) if has_error(value) or _has_text_code(value) else None


def has_error(value: Any) -> bool:
    """Return whether a JSON value has a non-empty error field."""
    if not isinstance(value, dict):
        return False
    fields = _fields(value)
    errors = [fields.get(name) for name in ERROR_FIELDS]
    # Some services always send an error object, with code 0 and without a message.
    return any(any(each.values()) if isinstance(each, dict) else each for each in errors)


def service_error(body: Any, code: int = 0) -> CallFailed:
    """Return the failure for an error that a service reports in its body."""
    message = " ".join(_message(body, MAX_ERROR_DEPTH).split()) or "no reason given"
    detail = f"the service reports an error: {f'{code} ' if code else ''}{message}"
    transient = code < 600 and is_transient_status(code)
    return CallFailed(FailureCause.SERVICE_ERROR, detail, transient=transient)


def _is_error_code(code: int) -> bool:
    return code != 0 and not 200 <= code < 300


def _is_error_status(code: int) -> bool:
    return code >= 400


_CODES: Final[tuple[tuple[str, Callable[[int], bool]], ...]] = (
    *((name, _is_error_code) for name in CODE_FIELDS),
    *((name, _is_error_status) for name in STATUS_FIELDS),
)


def _headers(value: Any) -> Iterator[dict[str, Any]]:
    """Yield the fields of a response and of the objects that describe it as a whole."""
    if not isinstance(value, dict):
        return
    fields = _fields(value)
    yield fields
    for name in HEADER_FIELDS:
        below = fields.get(name)
        for each in below if isinstance(below, list) else [below]:
            if isinstance(each, dict):
                yield _fields(each)


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "").casefold(): each for name, each in value.items()}


def _error_code(fields: Mapping[str, Any], name: str, is_error: Callable[[int], bool]) -> int:
    """Return the error code in a field; 0 if it is none, or if the message states a success."""
    code = _number(fields.get(name))
    if not is_error(code) or _is_success(_message(fields, MAX_ERROR_DEPTH)):
        return 0
    return code


def _number(value: Any) -> int:
    text = str(value).strip() if isinstance(value, str) else ""
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text[:9])
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0


def _has_failure_word(fields: Mapping[str, Any]) -> bool:
    flags = [fields[name] for name in SUCCESS_FLAGS if name in fields]
    words = [_word(fields.get(name)) for name in ("status", "state", "result", "code")]
    is_failed = any(fields.get(name) is True for name in FAILURE_FLAGS)
    return is_failed or any(map(_is_false, flags)) or not FAILURE_WORDS.isdisjoint(words)


def _has_text_code(value: Any) -> bool:
    """Return whether a field such as `code` contains a word other than a success."""
    fields = _fields(value) if isinstance(value, dict) else {}
    texts = [fields.get(name) for name in CODE_FIELDS]
    return any(
        isinstance(text, str) and any(map(str.isalpha, text)) and not _is_success(text)
        for text in texts
    )


def _is_false(value: Any) -> bool:
    return (isinstance(value, int) and not value) or _word(value) == "false"


def _is_success(text: str) -> bool:
    return SUCCESS.search(text) is not None


def _word(value: Any) -> str:
    return value.strip(" .!").casefold() if isinstance(value, str) else ""


def _partial_results(fields: Mapping[str, Any]) -> str:
    """Return why a search server's response misses results, or "" if it is complete."""
    shards = fields.get("shards")
    shards = shards if isinstance(shards, dict) else {}
    failed = _number(shards.get("failed"))
    if failed > 0:
        reason = _message(shards.get("failures"), MAX_ERROR_DEPTH)
        total = shards.get("total", "all")
        return f"{failed} of {total} shards failed{f': {reason}' if reason else ''}"
    flags = [words for name, words in PARTIAL_FLAGS.items() if fields.get(name) is True]
    return next(iter(flags), "")


def _message(body: Any, depth: int) -> str:
    """Return the text of an error, or of its first message field, at most `depth` levels down."""
    if isinstance(body, str):
        return body
    if isinstance(body, list) and body and depth:
        return _message(body[0], depth - 1)
    if isinstance(body, dict) and depth:
        fields = _fields(body)
        messages = (_message(fields.get(name), depth - 1) for name in MESSAGE_FIELDS)
        return next((message for message in messages if message), "")
    return ""
