import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray
from ray.exceptions import ActorDiedError, RayTaskError

from raggrpo_api.memory.shortage import Shortage
from raggrpo_api.trainer.exit_codes import ExitCode
from raggrpo_trainer.engines.engine_actor import EngineInfo, options_digest
from raggrpo_trainer.engines.engine_failure import EngineDead
from raggrpo_trainer.engines.engine_options import engine_options
from raggrpo_trainer.engines.engine_pool import BATCH_SECONDS, MAX_REPLACEMENTS, EnginePool
from raggrpo_trainer.engines.generation import Generation, GenerationRequest, InvalidRequest
from raggrpo_trainer.errors import TrainerError
from raggrpo_trainer.host.placement import Placement
from raggrpo_trainer.host.pod_processes import PodProcess
from raggrpo_trainer.weights.transfer import (
    ChunkTransferFailed,
    Errors,
    FileTransfer,
    RankLost,
    Receiver,
)
from support.builders.trainer.reports import make_config

NO_WEIGHTS = -1
EMPTY = InvalidRequest("the prompt is empty")
REQUESTS = [GenerationRequest((1, 2), 4, 1.0, seed) for seed in range(2)]


class FakeEngine:
    """Ray handle of an engine."""

    def __init__(self, may_load: asyncio.Event, dies_loading: bool, digest: str = "digest") -> None:
        self._digest = digest
        self._may_load = may_load
        self._dies_loading = dies_loading
        self._dead = False
        self._awake = True
        self.error: Exception | type[Exception] = ActorDiedError
        self.version = NO_WEIGHTS
        self.num_loads = 0
        self.calls: list[Sequence[GenerationRequest]] = []
        self.generate = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._generate))

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(type(self), f"_{name}").__get__(self))

    def die(self, error: Exception | type[Exception] = ActorDiedError) -> None:
        self._dead = True
        self.error = error

    def _check(self) -> None:
        if self._dead:
            raise self.error

    async def _adopt(self, *_: object) -> EngineInfo:
        self._check()
        return EngineInfo(self._digest, PodProcess("node", 1))

    async def _load_weights(self, _epoch: int, version: int, *_: object) -> None:
        self._check()
        await self._may_load.wait()
        self._dead = self._dead or self._dies_loading
        self._check()
        assert self._awake
        self.version = version
        self.num_loads += 1

    async def _sleep(self, _epoch: int) -> None:
        self._check()
        self._awake = False

    async def _wake(self, _epoch: int) -> None:
        self._check()
        self._awake = True

    async def _generate(
        self, _epoch: int, requests: Sequence[GenerationRequest]
    ) -> AsyncIterator[Awaitable[list[tuple[int, Generation | InvalidRequest]]]]:
        self.calls.append(requests)
        for i, request in enumerate(requests):
            self._check()
            outcome = Generation((1,), (0.0,), "stop", self.version)
            yield asyncio.sleep(0, [(i, outcome if request.prompt_ids else EMPTY)])


class FakeRay:
    """Ray that starts engines; those listed in `die_loading` die when they load weights."""

    def __init__(self) -> None:
        self.started: list[FakeEngine] = []
        self.die_loading: Sequence[int] = ()
        self.never_starts: Exception | None = None
        self.may_load = asyncio.Event()
        self.may_load.set()

    def remote(self, _actor: type) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._start))

    def _start(self, *_: object) -> FakeEngine:
        engine = FakeEngine(self.may_load, len(self.started) in self.die_loading)
        if self.never_starts is not None:
            engine.die(self.never_starts)
        self.started.append(engine)
        return engine

    @staticmethod
    def get_actor(_name: str) -> None:
        raise ValueError


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(ray, "remote", fake.remote)
    monkeypatch.setattr(ray, "get_actor", fake.get_actor)
    monkeypatch.setattr(ray, "kill", FakeEngine.die)
    return fake


async def make_pool(folder: Path, *, device: str = "cpu", killed: bool = False) -> EnginePool:
    pool = make_stopped_pool(folder, device=device, killed=killed)
    ranks_loaded = asyncio.Event()
    ranks_loaded.set()
    await pool.start(ranks_loaded)
    return pool


def make_stopped_pool(
    folder: Path, *, device: str = "cpu", colocated: bool = True, killed: bool = False
) -> EnginePool:
    config = make_config(folder)
    options = replace(engine_options(config, "FP32"), device=device, enable_sleep=colocated)
    placement = cast(Placement, SimpleNamespace(for_engine=lambda index: index))
    return EnginePool(config, options, placement, 1, folder, lambda *_: killed)


@pytest.mark.row("D11")
@pytest.mark.parametrize(
    ("device", "colocated", "waits"),
    [("cuda", True, True), ("cuda", False, False), ("cpu", True, False)],
)
async def test_new_engine_waits_for_ranks_that_allocate_memory_of_its_gpu(
    fake: FakeRay, tmp_path: Path, device: str, colocated: bool, waits: bool
) -> None:
    pool = make_stopped_pool(tmp_path, device=device, colocated=colocated)
    ranks_loaded = asyncio.Event()
    starting = asyncio.create_task(pool.start(ranks_loaded))
    for _ in range(10):
        await asyncio.sleep(0)
    assert starting.done() is not waits
    assert len(fake.started) == (0 if waits else 1)

    ranks_loaded.set()
    assert await starting == [False]


async def test_running_engine_is_adopted_before_ranks_are_loaded(
    fake: FakeRay, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = make_stopped_pool(tmp_path, device="cuda")
    running = FakeEngine(fake.may_load, dies_loading=False, digest=options_digest(pool._options))
    monkeypatch.setattr(ray, "get_actor", lambda _: running)

    assert await pool.start(ranks_loaded=asyncio.Event()) == [True]
    assert pool.engines == [running]


def weights(version: int) -> FileTransfer:
    return FileTransfer(version, "/dev/shm/weights", "node", fetch=lambda: None)


def as_raised_by_ray(error: Exception) -> Exception:
    raised: Exception = RayTaskError("generate", "Traceback…", error).as_instanceof_cause()
    return raised


def creation_failed(line: str) -> ActorDiedError:
    text = f"Traceback\nin __init__\n{line}"
    return ActorDiedError(RayTaskError("RolloutActor.__init__", text, ValueError()))


class Chunks:
    """Chunk transfer that fails with `error`, if set."""

    needs_all_engines = True

    def __init__(self, version: int, error: Exception | None = None) -> None:
        self.version = version
        self._error = error

    async def prepare(self) -> None: ...

    async def load_into(self, receivers: Sequence[Receiver]) -> Errors:
        if self._error is not None:
            raise ChunkTransferFailed("EngineCore died") from self._error
        return await weights(self.version).load_into(receivers)

    async def load_into_replacement(self, receiver: Receiver) -> None:
        await weights(self.version).load_into_replacement(receiver)


async def let_tasks_run() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def make_pool_with_lost_engine(fake: FakeRay, folder: Path) -> EnginePool:
    """Return a pool with version 3 of the weights whose engine is gone."""
    pool = await make_pool(folder)
    await pool.load_weights(weights(3))
    fake.started[0].die()
    return pool


async def versions(pool: EnginePool) -> list[int]:
    return [each.policy_version for each in await asyncio.gather(*pool.submit(REQUESTS))]


async def test_engine_lost_during_step_is_replaced_with_current_weights(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool_with_lost_engine(fake, tmp_path)

    assert await versions(pool) == [3, 3]
    assert pool.replacements == ["RolloutEngineLost: engine-0 replaced in place in 0 s"]
    assert pool.replacing.seconds > 0.0


async def test_requests_submitted_alone_take_turns_on_engines(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool(tmp_path)
    pool.engines.append(FakeEngine(fake.may_load, dies_loading=False))
    pool.engines[0].version, pool.engines[1].version = 1, 2

    served = [await pool.submit([REQUESTS[0]])[0] for _ in range(4)]

    assert [each.policy_version for each in served] == [1, 2, 1, 2]


async def test_requests_submitted_alone_at_about_the_same_time_share_a_call(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool(tmp_path)
    [engine] = fake.started
    [first], [canceled], [last] = (pool.submit([replace(REQUESTS[0], seed=i)]) for i in range(3))
    canceled.cancel()

    await asyncio.gather(first, last)
    await pool.submit([replace(REQUESTS[0], seed=3)])[0]

    assert [[request.seed for request in call] for call in engine.calls] == [[0, 2], [3]]


async def test_canceled_request_is_not_sent(fake: FakeRay, tmp_path: Path) -> None:
    pool = await make_pool(tmp_path)
    pool.submit([REQUESTS[0]])[0].cancel()
    await asyncio.sleep(2 * BATCH_SECONDS)
    assert fake.started[0].calls == []


async def test_invalid_request_fails_alone(fake: FakeRay, tmp_path: Path) -> None:
    pool = await make_pool(tmp_path)
    requests = [REQUESTS[0], replace(REQUESTS[0], prompt_ids=()), REQUESTS[1]]
    first, invalid, last = await asyncio.gather(*pool.submit(requests), return_exceptions=True)
    assert isinstance(first, Generation)
    assert invalid is EMPTY
    assert isinstance(last, Generation)


async def test_requests_with_equal_affinity_go_to_same_engine_or_its_replacement(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool(tmp_path)
    await pool.load_weights(weights(3))
    pool.engines.append(FakeEngine(fake.may_load, dies_loading=False))
    pool.engines[1].version = 4

    async def served(*affinities: int) -> list[int]:
        requests = [replace(REQUESTS[0], prompt_ids=(n,), affinity=n) for n in affinities]
        return [(await pool.submit([each])[0]).policy_version for each in requests]

    assert await served(0, 0, 1, 1, 2, 3, 1) == [3, 3, 4, 4, 3, 4, 4]
    fake.started[0].die()
    assert await served(1, 0, 2, 1, 0) == [4, 3, 3, 4, 3]
    assert len(pool.replacements) == 1


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineDead("EngineCore died"), ExitCode.ROLLOUT_ENGINE_LOST),
        (EngineDead("torch.OutOfMemoryError: CUDA out of memory."), ExitCode.CUDA_OUT_OF_MEMORY),
    ],
)
async def test_engine_lost_during_chunk_transfer_ends_attempt(
    fake: FakeRay, tmp_path: Path, error: Exception, code: ExitCode
) -> None:
    pool = await make_pool(tmp_path)
    with pytest.raises(TrainerError) as raised:
        await pool.load_weights(Chunks(4, error))
    assert raised.value.exit_code is code


async def test_engine_lost_before_chunk_transfer_is_replaced(fake: FakeRay, tmp_path: Path) -> None:
    pool = await make_pool(tmp_path)
    await pool.load_weights(Chunks(3))
    fake.started[0].die()
    await pool.load_weights(Chunks(4))

    assert await versions(pool) == [4, 4]
    assert len(pool.replacements) == 1


async def test_engine_lost_after_chunk_transfer_is_replaced_from_file(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool(tmp_path)
    await pool.load_weights(Chunks(4))
    fake.started[0].die()

    assert await versions(pool) == [4, 4]
    assert len(pool.replacements) == 1


@pytest.mark.row("D12")
async def test_dead_engine_in_live_actor_is_replaced(fake: FakeRay, tmp_path: Path) -> None:
    pool = await make_pool_with_lost_engine(fake, tmp_path)
    fake.started[0].die(as_raised_by_ray(EngineDead("EngineCore: illegal memory access")))

    assert await versions(pool) == [3, 3]
    assert pool.replacements == ["RolloutEngineLost: engine-0 replaced in place in 0 s"]


@pytest.mark.row("D12")
@pytest.mark.parametrize(
    ("line", "code", "short_of"),
    [
        ("CUDA out of memory. Tried to", ExitCode.CUDA_OUT_OF_MEMORY, Shortage.ENGINE),
        (
            "No available memory for the cache blocks.",
            ExitCode.CUDA_OUT_OF_MEMORY,
            Shortage.KV_CACHE,
        ),
        ("std::bad_alloc", ExitCode.HOST_OUT_OF_MEMORY, Shortage.TRAINER_HOST),
    ],
)
async def test_engine_out_of_memory_ends_attempt_with_memory_term(
    line: str, code: ExitCode, short_of: Shortage, fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool_with_lost_engine(fake, tmp_path)
    fake.started[0].die(as_raised_by_ray(EngineDead(line)))

    with pytest.raises(TrainerError, match=f"^engine-0: {line}$") as in_mid_run:
        await versions(pool)

    fake.never_starts = creation_failed(f"ValueError: {line}")
    with pytest.raises(TrainerError, match=line) as at_start:
        await make_pool(tmp_path)
    for raised in (in_mid_run.value, at_start.value):
        assert (raised.exit_code, raised.short_of) == (code, short_of)


async def test_engine_on_occupied_gpu_reports_memory_of_other_processes(
    fake: FakeRay, tmp_path: Path
) -> None:
    fake.never_starts = creation_failed(
        "ValueError: Free memory on device cuda:0 (18.72/79.11 GiB) on startup is less than "
        "desired GPU memory utilization (0.6, 47.47 GiB). Decrease GPU memory utilization or "
        "reduce GPU memory used by other processes."
    )
    with pytest.raises(TrainerError) as raised:
        await make_pool(tmp_path)
    assert str(raised.value) == (
        "engine-0: other processes, ranks of this job included, use 60.4 of 79.1 GiB of GPU "
        "memory, but a starting engine needs 47.5 GiB (rollout.gpuMemoryUtilization 0.6); stop the "
        "other processes or lower rollout.gpuMemoryUtilization"
    )
    assert raised.value.exit_code is ExitCode.CUDA_OUT_OF_MEMORY
    assert raised.value.short_of is Shortage.ENGINE


async def test_failed_engine_start_is_reported_as_rollout_engine_lost(
    fake: FakeRay, tmp_path: Path
) -> None:
    fake.never_starts = creation_failed("ValueError: unknown architecture")
    with pytest.raises(
        TrainerError, match=r"^ValueError: unknown architecture .*; engine-0 did not start$"
    ) as raised:
        await make_pool(tmp_path)
    assert raised.value.exit_code is ExitCode.ROLLOUT_ENGINE_LOST


async def test_replacement_serves_requests_after_loading_weights(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool_with_lost_engine(fake, tmp_path)
    fake.may_load.clear()
    first = asyncio.create_task(versions(pool))
    await let_tasks_run()

    second = asyncio.create_task(versions(pool))
    await let_tasks_run()
    fake.may_load.set()

    assert await first == await second == [3, 3]
    assert len(fake.started) == 2


async def test_weights_sent_during_replacement_reach_new_engine(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool_with_lost_engine(fake, tmp_path)
    fake.may_load.clear()
    rollouts = asyncio.create_task(versions(pool))
    await let_tasks_run()

    published = asyncio.create_task(pool.load_weights(weights(4)))
    await let_tasks_run()
    fake.may_load.set()
    await asyncio.gather(rollouts, published)

    assert await versions(pool) == [4, 4]


async def test_engine_replaced_between_steps_loads_weights_once(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool_with_lost_engine(fake, tmp_path)
    await pool.load_weights(weights(4))
    assert [(each.version, each.num_loads) for each in fake.started[1:]] == [(4, 1)]


async def test_replacement_engine_lost_while_loading_is_replaced(
    fake: FakeRay, tmp_path: Path
) -> None:
    fake.die_loading = (1,)
    pool = await make_pool_with_lost_engine(fake, tmp_path)

    async with asyncio.timeout(5):
        await pool.load_weights(weights(4))

    assert await versions(pool) == [4, 4]
    assert len(fake.started) == 3


async def test_repeated_engine_loss_while_loading_ends_attempt(
    fake: FakeRay, tmp_path: Path
) -> None:
    fake.die_loading = range(10)
    pool = await make_pool(tmp_path)

    with pytest.raises(
        TrainerError, match="engine-0 was lost again after 3 replacements"
    ) as raised:
        async with asyncio.timeout(5):
            await pool.load_weights(weights(1))

    assert raised.value.exit_code is ExitCode.ROLLOUT_ENGINE_LOST
    assert len(fake.started) == 1 + MAX_REPLACEMENTS


async def test_lost_weights_file_ends_attempt_with_rank_lost(fake: FakeRay, tmp_path: Path) -> None:
    pool = await make_pool(tmp_path)
    fake.started[0].die(as_raised_by_ray(RankLost("/proc/1/fd/3")))

    with pytest.raises(TrainerError, match="a trainer rank exited") as raised:
        await pool.load_weights(weights(1))

    assert raised.value.exit_code is ExitCode.TRAINER_RANK_LOST
    assert len(fake.started) == 1


async def test_repeatedly_oom_killed_engine_ends_attempt_with_out_of_memory(
    fake: FakeRay, tmp_path: Path
) -> None:
    fake.die_loading = range(10)
    pool = await make_pool(tmp_path, killed=True)

    with pytest.raises(TrainerError, match="engine-0: killed 4 times") as raised:
        await pool.load_weights(weights(1))

    assert raised.value.exit_code is ExitCode.HOST_OUT_OF_MEMORY
    assert raised.value.short_of is Shortage.TRAINER_HOST


async def test_engine_that_fails_to_sleep_is_killed_so_that_its_memory_is_free(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool(tmp_path, device="cuda")
    await pool.load_weights(weights(3))
    fake.started[0].die(EngineDead("Memory usage increased after sleeping."))

    await pool.sleep()
    assert fake.started[0].error is ActorDiedError  # killed

    await pool.load_weights(weights(4))
    assert await versions(pool) == [4, 4]


async def test_engine_lost_while_sleeping_is_replaced_on_wake_up(
    fake: FakeRay, tmp_path: Path
) -> None:
    pool = await make_pool(tmp_path, device="cuda")
    await pool.load_weights(weights(3))
    await pool.sleep()
    fake.started[0].die()

    await pool.load_weights(weights(4))

    assert await versions(pool) == [4, 4]
