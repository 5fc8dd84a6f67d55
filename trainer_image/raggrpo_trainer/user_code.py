"""Import a user's function and describe its exceptions. Must not import torch."""

import importlib
from collections.abc import Callable
from typing import Any


class ImportFailed(Exception):
    """A user's function cannot be imported; the message has the function and the cause."""


def import_function(kind: str, target: str, max_characters: int) -> Callable[..., Any]:
    """Return the function `package.module:function`. Raises ImportFailed.

    `kind` is the noun that messages put before the target, such as "reward"; `max_characters`
    limits the description of an exception.
    """
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
        function = getattr(module, name, None)  # a module may define __getattr__
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        problem = describe_exception(error, max_characters)
        raise ImportFailed(f"{kind} {target} cannot be imported: {problem}") from error
    if not callable(function):
        raise ImportFailed(f"{kind} {target}: module {module_name} has no function {name}")
    return function  # type: ignore[no-any-return]


def describe_exception(error: BaseException, max_characters: int) -> str:
    """Return the type and message of a user's exception, with `?` for lone surrogates."""
    try:
        text = str(error)
    except Exception:  # a user's exception may fail to describe itself
        text = "its message cannot be shown"
    description = f"{type(error).__name__}: {text}"[:max_characters]
    return description.encode(errors="replace").decode()
