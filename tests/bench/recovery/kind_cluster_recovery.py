r"""Recovery time of a RagGrpoJob and of a KubeRay RayJob with the same trainer, on kind.

    PYTHONPATH=tests .venv/bin/python tests/bench/recovery/kind_cluster_recovery.py \
        [--repeats 3] [--limit 600] [--ettr] [--alone] [--json]

Measures the time from a fault (SIGKILL of the driver, a worker pod deleted without grace period, or
deletion of the head pod) to the end of the first step of a later attempt, by phase; also the number
of repeated steps and the time to the first new step. Times come from the trainer's history (1 ms),
the head's record of the submission (1 ms) and a watch of the status (0.1 s); faults are timed to
0.3 s. Starts the cluster if needed; the operator runs with the defaults of its chart. Results are
in docs/internals/benchmarks.md.
"""

import argparse
import json
import logging
import shlex
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.recovery.peer_rayjob import rayjob, token_secret
from bench.recovery.recovery_phases import (
    DRIVER_KILLED,
    HEAD_DELETED,
    OURS,
    RAYJOB,
    WORKER_KILLED,
    Fault,
    Recovery,
    has_recovered,
    last_step,
    parsed,
    recovery,
    retained_share,
    steps_of,
    summary,
    table,
)
from raggrpo_api import names
from raggrpo_api.trainer.history import Record
from tools.kind import kind_cluster
from tools.kind.go_programs import KUBERAY, CannotBuild, tool_folder
from tools.kind.images import REPOSITORY, images
from tools.kind.kind_cluster import BASE_IMAGE, CannotStart
from tools.kind.kubernetes import Kubernetes
from tools.kind.objects import make_pod, with_claim
from tools.kind.operator_release import install
from tools.kind.training_job import (
    CLAIM,
    KILL_DRIVER,
    LIST_SUBMISSIONS,
    MOUNT,
    make_job,
    seed,
    write_model_and_data,
)

FEATURE_ROWS = ("G6", "G7", "G8")
"""Rows of docs/features.md that this benchmark measures."""
STEPS, STEPS_FIRST, EVERY = 100, 6, 4
"""Total steps, steps before each fault, and steps between checkpoints."""
ETTR_STEPS, ETTR_KILL_EVERY, ETTR_SAVE_EVERY = 200, 20, 7
"""20 and 7 are coprime, so that kills happen at every distance from a checkpoint."""
START_SECONDS, END_SECONDS, LOOK_SECONDS = 900.0, 180.0, 2.0
READER = "reader"


@dataclass(frozen=True)
class Run:
    """A job of either kind; one runs at a time."""

    cluster: Kubernetes
    namespace: str
    kind: str
    name: str

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", self.namespace, *arguments).stdout

    def records(self) -> list[Record]:
        files = f"cat {MOUNT}/{self.name}/logs/metrics.e*.jsonl 2>/dev/null || true"
        return parsed(self.kubectl("exec", READER, "--", "bash", "-c", files))

    def until(
        self, condition: Callable[[list[Record]], bool], what: str, limit: float
    ) -> list[Record]:
        """Return the history once it satisfies `condition`. Raises TimeoutError with the status."""
        deadline = time.monotonic() + limit
        while not condition(records := self.records()):
            if time.monotonic() > deadline:
                status = self.kubectl("get", self.kind.lower(), self.name, "-o=jsonpath={.status}")
                raise TimeoutError(f"{self.name}: no {what} after {limit:.0f} s: {status[:2000]}")
            time.sleep(LOOK_SECONDS)
        return records

    def kill_driver(self) -> float:
        """Kill the driver with SIGKILL; return the time."""
        kill = f"{shlex.join(KILL_DRIVER)} && date +%s.%N"
        return float(self._in_head("bash", "-c", kill))

    def kill_worker(self) -> float:
        """Delete a worker pod without grace period; return the time."""
        at, worker = time.time(), self._newest("worker")
        self.kubectl("delete", worker, "--grace-period=0", "--force", "--wait=false")
        return at

    def delete_head(self) -> float:
        """Delete the head pod, whose preStop hook lets the driver save; return the time."""
        at, head = time.time(), self._newest("head")
        self.kubectl("delete", head, "--wait=false")
        return at

    def submitted(self) -> float:
        """Return the time at which the head accepted its newest submission."""
        submissions = json.loads(self._in_head(*LIST_SUBMISSIONS))
        return max(float(each["start_time"]) for each in submissions) / 1000

    @contextmanager
    def first_change(self) -> Iterator[Callable[[], float | None]]:
        """Yield a function that returns the time of the first status with an end, or None."""
        paths = {OURS: "{.status.attempts[*].cause}", RAYJOB: "{.status.jobDeploymentStatus}"}
        command = [
            str(tool_folder("kube") / "kubectl"), f"--kubeconfig={self.cluster.kubeconfig}",
            "-n", self.namespace, "get", self.kind.lower(), self.name, "--watch",
            f'-o=jsonpath={paths[self.kind]}{{"\\n"}}',
        ]  # fmt: skip
        changes: list[float] = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
            assert watch.stdout is not None
            lines = watch.stdout
            if not (before := lines.readline()):  # its current state, sent at once
                raise RuntimeError(f"{command} printed nothing")

            def follow() -> None:
                if any(line != before for line in lines):
                    changes.append(time.time())

            threading.Thread(target=follow, daemon=True).start()
            try:
                yield lambda: changes[0] if changes else None
            finally:
                watch.terminate()

    def end(self) -> None:
        self.kubectl("delete", self.kind.lower(), self.name, "--timeout=100s")
        deadline = time.monotonic() + END_SECONDS
        while left := self.kubectl("get", "pods", "-l", "ray.io/is-ray-node=yes", "-o=name"):
            if time.monotonic() > deadline:
                raise TimeoutError(f"still there after {END_SECONDS:.0f} s: {left}")
            time.sleep(LOOK_SECONDS)

    def _in_head(self, *command: str) -> str:
        return self.kubectl("exec", self._newest("head"), "-c", "ray-head", "--", *command)

    def _newest(self, role: str) -> str:
        """Return the newest pod of this role; a deleted one may still be terminating."""
        newest_last = "--sort-by=.metadata.creationTimestamp"
        pods = self.kubectl("get", "pods", "-l", f"ray.io/node-type={role}", newest_last, "-o=name")
        return pods.split()[-1]


@dataclass(frozen=True)
class Bench:
    """The cluster with operator, images and a seeded namespace."""

    cluster: Kubernetes
    namespace: str
    image: str
    limit: float
    alone: bool

    def turn(self, number: int) -> dict[str, dict[str, Recovery | None]]:
        """Inject all faults into one job of each kind."""
        job = self.job(f"ours-{number}", STEPS, EVERY)
        return {run.kind: self.inject_faults(run) for run in self.both(job, f"rayjob-{number}")}

    def kept_shares(self) -> dict[str, float | None]:
        """Return the effective training time ratio by kind; None if the job did not finish."""
        # Only every third step is slowed, by 3 s: the environment variable has a size limit.
        pace = ";".join(f"slow-step@step={n}:3@attempt=0" for n in range(3, ETTR_STEPS + 1, 3))
        env = [{"name": names.ENV_FAULT, "value": pace}]
        job = self.job("ours-ettr", ETTR_STEPS, ETTR_SAVE_EVERY, env=env)
        shares = {}
        for run in self.both(job, "rayjob-ettr"):
            shares[run.kind] = self.retained_share(run)
            print(f"{run.name}: {shares[run.kind]} of the time was kept", flush=True)
        return shares

    def job(self, name: str, steps: int, save_every: int, **spec: Any) -> dict[str, Any]:
        """Return a job with its own checkpoint folder."""
        checkpoint = {"path": f"{MOUNT}/{name}", "everySteps": save_every}
        return make_job(name, self.image, steps, checkpoint=checkpoint, **spec)

    def both(self, job: dict[str, Any], peer_name: str) -> Iterator[Run]:
        """Yield the RagGrpoJob while it trains, and then, unless `alone`, the equivalent RayJob."""
        ours = Run(self.cluster, self.namespace, OURS, job["metadata"]["name"])
        self.cluster.apply(job, namespace=self.namespace)
        ours.until(has_trained, "steps", START_SECONDS)
        where = ("-n", self.namespace)
        [ray_cluster] = self.cluster.read("rayclusters", *where)["items"]
        uid = self.cluster.read("rgj", ours.name, *where)["metadata"]["uid"]
        record = self.cluster.read("configmap", names.config_map_name(ours.name, uid, 1), *where)
        config = json.loads(record["data"][names.CONFIG_FILE])
        yield ours
        ours.end()
        if self.alone:
            return
        theirs = Run(self.cluster, self.namespace, RAYJOB, peer_name)
        same = rayjob(peer_name, ray_cluster["spec"], config, f"{MOUNT}/{peer_name}")
        self.cluster.apply(same, namespace=self.namespace)
        theirs.until(has_trained, "steps", START_SECONDS)
        yield theirs
        theirs.end()

    def inject_faults(self, run: Run) -> dict[str, Recovery | None]:
        """Kill the driver, kill a worker, delete the head; stop if the job does not recover."""
        recoveries: dict[str, Recovery | None] = {}
        faults = {
            DRIVER_KILLED: run.kill_driver,
            WORKER_KILLED: run.kill_worker,
            HEAD_DELETED: run.delete_head,
        }
        for what, fault in faults.items():
            run.until(has_trained, "steps", START_SECONDS)
            recoveries[what] = self._recovery(run, fault)
            print(f"{run.name}, {what}: {recoveries[what]}", flush=True)
            if recoveries[what] is None:
                break
        return recoveries

    def retained_share(self, run: Run) -> float | None:
        """Kill the driver every ETTR_KILL_EVERY steps until the last step."""
        limit = self.limit + START_SECONDS
        try:
            for goal in range(ETTR_KILL_EVERY, ETTR_STEPS, ETTR_KILL_EVERY):
                run.until(reaches(goal), f"step {goal}", limit)
                run.kill_driver()
            return retained_share(run.until(reaches(ETTR_STEPS), "end", limit))
        except TimeoutError as reason:
            print(reason, flush=True)
            return None

    def _recovery(self, run: Run, fault: Callable[[], float]) -> Recovery | None:
        epoch = max(each["epoch"] for each in run.records())
        with run.first_change() as noticed:
            at = fault()
            try:
                records = run.until(lambda r: has_recovered(r, epoch), "recovery", self.limit)
            except TimeoutError as reason:
                print(reason, flush=True)
                return None
            seen = Fault(at, epoch, noticed(), run.submitted())
        return recovery(records, seen)


def has_trained(records: list[Record]) -> bool:
    """Return whether the newest attempt has trained STEPS_FIRST steps and saved a checkpoint."""
    newest = max((each["epoch"] for each in records), default=0)
    return len([s for s in steps_of(records) if s["epoch"] == newest]) >= STEPS_FIRST


def reaches(goal: int) -> Callable[[list[Record]], bool]:
    return lambda records: last_step(steps_of(records)) >= goal


@contextmanager
def prepared(limit: float, alone: bool) -> Iterator[Bench]:
    """Prepare cluster, images, operator and data; yield the benchmark in its own namespace."""
    cluster = kind_cluster.up()
    built = images()
    install(cluster, built, REPOSITORY, settings="")
    with (
        tempfile.TemporaryDirectory() as folder,
        cluster.namespace(f"bench-{uuid.uuid4().hex[:8]}", restricted=True) as namespace,
    ):
        seed(cluster, namespace, write_model_and_data(Path(folder)))
        reader = with_claim(make_pod(READER, BASE_IMAGE, ["sleep", "infinity"]), CLAIM, MOUNT)
        cluster.apply(token_secret(), reader, namespace=namespace)
        cluster.kubectl("wait", f"pod/{READER}", "--for=condition=Ready", "-n", namespace)
        yield Bench(cluster, namespace, built.trainer, limit, alone)


def main() -> None:
    parser = argparse.ArgumentParser(description="recovery of a RagGrpoJob and of a RayJob")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit", type=float, default=600, help="seconds a recovery may take")
    parser.add_argument(
        "--ettr", action="store_true", help="also the effective training time ratio"
    )
    parser.add_argument("--alone", action="store_true", help="without RayJob")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        with prepared(options.limit, options.alone) as bench:
            turns = [bench.turn(number + 1) for number in range(options.repeats)]
            result = summary(turns, bench.kept_shares() if options.ettr else {})
    except (CannotStart, CannotBuild, TimeoutError) as reason:
        sys.exit(f"not measured: {reason}")
    print("\n".join(table(result, options.limit)))
    if options.json:
        print(json.dumps(result | {"limit_seconds": options.limit, "kuberay": KUBERAY}))


if __name__ == "__main__":
    main()
