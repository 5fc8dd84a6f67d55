"""Kill a Ray actor and wait for its exit."""

import asyncio
import time
from typing import Any

import ray

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError


async def kill_actor(actor: Any, name: str, timeout_seconds: float = 30.0) -> None:
    """Kill an actor and wait until it has exited and its name is free.

    Raises TrainerError RANKS_STUCK if it has not exited after the timeout.
    """
    ray.kill(actor)
    deadline = time.monotonic() + timeout_seconds
    while time.monotonic() < deadline:
        try:
            ray.get_actor(name)
        except ValueError:
            return
        await asyncio.sleep(0.1)
    raise TrainerError(
        ExitCode.RANKS_STUCK, f"{name} has not exited {timeout_seconds:.0f} s after it was killed"
    )
