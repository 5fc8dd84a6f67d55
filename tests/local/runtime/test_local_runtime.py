import asyncio
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raggrpo_api.job import RagGrpoJob
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_operator.core.lifecycle.actions import (
    CreateCluster,
    DeleteCluster,
    PodPlan,
    StartRetriever,
    StopRetrievers,
    SubmitAttempt,
)
from raggrpo_operator.core.lifecycle.observed import ServiceObserved
from raggrpo_operator.core.sizing.size import size
from raggrpo_operator.core.spec.resolve import resolve, trainer_config
from raggrpo_operator.errors import OperatorError
from raggrpo_operator.local_runtime import warden
from raggrpo_operator.local_runtime.driver import Driver
from raggrpo_operator.local_runtime.job_folder import JobFolder, State
from raggrpo_operator.local_runtime.processes import Processes, free_ports
from raggrpo_operator.local_runtime.ray_head import RAY, RayHead
from raggrpo_operator.local_runtime.runtime import (
    LOST_SECONDS,
    MIN_SILENT_POLLS,
    START_SECONDS,
    LocalRuntime,
)
from raggrpo_operator.local_runtime.supervise import prepare
from raggrpo_retriever.loading import load_index
from raggrpo_trainer.job_config import endpoint_headers
from raggrpo_trainer.retrieval.client import RetrievalClient
from support.builders.data.rows import write_rows
from support.builders.operator.jobs import make_job
from support.builders.trainer.embedding_model import write_embedding_model
from support.processes.waiting import wait_for

CORPUS = '{"id": "1", "contents": "a passage"}\n'


class Clock:
    """Clock that tests advance."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def make_runtime(
    tmp_path: Path, processes: Processes, status: JobStatus | None = None, **more: Any
) -> LocalRuntime:
    folder = JobFolder(tmp_path / "job")
    folder.acquire()
    folder.release()
    state = State(uid="u", status=status or JobStatus())
    return LocalRuntime(folder, state, processes, tmp_path / "logs", **more)


def make_plan(job: RagGrpoJob) -> PodPlan:
    spec = resolve(job).spec
    return PodPlan(spec, "", size(spec))


def start_kb(job: RagGrpoJob) -> StartRetriever:
    plan = make_plan(job)
    [(name, managed)] = plan.spec.retrieval.managed.items()
    return StartRetriever(plan, name, managed)


def with_retriever(corpus: Path) -> RagGrpoJob:
    endpoint = {"name": "kb", "managed": {"corpus": str(corpus)}}
    return make_job({"retrieval": {"mode": "Prompt", "endpoints": [endpoint]}})


async def observed_retriever(
    runtime: LocalRuntime, job: RagGrpoJob, until: Callable[[ServiceObserved], bool]
) -> ServiceObserved:
    deadline = time.monotonic() + 60
    while True:
        [retriever] = (await runtime.observe(job)).retrievers
        if until(retriever):
            return retriever
        assert time.monotonic() < deadline, retriever
        await asyncio.sleep(0.05)


def is_there(path: str) -> bool:
    return Path(path).exists()


def make_head(tmp_path: Path, processes: Processes) -> RayHead:
    """Return a head whose Ray never starts."""
    child = processes.start("c1", ["sleep", "1000"], os.environ, tmp_path / "log")
    [port] = free_ports(1)
    return RayHead(1, child, tmp_path / "raggrpo-x", port, {"RAY_AUTH_TOKEN": "token"})


async def test_restarted_retriever_keeps_its_port(tmp_path: Path, processes: Processes) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text(CORPUS)
    runtime, job = make_runtime(tmp_path, processes), with_retriever(corpus)

    await runtime.perform(job, start_kb(job))
    await runtime.perform(job, start_kb(job))
    ready = await observed_retriever(runtime, job, lambda retriever: retriever.is_ready)
    warden.sweep(f"{processes.mark}.retriever-kb")
    dead = await observed_retriever(runtime, job, lambda retriever: retriever.has_ended)
    await runtime.perform(job, start_kb(job))
    again = await observed_retriever(runtime, job, lambda retriever: retriever.is_ready)
    await runtime.perform(job, StopRetrievers())

    assert ready.problem == ""
    assert ready.address.startswith("http://127.0.0.1:")
    assert dead.cause is None
    assert again.address == ready.address
    assert (await runtime.observe(job)).retrievers == ()


@pytest.mark.row("D8")
@pytest.mark.parametrize("index", ["Dense", "Hybrid"])
async def test_dense_retriever_answers_trainer_calls(
    tmp_path: Path, processes: Processes, index: str
) -> None:
    model = write_embedding_model(tmp_path / "e5", ["tea", "sky", "is", "hot", "blue", "query:"])
    texts = ["tea is hot", "sky is blue", "blue tea"]
    corpus = write_rows(
        tmp_path / "corpus.jsonl", [{"id": str(n), "contents": t} for n, t in enumerate(texts)]
    )
    embedding = {"path": str(model), "queryPrefix": "query: "}
    managed = {"corpus": str(corpus), "index": index, "embedding": embedding}
    retrieval = {"mode": "Prompt", "endpoints": [{"name": "kb", "topK": 2, "managed": managed}]}
    job = make_job({"retrieval": retrieval, "checkpoint.path": str(tmp_path / "checkpoints")})
    runtime = make_runtime(tmp_path, processes)

    await runtime.perform(job, start_kb(job))
    ready = await observed_retriever(runtime, job, lambda retriever: retriever.is_ready)
    config = trainer_config(job, resolve(job), retriever_addresses={"kb": ready.address})
    headers = endpoint_headers(config.retrieval, runtime._retrievers.token_env())
    async with RetrievalClient(config.retrieval, headers) as client:
        passages = [
            [p.text for p in await client.retrieve("kb", text, sample="s")] for text in texts
        ]
    await runtime.perform(job, StopRetrievers())

    truth = load_index(resolve(job).spec.retrieval.managed["kb"])  # cached, so not rebuilt
    expected = [[h.passage.contents for h in hits] for hits in truth.search(texts, 2)]
    assert passages == expected
    assert len(list((tmp_path / "checkpoints" / "indexes").iterdir())) == 1


async def test_invalid_corpus_is_reported_as_data_error(
    tmp_path: Path, processes: Processes
) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text('{"id": "1"}\n')
    runtime, job = make_runtime(tmp_path, processes), with_retriever(corpus)

    await runtime.perform(job, start_kb(job))
    retriever = await observed_retriever(runtime, job, lambda retriever: retriever.has_ended)

    assert retriever.cause is Cause.DATA_ERROR
    assert "line 1" in retriever.problem


@contextmanager
def servers(head: RayHead) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Listen on the ports of Ray's GCS and raylet."""
    folder = head.temp_dir / RAY
    (folder / "session_latest" / "sockets").mkdir(parents=True)
    with socket.socket() as gcs, socket.socket(socket.AF_UNIX) as raylet:
        gcs.bind(("127.0.0.1", 0))
        gcs.listen()
        raylet.bind(str(folder / "session_latest" / "sockets" / "raylet"))
        raylet.listen()
        (folder / "ray_current_cluster").write_text(f"127.0.0.1:{gcs.getsockname()[1]}")
        yield gcs, raylet


@pytest.mark.parametrize("gone", [0, 1])
async def test_driver_failure_is_reported_only_if_head_is_reachable(
    gone: int, processes: Processes, tmp_path: Path
) -> None:
    clock = Clock()
    status = JobStatus(attempt=1, attempts=[AttemptRecord(number=1, cluster=1)])
    job = make_job().model_copy(update={"status": status})
    with tempfile.TemporaryDirectory(prefix="raggrpo-") as short:
        runtime = make_runtime(tmp_path, processes, clock=clock)
        head = runtime._head = replace(make_head(tmp_path, processes), temp_dir=Path(short))
        with servers(head) as listening:
            driver = Driver(processes, head, 1, {}, (sys.executable, "-c", "exit(7)"))
            runtime._driver = driver
            wait_for(lambda: driver.observe().status.is_terminal)
            observed = await runtime.observe(job)
            listening[gone].close()
            torn = [await runtime.observe(job) for _ in range(MIN_SILENT_POLLS)]
            clock.now += LOST_SECONDS
            lost = await runtime.observe(job)
        await runtime.close()

    assert observed.is_head_reachable
    assert observed.attempt is not None
    assert observed.attempt.exit_code == 7
    for seen in torn:
        assert (seen.attempt, seen.is_head_reachable) == (None, False)
        assert seen.cluster is not None
        assert not seen.cluster.is_lost
    assert lost.cluster is not None
    assert (lost.cluster.is_lost, lost.cluster.cause) == (True, Cause.HEAD_LOST)
    assert lost.cluster.message == "the Ray head has not responded for 5 s"


async def test_head_that_never_starts_is_reported_lost_after_deadline(
    tmp_path: Path, processes: Processes
) -> None:
    clock = Clock()
    runtime, job = make_runtime(tmp_path, processes, clock=clock), make_job()
    runtime._head = make_head(tmp_path, processes)

    seen = []
    for _ in range(MIN_SILENT_POLLS + 1):
        seen.append((await runtime.observe(job)).cluster)
        clock.now += START_SECONDS / MIN_SILENT_POLLS
    await runtime.close()

    assert [cluster is not None and cluster.is_lost for cluster in seen] == [
        *[False] * MIN_SILENT_POLLS,
        True,
    ]


async def test_unobserved_time_does_not_count_toward_head_timeout(
    tmp_path: Path, processes: Processes
) -> None:
    clock = Clock()
    runtime, job = make_runtime(tmp_path, processes, clock=clock), make_job()
    runtime._head = make_head(tmp_path, processes)
    await runtime.observe(job)
    clock.now += 10 * START_SECONDS
    cluster = (await runtime.observe(job)).cluster
    await runtime.close()

    assert cluster is not None
    assert not cluster.is_lost


async def test_dead_head_is_reported_lost_with_signal(tmp_path: Path, processes: Processes) -> None:
    runtime, job = make_runtime(tmp_path, processes), make_job()
    head = runtime._head = make_head(tmp_path, processes)
    warden.sweep(head.child.mark)
    head.child.process.wait()
    observed = await runtime.observe(job)
    await runtime.close()

    assert observed.cluster is not None
    assert observed.cluster.is_lost
    assert "signal 9 (SIGKILL)" in observed.cluster.message
    assert not observed.is_head_reachable


async def test_cluster_of_killed_run_is_reported_lost_until_deleted(
    tmp_path: Path, processes: Processes
) -> None:
    status = JobStatus(attempt=3, attempts=[AttemptRecord(number=3, cluster=2)])
    runtime, job = make_runtime(tmp_path, processes, status), make_job()
    before = (await runtime.observe(job)).cluster
    await runtime.perform(job, DeleteCluster(2))

    assert before is not None
    assert (before.number, before.is_lost, before.cause) == (2, True, Cause.HEAD_LOST)
    assert (await runtime.observe(job)).cluster is None


async def test_cluster_of_ended_attempt_is_not_observed(
    tmp_path: Path, processes: Processes
) -> None:
    ended = AttemptRecord(number=3, cluster=2, cause=Cause.SUSPENDED)
    runtime = make_runtime(tmp_path, processes, JobStatus(attempt=3, attempts=[ended]))
    assert (await runtime.observe(make_job())).cluster is None


async def test_submission_without_head_raises_operator_error(
    tmp_path: Path, processes: Processes
) -> None:
    runtime, job = make_runtime(tmp_path, processes), make_job()
    config = trainer_config(job, resolve(job), number=1)
    with pytest.raises(OperatorError, match="there is no Ray head"):
        await runtime.perform(job, SubmitAttempt(config, 1))


async def test_oversized_configuration_is_rejected(tmp_path: Path, processes: Processes) -> None:
    files = [f"/mnt/runs/{'x' * 240}/{'y' * 240}{n}.jsonl" for n in range(64)]
    changes = {"data.trainFiles": files, "data.validationFiles": files}
    runtime, job = make_runtime(tmp_path, processes), make_job(changes)
    runtime._head = make_head(tmp_path, processes)
    with pytest.raises(OperatorError, match="shorten templates or file lists") as caught:
        await runtime.perform(job, SubmitAttempt(trainer_config(job, resolve(job), number=1), 1))

    assert not caught.value.retryable


async def test_creating_cluster_twice_starts_one_head(tmp_path: Path, processes: Processes) -> None:
    runtime, job = make_runtime(tmp_path, processes), make_job({"resources.device": "CPU"})

    create = CreateCluster(make_plan(job), 1, "small-c1", ray_version="", grace_seconds=30)
    await runtime.perform(job, create)
    first = runtime._head
    await runtime.perform(job, create)
    second = runtime._head
    temp_dir = runtime._state.temp_dir
    existed = is_there(temp_dir)
    await runtime.close()

    assert runtime._head is None
    assert first is second is not None
    assert existed
    assert not is_there(temp_dir)
    assert warden.marked_processes(f"{processes.mark}.c1") == []


def test_next_run_kills_leftover_processes_of_killed_run(
    tmp_path: Path, processes: Processes
) -> None:
    processes.start("c1", ["sleep", "1000"], os.environ, tmp_path / "log")
    folder = JobFolder(tmp_path)
    folder.save(State(uid="u", mark=processes.mark))
    prepare(folder, make_job())
    assert warden.marked_processes(processes.mark) == []
