"""`python -m raggrpo_trainer.rewards.worker`: run a user's reward function, one call at a time.

In a separate process, a function that hangs or crashes fails only its sample; a runaway regular
expression, for example, never releases the GIL. A call is one line of JSON on standard input, its
result one line on standard output. Must not import torch, which takes seconds and gigabytes.
"""

import asyncio
import inspect
import json
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from raggrpo_api.spec.reward import PythonSignature
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.user_code import ImportFailed, describe_exception, import_function

from .reward_value import DETAIL_CHARACTERS
from .signatures import RewardCodeInvalid, UserFunction

IMPORT_SECONDS = 120.0


def load_function(target: str, signature: PythonSignature) -> UserFunction:
    """Import `package.module:function`.

    Raises RewardCodeInvalid if it cannot be imported or has another signature.
    """
    try:
        function = import_function("reward", target, DETAIL_CHARACTERS)
    except ImportFailed as error:
        remedy = "check reward.functions[].python and reward.codeFrom"
        raise RewardCodeInvalid(f"{error}; {remedy}") from error
    return UserFunction(target, function, signature)


def exception_failure(error: BaseException) -> CallFailed:
    """Return the failure for a reward function that raised `error`."""
    return CallFailed(FailureCause.RAISED, describe_exception(error, DETAIL_CHARACTERS))


def _outcome(function: UserFunction, sample: dict[str, Any]) -> dict[str, Any]:
    try:
        result = function(sample)
        if inspect.isawaitable(result):
            result = asyncio.run(_result_of(result))
    except Exception as error:  # the user's function may raise anything
        failure = exception_failure(error)
        return {"cause": failure.cause, "detail": failure.detail}
    try:
        return {"score": function.reward(result)}
    except CallFailed as failure:
        return {"cause": failure.cause, "detail": failure.detail}


async def _result_of(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


def _replies_of(
    target: str, signature: PythonSignature
) -> Callable[[dict[str, Any] | None], dict[str, Any]]:
    """Import the function; return the function that replies to a call."""
    try:
        function = load_function(target, signature)
    except RewardCodeInvalid as error:
        invalid = {"invalid": str(error)}
        return lambda _: invalid
    return lambda sample: {"score": 0.0} if sample is None else _outcome(function, sample)


def main() -> None:
    """Serve calls from standard input until it closes; `null` only imports the function."""
    target = sys.argv[1]
    signature = PythonSignature(sys.argv[2])
    timeout_seconds = float(sys.argv[3])
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))  # preflight limits chat templates
    # After the driver has exited, a traceback in its log would look like its own error.
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", buffering=1) as replies:
        os.dup2(2, 1)  # output of the function goes to the log
        # SIGALRM terminates the process even if it is stuck in native code.
        signal.setitimer(signal.ITIMER_REAL, IMPORT_SECONDS)
        call = _replies_of(target, signature)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for line in sys.stdin:
            sample = json.loads(line)
            signal.setitimer(signal.ITIMER_REAL, timeout_seconds)
            outcome = call(sample)
            signal.setitimer(signal.ITIMER_REAL, 0)
            replies.write(json.dumps(outcome) + "\n")


if __name__ == "__main__":
    main()
