"""Cluster drills; `make drills-cluster` writes docs/internals/cluster-drills.md."""

import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from raggrpo_operator.kube.cluster_objects import RAY_NODE_TYPE_LABEL
from tools.kind.images import Images
from tools.kind.kubernetes import Kubernetes
from tools.kind.operator_release import kill, scale
from tools.kind.results_table import DRILL
from tools.kind.training_job import TrainingJob, attempts, make_job, watch_ray_clusters

pytestmark = pytest.mark.long

STEPS = 14
CHECKPOINT_STEPS = 4
FAULT_STEP = 5
"""Step after which a fault is injected from outside."""
SLOW_STEP = f"slow-step@step={FAULT_STEP + 5}:20"
"""Slows the first attempt down, because injecting a fault may take seconds."""
DOWN_SECONDS = 20
TOLERANCE = timedelta(seconds=2)
"""Tolerance of comparisons, because times in the status are whole seconds."""
HEAD = f"{RAY_NODE_TYPE_LABEL}=head"
Ended = tuple[str, str]
"""Cause of an attempt, and its recovery tier."""
FIRST = "First"


def nothing(_: TrainingJob) -> None:
    """Do nothing; the fault is injected inside the trainer."""


def kill_driver(job: TrainingJob) -> None:
    job.kill_driver()


def delete_worker(job: TrainingJob) -> None:
    job.kubectl("delete", "pod", job.pod("trainer"), "--wait=false")


def kill_pod(job: TrainingJob, role: str) -> None:
    """Delete a pod without a grace period, like the loss of its node."""
    job.kubectl("delete", "pod", job.pod(role), "--grace-period=0", "--force", "--wait=false")


def kill_worker(job: TrainingJob) -> None:
    kill_pod(job, "trainer")


def kill_driver_and_worker(job: TrainingJob) -> None:
    kill_worker(job)
    job.kill_driver()


def kill_worker_and_the_next_one(job: TrainingJob) -> None:
    """Kill a worker, and its replacement while the next attempt waits for it."""
    kill_worker(job)
    job.wait_until(lambda status: status["attempt"] == 2, "the next attempt")
    kill_worker(job)


def delete_head(job: TrainingJob) -> None:
    job.kubectl("delete", "pod", job.pod("head"), "--wait=false")


def kill_head(job: TrainingJob) -> None:
    kill_pod(job, "head")


def kill_head_and_worker(job: TrainingJob) -> None:
    kill_worker(job)
    kill_head(job)


def kill_head_and_the_next_one(job: TrainingJob) -> None:
    """Kill the head, and its replacement while the next attempt waits for it."""
    kill_head(job)
    job.wait_until(lambda status: status["attempt"] == 2, "the next attempt")
    job.kubectl("wait", "pod", "-l", HEAD, "--for=condition=Ready", "--timeout=60s")
    kill_head(job)


def kill_gcs_server(job: TrainingJob) -> None:
    job.run_in_head("pkill", "-KILL", "gcs_server")


def kill_driver_and_operator(job: TrainingJob) -> None:
    job.kill_driver()
    kill(job.cluster)


def kill_driver_while_no_operator_runs(job: TrainingJob) -> None:
    """Kill the driver while the operator is scaled to zero."""
    scale(job.cluster, 0)
    try:
        job.kill_driver()
        time.sleep(DOWN_SECONDS)
    finally:
        scale(job.cluster, 1)


def delete_ray_cluster(job: TrainingJob) -> None:
    """Delete the RayCluster manually."""
    job.kubectl("delete", "raycluster", "--all", "--wait=false")


def delete_config_map(job: TrainingJob) -> None:
    """Delete the record of the attempt and wait until the operator restores it."""
    job.kubectl("delete", "configmap", job.record(1))
    job.kubectl("wait", f"configmap/{job.record(1)}", "--for=create", "--timeout=180s")


def suspend_and_resume(job: TrainingJob) -> None:
    job.patch(suspend=True)
    job.wait_until_freed(60)
    job.patch(suspend=False)


def drain_the_node(job: TrainingJob) -> None:
    """Drain the node of the head and check that the job continues on another node."""
    of_job = f"--pod-selector=raggrpo.io/job-name={job.name}"
    drained = job.node_of("head")
    try:
        job.kubectl("drain", drained, of_job, "--delete-emptydir-data", "--force")
        job.wait_for_steps(1, attempt=2)
        assert job.node_of("head") != drained
    finally:
        job.kubectl("uncordon", drained)


@dataclass(frozen=True, kw_only=True)
class Drill:
    """A fault during training, and the expected end of each attempt."""

    ends: tuple[Ended, ...]
    act: Callable[[TrainingJob], None] = nothing
    faults: str = ""
    message: str = ""
    """Part of the first attempt's message."""
    lost: int = CHECKPOINT_STEPS - 1
    """Maximum number of lost steps."""
    skips: int = 0
    """Number of skipped checkpoints."""
    spec: dict[str, Any] = field(default_factory=dict)


WARM, NEW = "WarmCluster", "NewCluster"
DONE_FIRST, DONE_WARM, DONE_NEW = (("Succeeded", tier) for tier in (FIRST, WARM, NEW))

DRILLS = {
    "driver killed": Drill(act=kill_driver, ends=(("ProgramError", FIRST), DONE_WARM), lost=0),
    "worker pod deleted": Drill(act=delete_worker, ends=(("WorkerLost", FIRST), DONE_WARM), lost=0),
    "worker pod killed": Drill(act=kill_worker, ends=(("WorkerLost", FIRST), DONE_WARM)),
    "driver and worker killed": Drill(act=kill_driver_and_worker,
        ends=(("WorkerLost", FIRST), DONE_WARM)),
    "worker killed again during its recovery": Drill(act=kill_worker_and_the_next_one,
        ends=(("WorkerLost", FIRST), DONE_WARM)),
    "head pod deleted": Drill(act=delete_head, ends=(("HeadLost", FIRST), DONE_WARM), lost=0),
    "head pod killed": Drill(act=kill_head, ends=(("HeadLost", FIRST), DONE_WARM), lost=0),
    "head's Ray killed": Drill(act=kill_gcs_server, ends=(("HeadLost", FIRST), DONE_WARM), lost=0,
        message="gcs_server"),
    "head and worker killed": Drill(act=kill_head_and_worker,
        ends=(("HeadLost", FIRST), DONE_WARM)),
    "head killed again during its recovery": Drill(act=kill_head_and_the_next_one,
        ends=(("HeadLost", FIRST), ("HeadLost", WARM), DONE_NEW)),
    "rank beyond its memory limit": Drill(faults="use-memory@step=7:16",
        ends=(("HostOutOfMemory", FIRST), DONE_NEW)),
    "rank hangs": Drill(faults="hang-rank@step=7", ends=(("Stalled", FIRST), DONE_WARM)),
    "engine hangs": Drill(faults="hang-engine@step=7", ends=(("Stalled", FIRST), DONE_WARM)),
    "device out of memory": Drill(faults="oom@step=7",
        ends=(("CudaOutOfMemory", FIRST), DONE_WARM)),
    "loss is no number": Drill(faults="nan@step=7", ends=(("NonFinite", FIRST), DONE_WARM)),
    "newest checkpoint corrupted": Drill(
        faults="corrupt-checkpoint@save=8:retention;kill-rank@step=10",
        ends=(("TrainerRankLost", FIRST), DONE_WARM), lost=2 * CHECKPOINT_STEPS - 1, skips=1),
    "driver and operator killed": Drill(act=kill_driver_and_operator,
        ends=(("ProgramError", FIRST), DONE_WARM), lost=0),
    "driver killed while no operator runs": Drill(act=kill_driver_while_no_operator_runs,
        ends=(("ProgramError", FIRST), DONE_WARM), lost=0),
    "RayCluster deleted": Drill(act=delete_ray_cluster, ends=(("HeadLost", FIRST), DONE_NEW),
        lost=0),
    "ConfigMap deleted": Drill(act=delete_config_map, ends=(DONE_FIRST,), lost=0),
    "suspended and resumed": Drill(act=suspend_and_resume, ends=(("Suspended", FIRST), DONE_NEW),
        lost=0),
    "node drained": Drill(act=drain_the_node, ends=(("Preempted", FIRST), DONE_NEW), lost=0),
}  # fmt: skip


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    times = metafunc.config.getoption("--repeat")
    if times > 1:
        metafunc.fixturenames.append("time_number")
        metafunc.parametrize("time_number", range(times))


@pytest.mark.row("B6", "B10", "B13", "B17", "G7")
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", DRILLS)
def test_job_reaches_target_after_fault(
    name: str,
    cluster: Kubernetes,
    operator: Images,
    seeded: str,
    record_property: Callable[[str, object], None],
) -> None:
    # A drain selects pods by job name in all namespaces, so names must be unique.
    drill, job = DRILLS[name], TrainingJob(cluster, seeded, f"drill-{uuid.uuid4().hex[:8]}")
    manifest = make_job(job.name, operator.trainer, STEPS, **drill.spec)
    variable = manifest["spec"]["env"][0]
    slow_step = "" if drill.act is nothing else SLOW_STEP
    variable["value"] = ";".join((variable["value"], drill.faults, slow_step))
    with watch_ray_clusters(cluster, seeded) as clusters:
        cluster.apply(manifest, namespace=seeded)
        affected: set[str] = set()
        if drill.act is not nothing:
            job.wait_for_steps(FAULT_STEP, attempt=1)
            affected = {job.pod("head"), job.pod("trainer")}
            drill.act(job)
        status = job.wait_for_complete()
        job.wait_until_freed(90)
        cluster_events = clusters()

    record = [*reversed(status["attempts"])]
    lost = sum(each.get("lostSteps", 0) for each in record)
    ends = [(cause, tier) for _, cause, tier in attempts(status)]
    record_property(DRILL, {"name": name, "ends": ends, "lost": lost})
    assert ends == [*drill.ends], [each.get("message") for each in record]
    assert drill.message in record[0].get("message", "")
    assert lost <= drill.lost
    assert sum(len(each.get("skippedCheckpoints", [])) for each in record) == drill.skips
    assert status["progress"]["step"] == STEPS
    assert never_overlap(cluster_events)
    started = [each for each in record if each["started"]]
    spans = [
        (start_time(each), start_time(each) + timedelta(seconds=each["seconds"]))
        for each in started
    ]
    assert all(end <= start + TOLERANCE for (_, end), (start, _) in pairwise(spans)), spans
    volume = job.read_volume(operator.trainer)
    assert volume["steps"] == [*range(1, STEPS + 1)]
    assert affected <= set(volume["logs_of"]), "the logs of a lost pod are missing"


def start_time(record: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(record["started"])


def never_overlap(cluster_events: list[str]) -> bool:
    """Return whether each RayCluster was deleted before the next one was created."""
    return [each.split()[1] for each in cluster_events] == [
        ("ADDED", "DELETED")[number % 2] for number in range(len(cluster_events))
    ]
