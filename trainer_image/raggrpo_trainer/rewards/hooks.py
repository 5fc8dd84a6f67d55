"""Rewards outside this package: a user's Python function or an HTTP service.

A failed call raises CallFailed and affects one sample. A function that cannot be imported or called
fails the job.
"""

import asyncio
import os
import signal
from asyncio.subprocess import Process
from typing import Any, Protocol

from raggrpo_api.spec.reward import PythonSignature
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.child_process import ProcessExited, kill, receive, send, start_module
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.http.json_service import GateOptions, JsonService, Request, RetryPolicy
from raggrpo_trainer.http.pool import HttpPool
from raggrpo_trainer.http.reported_errors import reported_error
from raggrpo_trainer.http.responses import require_object

from .reward_value import finite_number
from .signatures import RewardCodeInvalid, Sample, UserFunction
from .worker import IMPORT_SECONDS, exception_failure, load_function

NUM_PROCESSES = min(4, os.cpu_count() or 1)
JUDGE_CONCURRENCY = 64
JUDGE_FIELDS = ("prompt", "completion", "answer", "passages", "fields")


class RewardHook(Protocol):
    """Scores samples with a user's code or service."""

    async def score(self, sample: Sample) -> float:
        """Return a finite number. Raises CallFailed."""
        ...

    async def close(self) -> None:
        """Stop everything that the hook has started."""
        ...


def python_reward(
    target: str,
    timeout_seconds: float,
    signature: PythonSignature = PythonSignature.NATIVE,
) -> RewardHook:
    """Return the hook for `package.module:function`.

    A coroutine function runs on the trainer's event loop, any other function in separate processes.
    Raises TrainerError (RewardCodeError) if the function cannot be imported or has another
    signature.
    """
    try:
        function = load_function(target, signature)
    except RewardCodeInvalid as error:
        raise TrainerError(ExitCode.REWARD_CODE_ERROR, str(error)) from error
    if function.is_coroutine:
        return CoroutineReward(function, timeout_seconds)
    return ProcessReward(target, timeout_seconds, signature)


class CoroutineReward:
    """A user's coroutine function, which runs in this process and should mostly wait for I/O."""

    def __init__(self, function: UserFunction, timeout_seconds: float) -> None:
        self._function = function
        self._timeout_seconds = timeout_seconds

    async def score(self, sample: Sample) -> float:
        """Return the function's result. Raises CallFailed."""
        limit = asyncio.timeout(self._timeout_seconds)
        try:
            async with limit:
                result = await self._function(sample)
        except (Exception, SystemExit) as error:  # the user's function may raise anything
            if limit.expired():
                raise _timed_out(self._timeout_seconds) from error
            raise exception_failure(error) from error
        return self._function.reward(result)

    async def close(self) -> None:
        """Do nothing: calls are canceled with their callers."""


class ProcessReward:
    """A user's function in a few worker processes; a process that hangs or crashes is replaced."""

    def __init__(
        self,
        target: str,
        timeout_seconds: float,
        signature: PythonSignature = PythonSignature.NATIVE,
        num_processes: int = NUM_PROCESSES,
        folder: str = "",
    ) -> None:
        """`folder` is added to the import path of the processes."""
        self._target = target
        self._signature = signature
        self._folder = folder
        self._timeout_seconds = timeout_seconds
        self._slots = asyncio.Semaphore(num_processes)
        self._idle: list[Process] = []

    async def score(self, sample: Sample) -> float:
        """Return the reward of a sample.

        Raises CallFailed, and TrainerError (RewardCodeError) if the function cannot be imported.
        """
        return await self._score(sample)

    async def check_import(self) -> None:
        """Import the function in a process without calling it. Raises as `score` does."""
        await self._score(None)

    async def _score(self, sample: Sample | None) -> float:
        async with self._slots:
            process = self._idle.pop() if self._idle else await self._start()
            try:
                outcome = await self._call(process, sample)
            except BaseException:
                # The process may still work on this sample and must not reply to the next one.
                if process.returncode is None:
                    process.kill()
                raise
            self._idle.append(process)
        if "invalid" in outcome:
            raise TrainerError(ExitCode.REWARD_CODE_ERROR, outcome["invalid"])
        if "score" in outcome:
            return float(outcome["score"])
        raise CallFailed(FailureCause(outcome["cause"]), outcome["detail"])

    async def close(self) -> None:
        """Kill the idle processes; busy processes are killed when their callers are canceled."""
        for process in self._idle:
            await kill(process)
        self._idle.clear()

    async def _start(self) -> Process:
        return await start_module(
            "raggrpo_trainer.rewards.worker",
            *(self._target, self._signature, str(self._timeout_seconds)),
            folder=self._folder,
        )

    async def _call(self, process: Process, sample: Sample | None) -> Any:
        # The worker has its own timeout; this one covers a pipe held open by an orphaned child.
        limit = IMPORT_SECONDS + 2 * self._timeout_seconds
        try:
            async with asyncio.timeout(limit):
                await send(process, sample)
                return await receive(process)
        except ProcessExited as error:
            raise self._exit_failure(error.code) from error
        except TimeoutError as error:
            raise _timed_out(limit) from error
        except ValueError as error:
            detail = f"the output of the reward process cannot be read: {error}"
            raise CallFailed(FailureCause.WRONG_TYPE, detail) from error

    def _exit_failure(self, code: int) -> CallFailed:
        if code == -signal.SIGALRM:
            return _timed_out(self._timeout_seconds)
        return CallFailed(FailureCause.RAISED, f"the reward process exited with code {code}")


class HttpJudge:
    """An HTTP service that scores a sample and returns {"score": number}."""

    def __init__(
        self,
        http: HttpPool,
        url: str,
        timeout_seconds: float,
        retry: RetryPolicy,
        gate: GateOptions | None = None,
    ) -> None:
        self._service = JsonService(
            http,
            url,
            headers={},
            timeout_seconds=timeout_seconds,
            max_concurrency=JUDGE_CONCURRENCY,
            retry=retry,
            gate=gate,
        )

    async def score(self, sample: Sample) -> float:
        """Post prompt, completion, answer, passages and fields; return the score."""
        body = {name: sample[name] for name in JUDGE_FIELDS}
        return await self._service.post(Request(body), _judge_score)

    async def close(self) -> None:
        """Do nothing: the pool owns the connections."""


def _judge_score(response: Any) -> float:
    body = require_object(response)
    # Next to a score, fields such as "success" and "status" describe the sample, not the call.
    if body.get("score") is None and (error := reported_error(body)):
        raise error
    if "score" not in body:
        raise CallFailed(FailureCause.MISSING_FIELD, 'the field "score" is missing')
    return finite_number(body["score"])


def _timed_out(seconds: float) -> CallFailed:
    return CallFailed(FailureCause.TIMEOUT, f"no result within {seconds:g} s")
