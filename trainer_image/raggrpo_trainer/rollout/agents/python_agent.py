"""`PythonAgent`: a function in child processes, each of which runs one sample at a time."""

import asyncio
import os
import secrets
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.child_process import (
    LineTooLong,
    ProcessExited,
    kill,
    receive,
    send,
    start_module,
)
from raggrpo_trainer.errors import TrainerError

IMPORT_SECONDS = 300.0
MAX_STARTS = 3
"""Number of times that a process is started if it is killed during the import."""
MAX_RESULT_BYTES = 16 << 20
_UNUSABLE = "the result cannot be used"
_LOCAL_HOSTS = "127.0.0.1,localhost"


class PythonAgent:
    """Runs `package.module:function` in processes that start when they are needed."""

    def __init__(
        self,
        target: str,
        base_url: str,
        processes: int,
        code_folder: str = "",
        interpreter: str = "",
    ) -> None:
        """`code_folder` is added to the import path of the processes.

        `interpreter` is the path of their Python, or empty for that of this process.
        """
        self._target = target
        self._base_url = base_url
        self._code_folder, self._interpreter = code_folder, interpreter
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[_ProcessSlot] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator["_ProcessSlot"]:
        """Yield a process. Raises TrainerError AGENT_ERROR if the function cannot be imported."""
        async with self._slots:
            slot = self._idle.pop() if self._idle else await self._start(MAX_STARTS)
            try:
                yield slot
            except BaseException:
                await slot.close()
                raise
            if slot.process.returncode is None:
                self._idle.append(slot)

    async def close(self) -> None:
        """Kill the idle processes; busy ones are killed when their callers are canceled."""
        while self._idle:
            await self._idle.pop().close()

    async def _start(self, tries: int) -> "_ProcessSlot":
        """Start a process, again if it is killed while it imports the function."""
        key = secrets.token_hex(16)
        try:
            process = await start_module(
                "raggrpo_trainer.rollout.agents.worker",
                self._target,
                folder=self._code_folder,
                interpreter=self._interpreter,
                variables=self._variables(key),
                max_line_bytes=MAX_RESULT_BYTES,
            )
        except OSError as error:
            message = f"{self._interpreter} (rollout.agent.interpreter) does not start: {error}"
            raise TrainerError(ExitCode.AGENT_ERROR, message) from error
        slot = _ProcessSlot(key, self._base_url, process)
        name = f"the process of agent {self._target}"
        try:
            await _require_imported(slot, name)
        except CallFailed as error:
            if error.transient and tries > 1:
                return await self._start(tries - 1)
            raise TrainerError(ExitCode.AGENT_ERROR, f"{name} {error.detail}") from error
        except BaseException:
            await slot.close()
            raise
        return slot

    def _variables(self, key: str) -> Mapping[str, str]:
        direct = {
            name: ",".join(filter(None, [os.environ.get(name), _LOCAL_HOSTS]))
            for name in ("NO_PROXY", "no_proxy")
        }
        return {
            **direct,
            "OPENAI_BASE_URL": self._base_url,
            "OPENAI_API_BASE": self._base_url,
            "OPENAI_API_KEY": key,
        }


class _ProcessSlot:
    """A child process and its key."""

    def __init__(self, key: str, base_url: str, process: Process) -> None:
        self.key = key
        self.base_url = base_url
        self.process = process

    async def run(self, request: Any) -> Any:
        """Return the result of the function. Raises CallFailed."""
        await send(self.process, request)
        match await self.read():
            case {"raised": str(detail)}:
                raise CallFailed(FailureCause.RAISED, detail)
            case {"result": result}:
                return result
        raise CallFailed(FailureCause.WRONG_TYPE, f"{_UNUSABLE}: it has other fields")

    async def read(self) -> dict[str, Any]:
        """Return the next line of the process. Raises CallFailed if it exits."""
        try:
            return await receive(self.process)
        except LineTooLong as error:
            detail = f"the result is larger than {MAX_RESULT_BYTES >> 20} MiB"
            raise CallFailed(FailureCause.WRONG_TYPE, detail) from error
        except ValueError as error:
            raise CallFailed(FailureCause.WRONG_TYPE, f"{_UNUSABLE}: {error}") from error
        except ProcessExited as error:
            raise CallFailed(FailureCause.EXITED, error.how, transient=error.is_killed) from error

    async def close(self) -> None:
        """Kill the process."""
        await kill(self.process)


async def _require_imported(slot: _ProcessSlot, process: str) -> None:
    """Raise TrainerError AGENT_ERROR unless the process, named `process`, imports the function.

    Raises CallFailed if the process exits.
    """
    try:
        async with asyncio.timeout(IMPORT_SECONDS):
            started = await slot.read()
    except TimeoutError as error:
        message = f"{process} did not import it within {IMPORT_SECONDS:g} s"
        raise TrainerError(ExitCode.AGENT_ERROR, message) from error
    if "invalid" in started:
        raise TrainerError(ExitCode.AGENT_ERROR, str(started["invalid"]))
