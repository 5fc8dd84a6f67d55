"""Ray actors as the driver ends them."""

import asyncio
import time
from typing import Any

import ray

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.errors import TrainerError


async def kill_actor(actor: Any, name: str, timeout_seconds: float = 30.0) -> None:
    """Kill an actor and wait until its name is free.

    Raises TrainerError RANKS_STUCK when it is still there after the timeout.
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
        ExitCode.RANKS_STUCK, f"{name} is still alive {timeout_seconds:.0f} s after a kill"
    )
