r"""Throughput of one operator with many jobs, on a real API server without nodes.

    PYTHONPATH=tests .venv/bin/python tests/bench/operator/operator_scale.py \
        [--jobs 1000] [--watch-seconds 60] [--kuberay] [--json]

This process fakes KubeRay, kubelet and Ray heads, as in tests/api; the operator is a separate
process with default settings. CPU s are its CPU seconds, API s those of kube-apiserver. Four
stages: all jobs are applied at once and start; they run; they end; a restarted operator reconciles
all of them. Fails if the last stage writes anything.

With `--kuberay` KubeRay's operator creates the pods, and afterwards starts as many RayJobs with the
same pods on the same API server.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from bench.operator.kuberay_operator import (
    USER_AGENT,
    FakeKubelet,
    cpu_seconds,
    running_kuberay,
    start_rayjobs,
)
from support.builders.operator.jobs import make_raw_job
from support.fakes.fake_kuberay import Api, Manifest, path_of
from support.fakes.fake_kuberay_watch import FakeKubeRayWatch
from support.fakes.fake_ray import FakeRay, Script, fake_ray
from support.processes.ports import free_port
from tools.kind.api_server import PLAYERS, ApiServer, running_api_server
from tools.kind.program import Program

FEATURE_ROWS = ("G9",)
"""Rows of docs/features.md that this benchmark measures."""
RUNNER = Path(__file__).parents[2] / "support" / "operator" / "operator_under_test.py"
NAMESPACE = "scale"
STEPS = 1_000
STEP_SECONDS = 10.0
AT_ONCE = 16
LIMIT_SECONDS = 1800.0
WAIT = "raggrpo_operator_workqueue_queue_duration_seconds_bucket"
ROUNDS = ("raggrpo_operator_reconcile_total", "")
DEPTH = ("raggrpo_operator_workqueue_depth", "")
OTHERS = (*PLAYERS, USER_AGENT)
WRITES = frozenset({"create", "update", "patch", "delete"})


Series = defaultdict[tuple[str, str], float]
"""Values by metric name and upper bound of the histogram bucket, summed over other labels."""


@dataclass
class Operator:
    """The operator process and its metrics."""

    program: Program
    port: int
    started: float = field(default_factory=time.monotonic)
    peak_rss: int = 0

    async def metrics(self) -> Series:
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            text = (await http.get(f"http://127.0.0.1:{self.port}/metrics")).text
        series: Series = defaultdict(float)
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series[sample.name, sample.labels.get("le", "")] += sample.value
        return series

    def cpu_seconds(self) -> float:
        return cpu_seconds(self._process())

    async def sample_memory(self) -> None:
        while True:
            self.peak_rss = max(self.peak_rss, self._process().memory_info().rss)
            await asyncio.sleep(0.5)

    def _process(self) -> psutil.Process:
        process = self.program.process
        if process is None or process.poll() is not None:
            raise RuntimeError(self.program.log_file.read_text()[-3000:])
        return psutil.Process(process.pid)


@dataclass
class Bench:
    """The fake cluster and the watched state of the jobs."""

    server: ApiServer
    api: Api
    ray: FakeRay
    kuberay: FakeKubeRayWatch
    num_jobs: int
    namespace: str = NAMESPACE
    cluster_spec: Manifest = field(default_factory=dict)
    """Spec of one job's RayCluster."""
    phases: dict[str, str] = field(default_factory=dict)
    stages: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def watch_jobs(self) -> None:
        path = path_of("raggrpo.io/v1alpha1", "raggrpojobs", self.namespace)
        async for _, job in self.api.watch(path):
            self.phases[job["metadata"]["name"]] = job.get("status", {}).get("phase", "")

    async def apply(self) -> None:
        path, free = (
            path_of("raggrpo.io/v1alpha1", "raggrpojobs", self.namespace),
            asyncio.Semaphore(AT_ONCE),
        )

        async def one(name: str) -> None:
            async with free:
                await self.api.create(path, job_of(name))

        await asyncio.gather(*(one(f"job-{number:04}") for number in range(self.num_jobs)))

    async def until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT_SECONDS
        while not condition():
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{what}: not after {LIMIT_SECONDS} s: {Counter(self.phases.values())}"
                )
            await asyncio.sleep(0.1)

    def all_are(self, phase: str) -> bool:
        return Counter(self.phases.values())[phase] == self.num_jobs

    @asynccontextmanager
    async def stage(
        self, name: str, operator: Operator, *, is_start: bool = False
    ) -> AsyncIterator[None]:
        """Record the costs of the code in the context under `name`."""
        before = Series(float) if is_start else await operator.metrics()
        cpu = 0.0 if is_start else operator.cpu_seconds()
        start = operator.started if is_start else time.monotonic()
        calls, served = self.writes(), api_server_seconds(self.server)
        yield
        seconds = time.monotonic() - start
        after = await operator.metrics()
        waits = waiting_times(before, after)
        writes = self.writes() - calls
        rounds = after[ROUNDS] - before[ROUNDS]
        self.stages[name] = {
            "seconds": round(seconds, 1),
            "queue_wait_p50_seconds": quantile(waits, 0.50),
            "queue_wait_p99_seconds": quantile(waits, 0.99),
            "rounds_per_job": round(rounds / self.num_jobs, 2),
            "writes_per_job": round(writes.total() / self.num_jobs, 2),
            "writes": dict(writes.most_common()),
            "operator_cpu_seconds": round(operator.cpu_seconds() - cpu, 1),
            "api_server_cpu_seconds": round(api_server_seconds(self.server) - served, 1),
        }

    def writes(self) -> Counter[str]:
        """Return the number of writes of the operator so far, by `verb resource`."""
        return Counter(
            f"{event['verb']} {resource_of(event['objectRef'])}"
            for event in self.server.audit_events()
            if event["verb"] in WRITES and not event["userAgent"].startswith(OTHERS)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description="one operator and many jobs")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--watch-seconds", type=float, default=60, help="how long jobs just run")
    parser.add_argument("--kuberay", action="store_true", help="with KubeRay's operator")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="raggrpo-bench-") as folder,
        running_api_server(Path(folder)) as server,
    ):
        result = asyncio.run(
            measure(server, options.jobs, options.watch_seconds, with_kuberay=options.kuberay)
        )
    print("\n".join(table(result)))
    if options.json:
        print(json.dumps(result))
    if written := result["stages"]["restart"]["writes"]:
        sys.exit(f"an operator that looked at settled jobs again wrote {written}")


async def measure(
    server: ApiServer, num_jobs: int, watch_seconds: float, *, with_kuberay: bool
) -> dict[str, Any]:
    server.kubectl("create", "namespace", NAMESPACE)
    api = Api(server.kubeconfig)
    async with fake_ray() as ray, asyncio.TaskGroup() as group:
        for number in range(num_jobs):
            ray.scripts[f"job-{number:04}-a1"] = Script(step_seconds=STEP_SECONDS)
        fake = FakeKubelet if with_kuberay else FakeKubeRayWatch
        kuberay = fake(api, NAMESPACE, ray)
        bench = Bench(server, api, ray, kuberay, num_jobs)
        tasks = [group.create_task(part) for part in (kuberay.run(), bench.watch_jobs())]
        async with AsyncExitStack() as stack:
            if with_kuberay:
                await stack.enter_async_context(running_kuberay(server, NAMESPACE))
            first = await run_lifecycles(bench, watch_seconds)
        second = await restart_operator(bench)
        for task in tasks:
            task.cancel()
        rayjobs = (
            await start_rayjobs(server, api, bench.cluster_spec, num_jobs) if with_kuberay else {}
        )
    await api.close()
    return {
        "rayjobs": rayjobs,
        "bench": "operator_scale",
        "jobs": num_jobs,
        "stages": bench.stages,
        "peak_rss_mib": round(max(first.peak_rss, second.peak_rss) / 2**20),
    }


async def run_lifecycles(bench: Bench, watch_seconds: float) -> Operator:
    """Start, run and finish all jobs under one operator."""
    async with running_operator(bench) as operator:
        async with bench.stage("start", operator):
            await bench.apply()
            await bench.until("all run", lambda: bench.all_are("Running"))
        clusters = path_of("ray.io/v1", "rayclusters", NAMESPACE)
        bench.cluster_spec = (await bench.api.items(clusters))[0]["spec"]
        async with bench.stage("run", operator):
            await asyncio.sleep(watch_seconds)
        async with bench.stage("end", operator):
            bench.ray.finish_all()
            await bench.until("all succeeded", lambda: bench.all_are("Succeeded"))
            while await bench.api.items(clusters):  # noqa: ASYNC110
                await asyncio.sleep(0.5)
        return operator


async def restart_operator(bench: Bench) -> Operator:
    """Let a new operator reconcile the finished jobs."""
    pods = path_of("v1", "pods", NAMESPACE)
    while await bench.api.items(pods):  # noqa: ASYNC110 - until then jobs are polled every second
        await asyncio.sleep(5)
    async with running_operator(bench) as operator:
        async with bench.stage("restart", operator, is_start=True):
            polled = time.monotonic()
            while not await has_reconciled(operator, bench.num_jobs):
                # Serving metrics takes the operator one second per thousand jobs.
                await asyncio.sleep(max(0.5, 5 * (time.monotonic() - polled)))
                polled = time.monotonic()
        return operator


async def has_reconciled(operator: Operator, num_jobs: int) -> bool:
    """Return whether every job had a round and none is queued."""
    series = await operator.metrics()
    return series[ROUNDS] >= num_jobs and series[DEPTH] == 0


@asynccontextmanager
async def running_operator(bench: Bench, namespaces: str = NAMESPACE) -> AsyncIterator[Operator]:
    """Run the operator with default settings as a child process."""
    folder, port = bench.server.folder, free_port()
    (folder / "key").mkdir(exist_ok=True)
    (folder / "key" / "current").write_text("an installation key for benchmarks only")
    settings = {
        "RAGGRPO_WATCH_NAMESPACES": namespaces,
        "RAGGRPO_NAMESPACE": bench.namespace,
        "RAGGRPO_KEY_FOLDER": str(folder / "key"),
        "RAGGRPO_TRAINER_IMAGE": "trainer:bench",
        "RAGGRPO_HTTP_PORT": str(port),
        "KUBECONFIG": str(bench.server.kubeconfig),
        "HEADS": bench.ray.url,
    }
    environment = [f"{name}={value}" for name, value in settings.items()]
    program = Program(
        "operator", ["env", *environment, sys.executable, str(RUNNER)], folder / "operator.log"
    )
    operator = Operator(program, port)
    program.start()
    try:
        await asyncio.to_thread(program.wait_until, lambda: answers(port))
        sampling = asyncio.create_task(operator.sample_memory())
        try:
            yield operator
        finally:
            sampling.cancel()
    finally:
        program.stop()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", trust_env=False).is_success
    except httpx.TransportError:
        return False


def job_of(name: str) -> Manifest:
    raw = make_raw_job(
        {
            "spec.training.totalSteps": STEPS,
            "spec.data.trainBatchSize": 8,
            "spec.data.maxPromptLength": 64,
            "spec.data.maxResponseLength": 16,
            "spec.checkpoint": {"path": f"/mnt/runs/{name}", "everySteps": 100},
            "spec.resources": {"device": "CPU"},
            "spec.image": "trainer:bench",
        }
    )
    return raw | {"metadata": {"name": name}}


def api_server_seconds(server: ApiServer) -> float:
    """Return the CPU seconds of kube-apiserver so far."""
    process = server.programs["kube-apiserver"].process
    return cpu_seconds(psutil.Process(process.pid)) if process is not None else 0.0


def resource_of(reference: Mapping[str, Any]) -> str:
    return "/".join(reference[k] for k in ("resource", "subresource") if k in reference)


def waiting_times(before: Series, after: Series) -> dict[float, float]:
    """Return the cumulative histogram of queue waits between two readings. Pure."""
    return {float(le): after[name, le] - before[name, le] for name, le in after if name == WAIT}


def quantile(at_most: Mapping[float, float], share: float) -> float | None:
    """Return a quantile of a cumulative histogram, or None beyond its last bucket.

    Interpolates linearly within a bucket.
    """
    expected = share * max(at_most.values(), default=0)
    low, below = 0.0, 0.0
    for limit, count in sorted(at_most.items()):
        if count >= expected and count > below:
            if limit == float("inf"):
                return None
            return round(low + (limit - low) * (expected - below) / (count - below), 4)
        low, below = limit, count
    return 0.0


def table(result: Mapping[str, Any]) -> Iterator[str]:
    yield f"{result['jobs']} jobs, operator at most {result['peak_rss_mib']} MiB"
    counts = "".join(f"{name:>8}" for name in ("rounds", "writes", "CPU s", "API s"))
    yield f"{'':<12}{'s':>8}{'wait p50':>10}{'wait p99':>10}{counts}"
    for name, stage in result["stages"].items():
        p50, p99 = stage["queue_wait_p50_seconds"], stage["queue_wait_p99_seconds"]
        waits = ["> 10" if each is None else f"{each:.3f}" for each in (p50, p99)]
        yield (
            f"{name:<12}{stage['seconds']:>8.1f}{waits[0]:>10}{waits[1]:>10}"
            f"{stage['rounds_per_job']:>8.1f}{stage['writes_per_job']:>8.1f}"
            f"{stage['operator_cpu_seconds']:>8.1f}{stage['api_server_cpu_seconds']:>8.1f}"
        )
    if rayjobs := result["rayjobs"]:
        cpu, mib = rayjobs["kuberay_cpu_seconds"], rayjobs["kuberay_mib"]
        yield f"as many RayJobs start in {rayjobs['seconds']} s, KubeRay: {cpu} CPU s, {mib} MiB"


if __name__ == "__main__":
    main()
