"""The driver process of one attempt, from its configuration to its exit code.

The driver claims the checkpoint folder, trains (`training_run`), and reports one exit code and one
message in Progress.failure. It never restarts anything: the operator decides what to restart.
"""

import asyncio
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path

import ray

from raggrpo_api import names
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Failure
from raggrpo_trainer.checkpoint.fence import Fence
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.logs import configure_logs
from raggrpo_trainer.host.pod_processes import this_process
from raggrpo_trainer.host.ray_logs import save_ray_logs
from raggrpo_trainer.host.stacks import register_stack_dumps
from raggrpo_trainer.job_config import read_config
from raggrpo_trainer.progress.driver_process import POD_TERMINATING
from raggrpo_trainer.progress.progress_actor import start_progress_actor
from raggrpo_trainer.progress.reporter import Reporter

from .driver_log import mirrored_output
from .failure import to_failure
from .hooks import Hooks
from .inputs import attempt_folder
from .stop_signal import Stopped
from .training_run import TrainingRun

log = logging.getLogger(__name__)


def main(
    env: Mapping[str, str] = os.environ,
    make_hooks: Callable[[TrainerConfig], Hooks] = lambda _: Hooks(),
) -> int:
    """Run the attempt described by RAGGRPO_CONFIG and return its exit code."""
    try:
        config = read_config(env)
    except TrainerError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    configure_logs(config.monitoring.log_level)
    return asyncio.run(_Attempt(config, env, make_hooks(config)).run())


class _Attempt:
    def __init__(self, config: TrainerConfig, env: Mapping[str, str], hooks: Hooks) -> None:
        self._config = config
        self._env = env
        self._hooks = hooks
        self._stop = asyncio.Event()
        self._leaves_ranks = False

    async def run(self) -> int:
        """Run the attempt, report its failure, if any, and return its exit code."""
        config = self._config
        attempt = config.attempt
        register_stack_dumps(attempt_folder(config), "driver")
        try:
            owner = (attempt.job_uid, attempt.job_name, attempt.number)
            fence = await asyncio.to_thread(Fence.claim, Path(config.checkpoint.path), *owner)
        except TrainerError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        # Write the log only after the claim: until then another job may own the folder.
        with mirrored_output(attempt_folder(config) / names.DRIVER_LOG):
            return await self._run_as_owner(fence)

    async def _run_as_owner(self, fence: Fence) -> int:
        """Train as the owner of the checkpoint folder; return the exit code."""
        config = self._config
        namespace = names.ray_namespace(config.attempt.job_uid)
        ray.init("auto", namespace=namespace, log_to_driver=True, logging_level=logging.WARNING)
        save_ray_logs(attempt_folder(config))
        self._install_signal_handlers()
        port = int(self._env.get(names.ENV_PROGRESS_PORT, names.PROGRESS_PORT))
        server, previous = await start_progress_actor(port, self._env.get("RAY_AUTH_TOKEN", ""))
        await server.watch([this_process()])  # early, because startup can also hang
        reporter = Reporter(config, fence.epoch, publish=server.publish)
        run = TrainingRun(
            config, self._env, self._hooks, self._stop, fence, reporter, server, previous
        )
        failure = await self._train(run)
        reporter.close(failure)
        await server.flush()
        if failure is None or failure.exit_code != ExitCode.SUPERSEDED:
            await self._release_ranks(run, failure)
            fence.release()
        return failure.exit_code if failure else ExitCode.DONE

    def _install_signal_handlers(self) -> None:
        """Install signal handlers. Call after `ray.init`, whose handler exits without saving."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop, False)
        loop.add_signal_handler(POD_TERMINATING, self._request_stop, True)

    def _request_stop(self, pod_terminates: bool) -> None:
        """Request a save and an exit; the ranks survive only if every signal is POD_TERMINATING."""
        self._leaves_ranks = pod_terminates and (self._leaves_ranks or not self._stop.is_set())
        self._stop.set()

    @staticmethod
    async def _train(run: TrainingRun) -> Failure | None:
        """Train and return the failure, or None if the target step was reached."""
        try:
            await run.run()
        except Stopped as stopped:
            return Failure(exit_code=ExitCode.PREEMPTED, message=str(stopped))
        except Exception as error:
            failure = to_failure(error)
            if failure.exit_code == ExitCode.PROGRAM_ERROR:
                traceback.print_exc()
            else:
                log.error("%s", error)
            return failure
        return None

    async def _release_ranks(self, run: TrainingRun, failure: Failure | None) -> None:
        """Kill the ranks, or leave them to the next driver if a pod is terminating."""
        if run.ranks is None:
            return
        is_stopped = failure is not None and failure.exit_code == ExitCode.PREEMPTED
        if is_stopped and self._leaves_ranks:
            await run.ranks.leave_to_next_driver()
        else:
            run.ranks.kill()
