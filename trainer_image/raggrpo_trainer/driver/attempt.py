"""The driver of one attempt: claims the checkpoint folder, builds the parts, runs the loop.

However it ends, it reports one exit code and one sentence in Progress.failure. The operator
decides about restarts.
"""

import asyncio
import logging
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray

from raggrpo_api import names
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_api.trainer.progress import Failure, Progress, Stage
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.checkpoint.fence import Fence
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.prompt_files import Prompt, read_prompts, stage_files
from raggrpo_trainer.data.prompts import Composer, PromptSource, Tokenizer, load_tokenizer
from raggrpo_trainer.engines.engine_options import engine_options
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.exchange.policy_config import policy_config
from raggrpo_trainer.exchange.precision import chosen_precision, device_precision
from raggrpo_trainer.host.logs import configure_logs
from raggrpo_trainer.host.measured_device import MeasuredDevice
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.host.pod_processes import this_process
from raggrpo_trainer.host.ray_logs import keep_ray_logs
from raggrpo_trainer.host.stacks import register
from raggrpo_trainer.job_config import endpoint_headers, judge_headers, read_config
from raggrpo_trainer.progress.driver_process import POD_TERMINATING
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.progress.progress_actor import ProgressActor, start_progress_actor
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.held import Held
from raggrpo_trainer.ranks.older_ranks import OlderRanks
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.validation import Validator

from .driver_log import kept_output
from .failure import failure_of
from .hooks import Hooks
from .loop import Parts, TrainState, train
from .memory_check import check_memory
from .resume import identity_of, key_of, resume
from .stop_signal import Stopped, stopped_before

log = logging.getLogger(__name__)

Inputs = tuple[Tokenizer, list[Prompt], list[Prompt]]
"""Tokenizer, training and held-out prompts."""


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
    """One attempt from its configuration to its exit code."""

    def __init__(self, config: TrainerConfig, env: Mapping[str, str], hooks: Hooks) -> None:
        self._config, self._env, self._hooks = config, env, hooks
        self._stop = asyncio.Event()
        self._leaves_ranks = False
        self._ranks: Ranks | None = None

    async def run(self) -> int:
        """Return the exit code, once the reason has been reported."""
        config, attempt = self._config, self._config.attempt
        register(attempt_folder(config), "driver")
        try:
            owner = (attempt.job_uid, attempt.job_name, attempt.number)
            fence = await asyncio.to_thread(Fence.claim, Path(config.checkpoint.path), *owner)
        except TrainerError as error:
            print(error, file=sys.stderr)
            return error.exit_code
        # Only after the claim: until then another job may own the folder.
        with kept_output(attempt_folder(config) / names.DRIVER_LOG):
            return await self._run(fence)

    async def _run(self, fence: Fence) -> int:
        """Train as the holder of the checkpoint folder and return the exit code."""
        config = self._config
        namespace = names.ray_namespace(config.attempt.job_uid)
        ray.init("auto", namespace=namespace, log_to_driver=True, logging_level=logging.WARNING)
        keep_ray_logs(attempt_folder(config))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            # After ray.init, which installs a handler of its own that exits without saving.
            loop.add_signal_handler(number, self._end, False)
        loop.add_signal_handler(POD_TERMINATING, self._end, True)
        port = int(self._env.get(names.ENV_PROGRESS_PORT, names.PROGRESS_PORT))
        server, before = await start_progress_actor(port, self._env.get("RAY_AUTH_TOKEN", ""))
        await server.watch([this_process()])  # a start can hang or be stopped, too
        reporter = Reporter(config, fence.epoch, publish=server.publish)
        failure = None
        try:
            await self._train(fence, reporter, server, before)
        except Stopped as stopped:
            failure = Failure(exit_code=ExitCode.PREEMPTED, message=str(stopped))
        except Exception as error:
            failure = failure_of(error)
            if failure.exit_code == ExitCode.PROGRAM_ERROR:
                traceback.print_exc()
            else:
                log.error("%s", error)
        reporter.close(failure)
        await server.flush()
        if failure is None or failure.exit_code != ExitCode.SUPERSEDED:
            await self._end_ranks(failure)
            fence.release()
        return failure.exit_code if failure else ExitCode.DONE

    def _end(self, for_a_pod: bool) -> None:
        """Save and end; whoever asks for another reason than a pod's end wants new ranks."""
        self._leaves_ranks = for_a_pod and (self._leaves_ranks or not self._stop.is_set())
        self._stop.set()

    async def _end_ranks(self, failure: Failure | None) -> None:
        """End the ranks, or leave them to the next driver if the reason lies in a pod."""
        if self._ranks is None:
            return
        is_stopped = failure is not None and failure.exit_code == ExitCode.PREEMPTED
        if is_stopped and self._leaves_ranks:
            await self._ranks.leave()
        else:
            self._ranks.end()

    async def _train(
        self, fence: Fence, reporter: Reporter, server: ProgressActor, before: Progress | None
    ) -> None:
        """Build ranks and engines concurrently, resume, and run the loop."""
        config = self._config
        folder = attempt_folder(config)
        reporter.report_stage(Stage.LOADING_MODEL)
        reading = asyncio.create_task(asyncio.to_thread(read_inputs, config))
        resumes = self._hooks.resumes()
        older = OlderRanks.find(fence.epoch)
        adopted = await self._adopted(older, fence.epoch, reading, before) if resumes else None
        await older.end()
        placement = await Placement.obtain(config)
        ranks, held = adopted or (Ranks.create(config, placement, fence.epoch, folder), None)
        self._ranks = ranks
        store = await asyncio.to_thread(self._open_store, fence)
        on_gpu = config.resources.device is Device.GPU
        if held is not None:
            precision = Precision(ranks.infos[0].precision)
        elif on_gpu:  # known before anything is put on it
            devices = await ranks.measure_devices("cuda")
            precision = _gpu_precision(config, devices)
            log.info("measured %s", check_memory(config, precision, devices))
        else:
            precision = await _cpu_precision(config, ranks)
        options = engine_options(config, precision)
        pool = EnginePool(config, options, placement, fence.epoch, folder)
        starting = asyncio.create_task(pool.start())
        if held is None and not on_gpu:  # beside the engine's start, which it would only delay
            devices = await ranks.measure_devices("cpu")
            log.info("measured %s", check_memory(config, precision, devices))
        if held is None:
            await ranks.build(policy_config(config, precision))
        tokenizer, train_prompts, validation_prompts = await reading
        identity = identity_of(config, len(train_prompts))
        key = key_of(config, ranks.infos[0], identity)
        reporter.add_probe(ranks.flops_probe(config.monitoring.flops_every_steps))
        reporter.report_pinned({"precision": precision, "attention": ranks.infos[0].attention})
        if resumes:
            reported = before.step if before is not None else 0
            state = await resume(config, store, ranks, held, reporter, reported, identity)
        else:
            reporter.report_resume(0)
            state = TrainState()
        reporter.report_stage(Stage.STARTING_ROLLOUT)
        reused = await starting
        log.info("engines %s", ["attached" if r else "started" for r in reused])
        self._hooks.started(ranks, pool)

        async def watch() -> None:
            of_ranks = [info.process for info in ranks.infos]
            await server.watch([this_process(), *of_ranks, *pool.processes])

        pool.on_replaced = watch
        await watch()
        reporter.report_stage(Stage.WARMING_RETRIEVAL)
        outages = Outages(reporter.report_outages)
        async with (
            Rewards(
                config.reward,
                config.retrieval,
                headers=judge_headers(config.reward, self._env),
                outages=outages,
            ) as rewards,
            retrieval_client(config, self._env, outages) as retrieval,
        ):
            with outages.reporting():
                warming = asyncio.ensure_future(
                    warm_up(config, retrieval, train_prompts[0].columns)
                )
                if await stopped_before(self._stop, warming):
                    raise Stopped("stopped by a signal while it waited for its endpoints")
                warming.result()
            composer = Composer(config, tokenizer)
            clock = outages.working_time
            collector = Collector(config, tokenizer, composer, pool, retrieval, rewards, clock)
            parts = Parts(
                config=config,
                prompts=PromptSource(config, train_prompts, composer),
                collector=collector,
                validator=Validator(config, validation_prompts, collector),
                pool=pool,
                ranks=ranks,
                retrieval=retrieval,
                store=store,
                backups=BackupThread(store),
                reporter=reporter,
                hooks=self._hooks,
                stop=self._stop,
                identity=identity,
                key=key,
                outages=outages,
            )
            await train(parts, state)
        await ranks.close()

    async def _adopted(
        self,
        older: OlderRanks,
        epoch: int,
        reading: "asyncio.Task[Inputs]",
        before: Progress | None,
    ) -> tuple[Ranks, Held] | None:
        """Return the ranks of an attempt whose driver died or left them, and what they hold."""
        config = self._config
        if not older.is_complete(config.world.num_ranks):
            return None
        _, prompts, _ = await reading
        identity = identity_of(config, len(prompts))
        # A driver may have died in the middle of a step, which its ranks finish.
        longest = max(before.seconds_by_stage.values(), default=0.0) if before is not None else 0.0
        return await older.adopt(
            config,
            epoch,
            attempt_folder(config),
            lambda info: key_of(config, info, identity),
            busy_seconds=2 * longest,
        )

    def _open_store(self, fence: Fence) -> CheckpointStore:
        config = self._config
        store = CheckpointStore(
            config.checkpoint, fence, config.attempt.config_hash, reached=self._hooks.during_save
        )
        store.clean_up()
        if store.newest is None:
            store.restore()
        store.reject_all(config.rejected_checkpoints, "attempts from it lost the same step twice")
        return store


def _gpu_precision(config: TrainerConfig, devices: Sequence[MeasuredDevice]) -> Precision:
    oldest = min(devices, key=lambda each: each.compute_major)
    return device_precision(config.training.precision, oldest.name, oldest.compute_major)


async def _cpu_precision(config: TrainerConfig, ranks: Ranks) -> Precision:
    """Return the precision to compute in; it is measured first, which takes seconds."""
    wanted = config.training.precision
    if wanted in (Precision.FP32, Precision.FP16):
        return wanted
    return chosen_precision(wanted, await ranks.measure_precision(config.model.path))


def attempt_folder(config: TrainerConfig) -> Path:
    """Return the folder that holds this attempt's records."""
    return Path(config.monitoring.log_dir) / names.ATTEMPTS_DIR / str(config.attempt.number)


def read_inputs(config: TrainerConfig) -> Inputs:
    """Return tokenizer, training and held-out prompts, read from local copies if configured."""
    data = config.data
    tokenizer = load_tokenizer(config.model.path)

    def read(files: Sequence[str]) -> list[Prompt]:
        if data.stage_to_local_disk:
            files = stage_files(files, Path(tempfile.gettempdir()) / "raggrpo-data")
        return read_prompts(files, data, config.retrieval, config.reward)

    return tokenizer, read(data.train_files), read(data.validation_files)


def retrieval_client(
    config: TrainerConfig, env: Mapping[str, str], outages: Outages
) -> RetrievalClient:
    """Return the client for all endpoints, with secret headers taken from the environment."""
    headers, debug = endpoint_headers(config.retrieval, env), config.monitoring.debug
    return RetrievalClient(config.retrieval, headers, log_calls=debug.rag_calls, outages=outages)


async def warm_up(
    config: TrainerConfig, retrieval: RetrievalClient, columns: Mapping[str, Any]
) -> None:
    """Call every endpoint before step 1, because the first call to a service is slow."""
    endpoints, limit = config.retrieval.endpoints, config.retrieval.warm_up_timeout_seconds
    found = await asyncio.gather(*(retrieval.warm_up(e.name, limit, columns) for e in endpoints))
    for endpoint, seconds in zip(endpoints, found, strict=True):
        log.info(
            "endpoint %s answers: first call %.2f s, next %.3f s",
            endpoint.name,
            seconds.first_seconds,
            seconds.next_seconds,
        )
