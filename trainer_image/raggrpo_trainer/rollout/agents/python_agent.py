"""`PythonAgent`: a function in child processes, each of which runs one sample at a time."""

import asyncio
import json
import os
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any

from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.errors import TrainerError

MAX_PROCESSES = 32
IMPORT_SECONDS = 120.0
MAX_RESULT_BYTES = 16 << 20
_LOCAL_HOSTS = "127.0.0.1,localhost"


def num_processes(specified: int) -> int:
    """Return the number of processes; 0 is replaced by twice the number of CPUs, with a limit."""
    return specified or min(MAX_PROCESSES, 2 * (os.cpu_count() or 1))


class PythonAgent:
    """Runs `package.module:function` in processes that start when they are needed."""

    def __init__(self, target: str, base_url: str, processes: int, code_folder: str = "") -> None:
        """`code_folder` is added to the import path of the processes."""
        self._target = target
        self._base_url = base_url
        self._code_folder = code_folder
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[_ProcessSlot] = []

    @asynccontextmanager
    async def slot(self) -> AsyncIterator["_ProcessSlot"]:
        """Yield a process. Raises TrainerError AGENT_ERROR if the function cannot be imported."""
        async with self._slots:
            slot = self._idle.pop() if self._idle else await self._start()
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

    async def _start(self) -> "_ProcessSlot":
        key = secrets.token_hex(16)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "raggrpo_trainer.rollout.agents.worker", self._target),
            stdin=PIPE,
            stdout=PIPE,
            env=self._environment(key),
            limit=MAX_RESULT_BYTES,
        )
        slot = _ProcessSlot(key, self._base_url, process)
        try:
            async with asyncio.timeout(IMPORT_SECONDS):
                started = await slot.read()
        except (TimeoutError, CallFailed) as error:
            await slot.close()
            problem = f"did not import it within {IMPORT_SECONDS:g} s"
            problem = problem if isinstance(error, TimeoutError) else error.detail
            message = f"the process of agent {self._target} {problem}"
            raise TrainerError(ExitCode.AGENT_ERROR, message) from error
        except BaseException:
            await slot.close()
            raise
        if "invalid" in started:
            await slot.close()
            raise TrainerError(ExitCode.AGENT_ERROR, started["invalid"])
        return slot

    def _environment(self, key: str) -> Mapping[str, str]:
        paths = filter(None, [self._code_folder, *sys.path])
        direct = {
            name: ",".join(filter(None, [os.environ.get(name), _LOCAL_HOSTS]))
            for name in ("NO_PROXY", "no_proxy")
        }
        return {
            **os.environ,
            **direct,
            "PYTHONPATH": os.pathsep.join(paths),
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
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(request).encode() + b"\n")
        with suppress(ConnectionError):  # the process has exited, which `read` reports, too
            await self.process.stdin.drain()
        outcome = await self.read()
        if "raised" in outcome:
            raise CallFailed(FailureCause.RAISED, outcome["raised"])
        return outcome["result"]

    async def read(self) -> dict[str, Any]:
        """Return the next line of the process. Raises CallFailed if it exits."""
        assert self.process.stdout is not None
        try:
            line = await self.process.stdout.readline()
        except ValueError as error:
            detail = f"the result is larger than {MAX_RESULT_BYTES >> 20} MiB"
            raise CallFailed(FailureCause.WRONG_TYPE, detail) from error
        if not line:
            code = await self.process.wait()
            raise CallFailed(FailureCause.EXITED, f"exited with code {code}")
        outcome: dict[str, Any] = json.loads(line)
        return outcome

    async def close(self) -> None:
        """Kill the process."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
