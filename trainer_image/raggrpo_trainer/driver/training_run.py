"""The training run of one attempt: starts ranks and engines, resumes, runs the training loop.

Ranks and engines start concurrently, because they dominate startup time, unless they share GPUs:
then engines start after the ranks have loaded model and checkpoint. GPU memory is allocated only
after the memory check.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from raggrpo_api import names
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.training import Precision
from raggrpo_api.trainer.config import TrainerConfig
from raggrpo_api.trainer.progress import Progress, Stage
from raggrpo_trainer.checkpoint.backup_thread import BackupThread
from raggrpo_trainer.checkpoint.fence import Fence
from raggrpo_trainer.checkpoint.store import CheckpointStore
from raggrpo_trainer.data.prompts import Composer, PromptSource
from raggrpo_trainer.engines.engine_options import engine_options
from raggrpo_trainer.engines.engine_pool import EnginePool
from raggrpo_trainer.exchange.policy_config import policy_config
from raggrpo_trainer.exchange.precision import cpu_precision, gpu_precision
from raggrpo_trainer.gateway.tool_parsing import ParserProcess
from raggrpo_trainer.host.measured_device import MeasuredDevice
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.host.pod_processes import this_process
from raggrpo_trainer.job_config import endpoint_headers, judge_headers
from raggrpo_trainer.progress.outages import Outages
from raggrpo_trainer.progress.progress_actor import ProgressActor
from raggrpo_trainer.progress.reporter import Reporter
from raggrpo_trainer.ranks.ranks import Ranks
from raggrpo_trainer.ranks.retained_state import RetainedState
from raggrpo_trainer.ranks.surviving_ranks import SurvivingRanks
from raggrpo_trainer.retrieval.client import RetrievalClient
from raggrpo_trainer.rewards.rewards import Rewards
from raggrpo_trainer.rollout.collect import Collector
from raggrpo_trainer.rollout.interface import RolloutCollector
from raggrpo_trainer.rollout.validation import Validator

from .agents import agent_collector, reply_parser
from .hooks import Hooks
from .inputs import Inputs, attempt_folder, read_inputs
from .loop import Components, train
from .memory_check import check_memory
from .resume import resume, state_key
from .saving import Saver, TrainState
from .stop_signal import Stopped, wait_or_stop

log = logging.getLogger(__name__)


class TrainingRun:
    """Trains to the target step, or until `stop` is set."""

    def __init__(
        self,
        config: TrainerConfig,
        env: Mapping[str, str],
        hooks: Hooks,
        stop: asyncio.Event,
        fence: Fence,
        reporter: Reporter,
        server: ProgressActor,
        previous: Progress | None,
    ) -> None:
        self._config = config
        self._env = env
        self._hooks = hooks
        self._stop = stop
        self._fence = fence
        self._reporter = reporter
        self._server = server
        self._previous = previous
        """Last progress of the previous driver on this Ray cluster; None without such a driver."""
        self._is_gpu = config.resources.device is Device.GPU
        self.ranks: Ranks | None = None
        """The ranks; None until they are started or adopted."""

    async def run(self) -> None:
        """Start ranks and engines, resume, train, validate and export."""
        async with reply_parser(self._config) as parser:
            await self._run(parser)

    async def _run(self, parser: "asyncio.Task[ParserProcess | None]") -> None:
        config, reporter = self._config, self._reporter
        epoch = self._fence.epoch
        reporter.report_stage(Stage.LOADING_MODEL)
        reading = asyncio.create_task(asyncio.to_thread(read_inputs, config))
        adopted = await self._adopt_surviving_ranks(reading)
        placement = await Placement.obtain(config)
        ranks, retained = adopted or (
            Ranks.create(config, placement, epoch, attempt_folder(config)),
            None,
        )
        self.ranks = ranks
        store = await asyncio.to_thread(self._open_store)
        precision = await self._resolve_precision(ranks, retained)
        options = engine_options(config, precision)
        pool = EnginePool(config, options, placement, epoch, attempt_folder(config))
        ranks_loaded = asyncio.Event()
        starting = asyncio.create_task(pool.start(ranks_loaded))
        if retained is None:
            await self._build_model(ranks, precision)
        inputs = await self._inputs(reading)
        identity = inputs.identity
        reporter.add_probe(ranks.flops_probe(config.monitoring))
        reporter.report_pinned({"precision": precision, "attention": ranks.infos[0].attention})
        state = await self._resume(store, ranks, retained, identity)
        ranks_loaded.set()
        key = state_key(config, ranks.infos[0], identity)
        saver = Saver(config, store, ranks, reporter, BackupThread(store), identity)
        try:
            await self._start_engines(pool, starting, ranks)
            await self._train(pool, saver, state, inputs, key, parser)
        except Exception as error:
            await saver.save_after(error, state)
            raise
        await ranks.close()

    async def _start_engines(
        self, pool: EnginePool, starting: "asyncio.Task[Sequence[bool]]", ranks: Ranks
    ) -> None:
        self._reporter.report_stage(Stage.STARTING_ROLLOUT)
        are_reused = await starting
        log.info("engines %s", ["reused" if reused else "started" for reused in are_reused])
        self._hooks.started(ranks, pool)
        await self._watch_processes(ranks, pool)

    async def _train(
        self,
        pool: EnginePool,
        saver: Saver,
        state: TrainState,
        inputs: Inputs,
        key: str,
        parser: "asyncio.Task[ParserProcess | None]",
    ) -> None:
        config, reporter = self._config, self._reporter
        reporter.report_stage(Stage.WARMING_RETRIEVAL)
        outages = Outages(reporter.report_outages)
        async with AsyncExitStack() as services:
            rewards, retrieval = await services.enter_async_context(self._services(outages))
            await self._warm_up(retrieval, inputs, outages)
            composer = Composer(config, inputs.tokenizer)
            collector = await services.enter_async_context(
                self._collector(inputs, composer, pool, retrieval, rewards, outages, await parser)
            )
            components = Components(
                config=config,
                prompts=PromptSource(config, inputs.train_prompts, composer),
                collector=collector,
                validator=Validator(config, inputs.validation_prompts, collector),
                pool=pool,
                ranks=saver.ranks,
                retrieval=retrieval,
                store=saver.store,
                saver=saver,
                backups=saver.backups,
                reporter=reporter,
                hooks=self._hooks,
                stop=self._stop,
                key=key,
                outages=outages,
            )
            await train(components, state)

    @asynccontextmanager
    async def _collector(
        self,
        inputs: Inputs,
        composer: Composer,
        pool: EnginePool,
        retrieval: RetrievalClient,
        rewards: Rewards,
        outages: Outages,
        parser: ParserProcess | None,
    ) -> AsyncIterator[RolloutCollector]:
        """Yield the collector of the job: of an agent, or of a retrieval mode."""
        config, tokenizer, clock = self._config, inputs.tokenizer, outages.working_time
        if config.rollout.agent is None:
            yield Collector(config, tokenizer, composer, pool, retrieval, rewards, clock)
            return
        folder = attempt_folder(config)
        async with agent_collector(
            config, tokenizer, pool, parser, rewards, folder, outages, self._env
        ) as collector:
            yield collector

    async def _adopt_surviving_ranks(
        self, reading: "asyncio.Task[Inputs]"
    ) -> tuple[Ranks, RetainedState] | None:
        """Return usable ranks of the previous driver and their state, or None; kill all others."""
        config = self._config
        surviving = SurvivingRanks.find(self._fence.epoch)
        adopted = None
        if self._hooks.resumes() and surviving.is_complete(config.world.num_ranks):
            identity = (await self._inputs(reading)).identity
            # The ranks may still be finishing the step during which the previous driver was killed.
            seconds = self._previous.seconds_by_stage.values() if self._previous is not None else ()
            adopted = await surviving.adopt(
                config,
                self._fence.epoch,
                attempt_folder(config),
                lambda info: state_key(config, info, identity),
                busy_seconds=2 * max(seconds, default=0.0),
            )
        await surviving.kill()
        return adopted

    async def _inputs(self, reading: "asyncio.Future[Inputs]") -> Inputs:
        """Wait for the inputs in a separate stage; they are read while the model is loaded."""
        self._reporter.report_stage(Stage.READING_DATA)
        inputs = await reading
        self._reporter.report_stage(Stage.LOADING_MODEL)
        return inputs

    def _open_store(self) -> CheckpointStore:
        config = self._config
        store = CheckpointStore(
            config.checkpoint,
            self._fence,
            config.attempt.config_hash,
            key=self._env.get(names.ENV_CHECKPOINT_KEY, ""),
            reached=self._hooks.during_save,
        )
        store.clean_up()
        if store.newest is None:
            store.restore()
        store.reject_all(
            config.rejected_checkpoints,
            "two attempts that resumed from this checkpoint failed at the same step",
        )
        return store

    async def _resolve_precision(self, ranks: Ranks, retained: RetainedState | None) -> Precision:
        """Return the precision to train in; on a GPU, check the memory first."""
        if retained is not None:
            return Precision(ranks.infos[0].precision)
        config = self._config
        specified = config.training.precision
        if self._is_gpu:
            devices = await ranks.measure_devices("cuda")
            oldest = min(devices, key=lambda device: device.compute_major)
            precision = gpu_precision(specified, oldest.name, oldest.compute_major)
            self._check_memory(precision, devices)
            return precision
        if specified in (Precision.FP32, Precision.FP16):
            return specified
        return cpu_precision(specified, await ranks.measure_precision(config.model.path))

    async def _build_model(self, ranks: Ranks, precision: Precision) -> None:
        """Load the model into new ranks; on a CPU, check the memory first.

        On a CPU the check runs while the engines start; an earlier check would delay the engines.
        """
        if not self._is_gpu:
            self._check_memory(precision, await ranks.measure_devices("cpu"))
        await ranks.build(policy_config(self._config, precision))

    def _check_memory(self, precision: Precision, devices: Sequence[MeasuredDevice]) -> None:
        log.info("measured %s", check_memory(self._config, precision, devices))

    async def _resume(
        self,
        store: CheckpointStore,
        ranks: Ranks,
        retained: RetainedState | None,
        identity: Mapping[str, object],
    ) -> TrainState:
        if not self._hooks.resumes():
            self._reporter.report_resume(0)
            return TrainState()
        reported_step = self._previous.step if self._previous is not None else 0
        return await resume(
            self._config, store, ranks, retained, self._reporter, reported_step, identity
        )

    async def _watch_processes(self, ranks: Ranks, pool: EnginePool) -> None:
        """Register all processes for stack dumps, now and after each engine replacement."""

        async def watch() -> None:
            rank_processes = [info.process for info in ranks.infos]
            await self._server.watch([this_process(), *rank_processes, *pool.processes])

        pool.on_replaced = watch
        await watch()

    @asynccontextmanager
    async def _services(self, outages: Outages) -> AsyncIterator[tuple[Rewards, RetrievalClient]]:
        """Yield the clients of all services, with secret headers from the environment."""
        config = self._config
        rewards = Rewards(
            config.reward,
            config.retrieval,
            headers=judge_headers(config.reward, self._env),
            outages=outages,
        )
        retrieval = RetrievalClient(
            config.retrieval,
            endpoint_headers(config.retrieval, self._env),
            log_calls=config.monitoring.debug.rag_calls,
            outages=outages,
        )
        async with rewards, retrieval:
            yield rewards, retrieval

    async def _warm_up(self, retrieval: RetrievalClient, inputs: Inputs, outages: Outages) -> None:
        """Call every endpoint before step 1; wait for endpoints that are down."""
        columns = inputs.train_prompts[0].columns
        with outages.reporting():
            task = asyncio.ensure_future(warm_up(self._config, retrieval, columns))
            if await wait_or_stop(self._stop, task):
                raise Stopped("stopped by a signal while waiting for endpoints")
            task.result()


async def warm_up(
    config: TrainerConfig, retrieval: RetrievalClient, columns: Mapping[str, Any]
) -> None:
    """Warm up every endpoint, because the first call to a service is slow; log the latencies."""
    endpoints = config.retrieval.endpoints
    timeout = config.retrieval.warm_up_timeout_seconds
    calls = (retrieval.warm_up(endpoint.name, timeout, columns) for endpoint in endpoints)
    for endpoint, latency in zip(endpoints, await asyncio.gather(*calls), strict=True):
        log.info(
            "endpoint %s responded to the first call in %.2f s, to the second in %.3f s",
            endpoint.name,
            latency.first_seconds,
            latency.next_seconds,
        )
