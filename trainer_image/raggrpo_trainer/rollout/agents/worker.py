"""`python -m raggrpo_trainer.rollout.agents.worker TARGET`: run a user's agent.

A request is one line of JSON on standard input, its outcome one line on standard output; the first
line reports the import. The environment has the gateway's URL and the key of this process before
the application is imported. Must not import torch, which takes seconds and gigabytes.
"""

import asyncio
import dataclasses
import inspect
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from raggrpo_trainer.user_code import ImportFailed, describe_exception, import_function

DETAIL_CHARACTERS = 500


def load_agent(target: str) -> Callable[[Any], Any]:
    """Return the function `package.module:function`. Raises ValueError if it cannot be imported."""
    try:
        return import_function("agent", target, DETAIL_CHARACTERS)
    except ImportFailed as error:
        raise ValueError(f"{error}; check rollout.agent.python and reward.codeFrom") from error


def _plain(value: Any) -> Any:
    """Return a value that JSON can represent, for results of other types."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if callable(dump := getattr(value, "model_dump", None)):
        return dump(mode="json")
    return str(value)


def _outcome(agent: Callable[[Any], Any], request: Any, loop: asyncio.AbstractEventLoop) -> str:
    """Return the outcome of one request as JSON."""
    try:
        result = agent(request)
        if inspect.isawaitable(result):
            result = loop.run_until_complete(_result_of(result))
        return json.dumps({"result": result}, default=_plain)
    except (Exception, SystemExit) as error:  # the user's function may raise anything
        return json.dumps({"raised": describe_exception(error, DETAIL_CHARACTERS)})


async def _result_of(awaitable: Any) -> Any:
    """Return the result; cancel the tasks that it leaves, which would call with the next key."""
    try:
        return await awaitable
    finally:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()


def main() -> None:
    """Serve requests from standard input until it closes."""
    # After the driver has exited, a traceback in its log would look like its own error.
    with suppress(BrokenPipeError), os.fdopen(os.dup(1), "w", buffering=1) as outcomes:
        os.dup2(2, 1)  # output of the application goes to the log
        try:
            agent = load_agent(sys.argv[1])
        except ValueError as error:
            outcomes.write(json.dumps({"invalid": str(error)}) + "\n")
            return
        outcomes.write("{}\n")
        loop = asyncio.new_event_loop()  # one for all requests, as clients belong to a loop
        asyncio.set_event_loop(loop)
        for line in sys.stdin:
            outcomes.write(_outcome(agent, json.loads(line), loop) + "\n")


if __name__ == "__main__":
    main()
