"""`python -m raggrpo_trainer.rewards.worker`: run a user's reward function, one call at a time.

In a separate process, a function that hangs or crashes fails only its sample; a runaway regular
expression, for example, never releases the GIL. A call is one line of JSON on standard input, its
result one line on standard output. Must not import torch, which takes seconds and gigabytes.
"""

import importlib
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from raggrpo_trainer.call_failures import CallFailed, FailureCause

DETAIL_CHARACTERS = 300
IMPORT_SECONDS = 120.0


def load_function(target: str) -> Callable[[dict[str, Any]], Any]:
    """Import `package.module:function`. Raises ImportError with the target and the reason."""
    module_name, _, name = target.partition(":")
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a user's module may raise anything
        raise ImportError(f"reward {target} cannot be imported: {_describe(error)}") from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ImportError(f"reward {target}: module {module_name} has no function {name}")
    return function  # type: ignore[no-any-return]


def finite_number(value: object) -> float:
    """Return a reward as float. Raises CallFailed (NotANumber) for NaN, infinity and text."""
    try:
        number = math.nan if isinstance(value, str) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise CallFailed(FailureCause.NOT_A_NUMBER, f"{value!r}"[:DETAIL_CHARACTERS])
    return number


def exception_failure(error: Exception) -> CallFailed:
    """Return the failure for a reward function that raised `error`."""
    return CallFailed(FailureCause.RAISED, _describe(error))


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:DETAIL_CHARACTERS]


def _outcome(function: Callable[[dict[str, Any]], Any], sample: dict[str, Any]) -> dict[str, Any]:
    try:
        value = function(sample)
    except Exception as error:  # the user's function may raise anything
        failure = exception_failure(error)
        return {"cause": failure.cause, "detail": failure.detail}
    try:
        return {"score": finite_number(value)}
    except CallFailed as failure:
        return {"cause": failure.cause, "detail": failure.detail}


def main() -> None:
    """Serve calls from standard input until it closes."""
    target = sys.argv[1]
    timeout_seconds = float(sys.argv[2])
    with os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)  # output of the function goes to the log
        # SIGALRM terminates the process even if it is stuck in native code.
        signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
        function = load_function(target)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for line in sys.stdin:
            signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
            outcome = _outcome(function, json.loads(line))
            signal.setitimer(signal.ITIMER_REAL, 0)
            replies.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
