"""Errors that a service reports in the body of a response of status 2xx. Does no I/O.

Field names are compared without case and underscores: `errCode` and `err_code` are `errcode`.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from raggrpo_trainer.call_failures import CallFailed, FailureCause

from .diagnosis import is_transient_status

CODE_FIELDS: Final = ("code", "errcode", "errno", "errorcode", "retcode", "ret")
"""Fields whose number is 0 or 2xx after a success."""
STATUS_FIELDS: Final = ("status", "statuscode")
"""Fields whose number is an error from 400; other numbers have different meanings."""
SUCCESS_FLAGS: Final = ("success", "ok", "succeeded", "issuccess")
FAILURE_FLAGS: Final = ("iserror", "haserror", "failed")
ERROR_FIELDS: Final = ("error", "errors", "err", "exception")
ERROR_MESSAGE_FIELDS: Final = ("errmsg", "errormsg", "errormessage")
"""Fields whose text is an error, unless a code of the same object states a success."""
PARTIAL_FLAGS: Final = {"timedout": "the search timed out", "partialresults": "partial results",
    "ispartial": "partial results", "searchcutoff": "the search was cut off"}  # fmt: skip
"""Flags of search servers whose response misses results."""
MESSAGE_FIELDS: Final = (
    "message", "msg", "errmsg", "errormsg", "errormessage", "statusmsg", "detail", "error",
    "errors", "err", "exception", "reason", "description", "title", "content", "text", "type",
)  # fmt: skip
"""Fields in which services describe an error, most specific first."""
HEADER_FIELDS: Final = (
    "status", "header", "responseheader", "meta", "baseresp",
    "response", "rawresponse", "responses",
)  # fmt: skip
"""Fields whose objects may contain code, message and flags of the whole response."""
MAX_HEADERS: Final = 16
"""Maximum number of such objects in a list that are searched for an error."""
FAILURE_WORDS: Final = frozenset(
    {"error", "errors", "err", "fail", "failed", "failure", "exception", "invalid", "bad", "ko"}
    | {"timeout", "timedout", "exceeded", "exhausted", "ratelimit", "ratelimited", "throttled"}
    | {"throttling", "toomanyrequests", "unavailable", "overloaded", "internal", "unimplemented"}
    | {"unauthorized", "unauthenticated", "forbidden", "denied", "rejected", "refused", "aborted"}
    | {"cancelled", "canceled", "nok", "notok", "notsuccessful", "unsuccessful"}
)
"""Words of a status that state a failure; several words also count as one, such as `not_ok`."""
MAX_STATUS_WORDS: Final = 4
"""Maximum number of words in a status; longer texts are content."""
WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
"""A word of a status such as `rate_limited`, `NOT_OK`, `server error` and `InternalError`."""
NO_ERROR: Final = re.compile(
    r"(?i)(?<![a-z\d])(?:no|non|without|zero|0)[\W_]*"
    r"(?:err(?:or)?s?|fail(?:ures?|ed)?|exceptions?)(?![a-z])"
    r"|(?<![a-z])err(?:or)?[\W_]*(?:none|ok|success)(?![a-z])"
)
"""Pattern of statuses that state the absence of errors."""
NO_VALUES: Final = frozenset({"0", "f", "false", "n", "no", "off"})
NO_ERROR_VALUES: Final = NO_VALUES | {"", "-", "nil", "none", "null", "ok", "success"}
YES_VALUES: Final = frozenset({"1", "on", "true", "y", "yes"})
SUCCESS: Final = re.compile(
    r"(?i)^(?!.*\b(not|no|un\w+|fail\w*|error\w*)\b).*(\bok\b|\bsucce|成功)"
)
"""Pattern of messages and codes that state a success."""
MAX_ERROR_DEPTH: Final = 3
MAX_ERROR_CHARACTERS: Final = 4096
"""Number of characters of a text that are searched for an error; longer texts are content."""


def reported_failure(value: Any) -> CallFailed | None:
    """Return the failure that a response states, which makes its results unusable, or None."""
    for each in _headers(value):
        if partial := _partial_results(each):
            detail = f"the service reports incomplete results: {partial}"
            return CallFailed(FailureCause.SERVICE_ERROR, detail, transient=True)
        code = next(filter(None, (_error_code(each, name, is_code) for name, is_code in _CODES)), 0)
        if code or _has_failure_word(each):
            words = each if _text(each) else value
            return service_error(words, code)
    return None


def reported_error(value: Any) -> CallFailed | None:
    """Return the failure or error that a response without results reports in its body, or None."""
    if failure := reported_failure(value):
        return failure
    if has_error(value):
        return service_error(value)
    failed = next(filter(_has_error_without_results, _headers(value)), None)
    return None if failed is None else service_error(failed if _text(failed) else value)


def has_error(value: Any) -> bool:
    """Return whether a JSON value has a non-empty error field."""
    if not isinstance(value, dict):
        return False
    fields = _fields(value)
    return any(_is_error(fields.get(name)) for name in ERROR_FIELDS)


def service_error(body: Any, code: int = 0) -> CallFailed:
    """Return the failure for an error that a service reports in its body."""
    message = " ".join(_text(body).split()) or "no reason given"
    detail = f"the service reports an error: {f'{code} ' if code else ''}{message}"
    transient = code < 600 and is_transient_status(code)
    return CallFailed(FailureCause.SERVICE_ERROR, detail, transient=transient)


def _is_error(value: Any) -> bool:
    """Return whether the value of an error field states an error."""
    if isinstance(value, str):
        return _word(value) not in NO_ERROR_VALUES and not _states_no_error(value)
    # Some services always send an error object, with code 0 and without a message.
    return any(value.values()) if isinstance(value, dict) else bool(value)


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
        for each in islice(below, MAX_HEADERS) if isinstance(below, list) else [below]:
            if isinstance(each, dict):
                yield _fields(each)


def _fields(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "").casefold(): each for name, each in value.items()}


def _error_code(fields: Mapping[str, Any], name: str, is_error: Callable[[int], bool]) -> int:
    """Return the error code in a field; 0 if it is none, or if the message states a success."""
    code = _number(fields.get(name))
    if not is_error(code) or _is_success(_text(fields)):
        return 0
    return code


def _number(value: Any) -> int:
    text = str(value).strip() if isinstance(value, str) else ""
    if text.isascii() and text.removeprefix("-").isdigit():
        return int(text[:9])
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and math.isfinite(value) else 0


def _has_failure_word(fields: Mapping[str, Any]) -> bool:
    flags = [fields[name] for name in SUCCESS_FLAGS if name in fields]
    is_failed = any(_is_yes(fields.get(name)) for name in FAILURE_FLAGS)
    has_false_status = fields.get("status") is False
    words = [fields.get(name) for name in ("status", "state", "result", "code")]
    is_failed = is_failed or has_false_status or any(map(_is_false, flags))
    return is_failed or any(map(_is_failure_status, words))


def _is_failure_status(value: Any) -> bool:
    """Return whether a status is a text of a few words that state a failure."""
    words = _words(value) if isinstance(value, str) else []
    if len(words) > MAX_STATUS_WORDS or _states_no_error(value):
        return False
    return not FAILURE_WORDS.isdisjoint({*words, "".join(words)})


def _words(text: str) -> list[str]:
    return [each.casefold() for each in WORD.findall(text[:MAX_ERROR_CHARACTERS])]


def _states_no_error(value: Any) -> bool:
    """Return whether a value is a short text that states the absence of errors."""
    if not isinstance(value, str) or len(_words(value)) > MAX_STATUS_WORDS:
        return False
    return NO_ERROR.search(value) is not None


def _has_error_without_results(fields: Mapping[str, Any]) -> bool:
    """Return whether fields state an error that is a mere remark if there are results."""
    codes = [fields[name] for name in CODE_FIELDS if fields.get(name) is not None]
    texts: list[Any] = [
        code for code in codes if isinstance(code, str) and any(map(str.isalpha, code))
    ]
    if not codes:  # the code takes precedence over the message
        texts = [fields.get(name) for name in ERROR_MESSAGE_FIELDS]
    has_negative_status = any(_number(fields.get(name)) < 0 for name in STATUS_FIELDS)
    return has_negative_status or any(map(_is_error_text, texts))


def _is_error_text(value: Any) -> bool:
    return _is_error(value) and not (isinstance(value, str) and _is_success(value))


def _is_false(value: Any) -> bool:
    return (isinstance(value, int) and not value) or _word(value) in NO_VALUES


def _is_yes(value: Any) -> bool:
    return (isinstance(value, int) and value == 1) or _word(value) in YES_VALUES


def _is_success(text: str) -> bool:
    return SUCCESS.search(text[:MAX_ERROR_CHARACTERS]) is not None


def _word(value: Any) -> str:
    return value[:MAX_ERROR_CHARACTERS].strip(" .!").casefold() if isinstance(value, str) else ""


def _partial_results(fields: Mapping[str, Any]) -> str:
    """Return why a search server's response misses results, or "" if it is complete."""
    shards = fields.get("shards")
    shards = shards if isinstance(shards, dict) else {}
    missing = _number(shards.get("total")) - _number(shards.get("successful"))
    failed = _number(shards.get("failed", missing if "successful" in shards else 0))
    if failed > 0:
        reason = _text(shards.get("failures"))
        total = shards.get("total", "all")
        return f"{failed} of {total} shards failed{f': {reason}' if reason else ''}"
    flags = [words for name, words in PARTIAL_FLAGS.items() if _is_yes(fields.get(name))]
    return next(iter(flags), "")


def _text(body: Any) -> str:
    return _message(body, MAX_ERROR_DEPTH)


def _message(body: Any, depth: int) -> str:
    """Return the text of an error, or of its first message field, at most `depth` levels down."""
    if isinstance(body, str):
        return body[:MAX_ERROR_CHARACTERS]
    if isinstance(body, list) and body and depth:
        return _message(body[0], depth - 1)
    if isinstance(body, dict) and depth:
        fields = _fields(body)
        messages = (_message(fields.get(name), depth - 1) for name in MESSAGE_FIELDS)
        return next((message for message in messages if message), "")
    return ""
