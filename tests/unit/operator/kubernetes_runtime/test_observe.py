from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from raggrpo_api import names
from raggrpo_api.spec.agent import AgentSpec
from raggrpo_api.status.attempts import AttemptRecord
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import ClusterStatus, JobStatus
from raggrpo_api.status.reasons import ConditionReason
from raggrpo_api.trainer.preflight import PreflightResult
from raggrpo_api.trainer.staging import PushOutcome, StagingReason
from raggrpo_operator.core.lifecycle.observed import (
    ClusterObserved,
    PreflightObserved,
    ServiceObserved,
)
from raggrpo_operator.kube.pod_evidence import Loss, StartProblem, Weight, start_problem
from raggrpo_operator.kubernetes_runtime.rounds.observe import (
    cluster_with_orphaned_head,
    image_ids,
    is_rolled_out,
    may_head_save,
    observed_agent,
    observed_cluster,
    observed_preflight,
    observed_push,
    observed_retrievers,
    service_names,
)
from raggrpo_operator.kubernetes_runtime.watching.trimming import trim_object
from support.builders.operator.jobs import KNOWN_TINY, make_job
from support.builders.operator.pods import (
    CLUSTER,
    JOB,
    Manifest,
    container,
    ended,
    make_pod,
    make_ray_cluster,
    with_proxy_sidecar,
)

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)


def make_loss(cause: Cause, weight: Weight, *, is_head: bool = False) -> Loss:
    return Loss("pod", "uid", is_head, cause, f"reported: {cause}", NOW, weight)


def observed(ray_cluster: Manifest, **more: Any) -> ClusterObserved:
    given: dict[str, Any] = {
        "losses": [],
        "problem": None,
        "problem_is_final": False,
        "is_reachable": True,
        "all_pods_live": True,
        **more,
    }
    return observed_cluster(1, ray_cluster, **given)


OOM = make_loss(Cause.HOST_OUT_OF_MEMORY, Weight.OUT_OF_MEMORY)
HEAD_DELETED = make_loss(Cause.HEAD_LOST, Weight.DELETED, is_head=True)
WORKER_DELETED = make_loss(Cause.WORKER_LOST, Weight.DELETED)
IMAGE = StartProblem(
    "pod", "uid", ConditionReason.IMAGE_PULL_FAILED, "reported: no image", is_final=True
)


def test_cluster_is_ready_when_pods_are_ready_and_head_answers() -> None:
    assert observed(make_ray_cluster()) == ClusterObserved(1, is_ready=True)


@pytest.mark.parametrize(
    "changes", [{"ready_workers": 1}, {"ready_workers": 0}], ids=["one of two", "none"]
)
def test_cluster_is_not_ready_without_all_workers(changes: dict[str, Any]) -> None:
    assert not observed(make_ray_cluster(**changes)).is_ready


def test_cluster_is_not_ready_while_pod_terminates() -> None:
    assert observed(make_ray_cluster(), all_pods_live=False) == ClusterObserved(1)


def test_cluster_is_neither_ready_nor_lost_when_jobs_api_is_unreachable() -> None:
    assert observed(make_ray_cluster(), is_reachable=False) == ClusterObserved(1)


def test_lost_head_marks_cluster_lost_with_most_severe_cause() -> None:
    alone = observed(make_ray_cluster(), losses=[HEAD_DELETED])
    assert (alone.is_lost, alone.cause) == (True, Cause.HEAD_LOST)

    oom_and_head = observed(make_ray_cluster(), losses=[OOM, HEAD_DELETED])
    assert (oom_and_head.is_lost, oom_and_head.cause) == (True, Cause.HOST_OUT_OF_MEMORY)


@pytest.mark.row("B17")
@pytest.mark.parametrize(
    ("keeps_state", "is_being_deleted", "losses", "may_return"),
    [
        (True, False, [HEAD_DELETED], True),
        (True, False, [WORKER_DELETED, HEAD_DELETED], True),
        (True, False, [OOM, HEAD_DELETED], False),
        (True, True, [HEAD_DELETED], False),
        (False, False, [HEAD_DELETED], False),
    ],
    ids=["alone", "with a worker", "short of memory", "with its cluster", "of an older release"],
)
def test_lost_head_may_return_when_gcs_state_is_persisted(
    keeps_state: bool, is_being_deleted: bool, losses: list[Loss], may_return: bool
) -> None:
    cluster = make_ray_cluster(going=is_being_deleted)
    if keeps_state:
        cluster["metadata"]["annotations"] = {names.ANNOTATION_HEAD_RETURNS: "true"}

    assert observed(cluster, losses=losses).may_return is may_return


def test_lost_worker_sets_cause_without_marking_cluster_lost() -> None:
    result = observed(make_ray_cluster(), losses=[WORKER_DELETED])
    assert (result.is_lost, result.cause) == (False, Cause.WORKER_LOST)


def test_terminating_cluster_is_lost() -> None:
    result = observed(make_ray_cluster(going=True))
    assert (result.is_lost, result.cause) == (True, Cause.HEAD_LOST)


def test_suspended_cluster_is_queued_regardless_of_pods() -> None:
    cluster = make_ray_cluster(head_ready=False, ready_workers=0)
    cluster["spec"]["suspend"] = True
    cluster["metadata"]["labels"][names.LABEL_QUEUE] = "research"

    result = observed(cluster, losses=[HEAD_DELETED], problem=IMAGE, problem_is_final=True)

    words = "RayCluster small-c1: waits in queue research"
    assert result == ClusterObserved(1, is_queued=True, message=words)


def test_terminating_queued_cluster_is_lost() -> None:
    cluster = make_ray_cluster(going=True)
    cluster["spec"]["suspend"] = True

    assert observed(cluster).is_lost


def test_start_problem_sets_start_failed_cause_when_final() -> None:
    waiting = observed(make_ray_cluster(ready_workers=0), problem=IMAGE)
    assert (waiting.cause, waiting.message) == (None, "reported: no image")

    final = observed(make_ray_cluster(ready_workers=0), problem=IMAGE, problem_is_final=True)
    assert final.cause is Cause.START_FAILED


def test_rejected_pod_creation_is_reported() -> None:
    refused = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreateWorkerPod",
        "message": "exceeded quota",
    }
    result = observed(make_ray_cluster(ready_workers=0, conditions=[refused]))
    assert result.message == "FailedCreateWorkerPod: exceeded quota"


def preflight(status: Manifest, **about: Any) -> Manifest:
    labels = {names.LABEL_SPEC_HASH: about.pop("spec_hash", "abc")}
    return make_pod(status, name="small-preflight", owner=JOB, labels=labels, **about)


def done(message: str, code: int = 0) -> Manifest:
    state = ended("Completed", code)
    state["terminated"]["message"] = message
    return container(state)


RESULT = PreflightResult(facts=KNOWN_TINY)
PREFLIGHTS: dict[str, tuple[Manifest, PreflightObserved | None]] = {
    "runs": (preflight({"phase": "Pending"}), PreflightObserved("abc")),
    "has its result": (
        preflight(done(RESULT.model_dump_json(by_alias=True))),
        PreflightObserved("abc", RESULT),
    ),
    "is being deleted": (preflight({"phase": "Pending"}, going=True), None),
}


@pytest.mark.parametrize("case", PREFLIGHTS)
def test_preflight_pod_status_is_converted_to_observation(case: str) -> None:
    pod, expected = PREFLIGHTS[case]
    assert observed_preflight([pod], None, False) == expected


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (done("Traceback: no module", 1), "exit code 1 (Completed) without a result: Traceback"),
        (
            done("Traceback\n  File x\nModuleNotFoundError: torch", 1),
            "without a result: ModuleNotFoundError: torch (after Traceback File x)",
        ),
        ({"phase": "Failed", "reason": "Evicted", "message": "low on memory"}, "Evicted: low on"),
    ],
    ids=["crashed", "traceback", "evicted"],
)
def test_preflight_without_result_is_observed_with_problem(status: Manifest, words: str) -> None:
    result = observed_preflight([preflight(status)], None, False)
    assert result is not None
    assert result.result is None
    assert words in result.problem


def test_pod_that_ran_out_of_memory_is_observed_with_its_limit() -> None:
    outcome = PushOutcome(reason=StagingReason.UNREACHABLE)
    status = done(outcome.model_dump_json(by_alias=True), 137)
    status["containerStatuses"][0]["state"]["terminated"]["reason"] = "OOMKilled"
    result = observed_push([preflight(status)], None, False)
    assert result is not None
    assert result.is_out_of_memory
    assert result.result is None
    assert result.problem == "pod small-preflight ran out of memory (OOMKilled, limit 2Gi)"


def test_preflight_start_failure_becomes_problem_when_final() -> None:
    pod = preflight({"phase": "Pending"})
    early, late = (observed_preflight([pod], IMAGE, final) for final in (False, True))
    assert early == PreflightObserved(
        "abc", waiting_for="reported: no image", waiting_reason=ConditionReason.IMAGE_PULL_FAILED
    )
    assert late == PreflightObserved("abc", problem="reported: no image", cannot_start=True)


def test_preflight_cannot_start_when_image_lacks_command() -> None:
    result = observed_preflight([preflight(container(ended("StartError", 128)))], None, False)

    assert result is not None
    assert result.cannot_start
    assert "StartError" in result.problem


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ('pods "x" is forbidden: exceeded quota: q, requested: cpu=2', "QuotaExceeded"),
        ('pods "x" is forbidden: failed quota: q: must specify limits.cpu', "QuotaExceeded"),
        ("admission webhook denied the request", "ReplicaFailure"),
    ],
)
def test_owner_that_cannot_create_pods_is_observed_with_reason(message: str, reason: str) -> None:
    failure = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"}
    status = {"conditions": [failure | {"message": message}]}
    metadata = {"name": "r", "namespace": "n", "labels": {names.LABEL_RETRIEVER: "kb"}}

    [retriever] = observed_retrievers(
        [{"metadata": metadata, "status": status}], [], lambda pod: (start_problem(pod), False)
    )

    assert (retriever.reason, retriever.problem) == (reason, f"FailedCreate: {message}")


def test_retriever_start_failure_has_cause_when_final() -> None:
    metadata = {"name": "r", "namespace": "n", "labels": {names.LABEL_RETRIEVER: "kb"}}
    owner = {"kind": "ReplicaSet", "name": "r-7f", "uid": "rs", "controller": True}
    pod = make_pod(
        {"phase": "Pending"}, name="r-7f-x", labels={"pod-template-hash": "7f"}, owner=owner
    )

    [retriever] = observed_retrievers([{"metadata": metadata}], [pod], lambda _: (IMAGE, True))

    assert retriever.cause is Cause.START_FAILED
    assert retriever.problem == IMAGE.message


def test_newest_preflight_pod_is_observed() -> None:
    old = preflight({"phase": "Pending"}, spec_hash="old", created="2026-11-21T11:00:00Z")
    result = observed_preflight([preflight({"phase": "Pending"}), old], None, False)
    assert result == PreflightObserved("abc")


def test_retrievers_are_observed_as_ready_starting_or_failed() -> None:
    def make_deployment(name: str, ready: int) -> Manifest:
        labels = {names.LABEL_RETRIEVER: name}
        metadata = {"name": f"small-r-{name}", "namespace": "research", "labels": labels}
        return {"metadata": metadata, "status": rolled_out(ready)}

    crashed = container(last=ended("Error", 3))
    crashed["containerStatuses"][0]["lastState"]["terminated"]["message"] = "no such corpus"
    of_bad = {"kind": "ReplicaSet", "name": "small-r-bad-7f", "uid": "rs", "controller": True}
    labels = {names.LABEL_RETRIEVER: "bad", "pod-template-hash": "7f"}
    pod = make_pod(crashed, name="small-r-bad-7f-x", labels=labels, owner=of_bad)
    foreign = make_pod(crashed, name="x", labels=labels | {names.LABEL_RETRIEVER: "new"}, owner={})

    good, bad, new = observed_retrievers(
        [make_deployment("good", 1), make_deployment("bad", 0), make_deployment("new", 0)],
        [foreign, pod],
        lambda pod: (start_problem(pod), False),
    )

    address = "http://small-r-good.research.svc:8000"
    assert good == ServiceObserved("good", address, is_ready=True)
    assert bad.cause is Cause.DATA_ERROR
    assert "no such corpus" in bad.problem
    address = "http://small-r-new.research.svc:8000"
    assert new == ServiceObserved("new", address, problem="starting (0 of 1 replicas available)")


AGENT_SPEC = AgentSpec.model_validate(
    {"type": "Container", "container": {"image": "app:1", "port": 8080}}
)


def make_agent_deployment(**metadata: Any) -> Manifest:
    labels = {names.LABEL_ROLE: "agent", names.LABEL_SPEC_HASH: "abc"}
    own = {"name": "small-agent", "namespace": "research", "labels": labels} | metadata
    return {
        "kind": "Deployment",
        "metadata": own,
        "spec": {"replicas": 1},
        "status": rolled_out(1),
    }


def rolled_out(replicas: int, generation: int = 0) -> Manifest:
    """Return the status of a Deployment with this number of current replicas."""
    counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), replicas)
    return {"observedGeneration": generation, **counts}


ROLLOUTS: dict[str, tuple[dict[str, int], bool]] = {
    "complete": ({}, True),
    "change not observed": ({"observedGeneration": 1}, False),
    "no current replica": ({"updatedReplicas": 0}, False),
    "one current replica": ({"updatedReplicas": 1}, False),
    "current replica not available": ({"availableReplicas": 1}, False),
    "old replica remains": ({"replicas": 3}, False),
}


@pytest.mark.parametrize("case", ROLLOUTS)
def test_service_is_ready_when_all_replicas_have_current_template(case: str) -> None:
    changes, is_ready = ROLLOUTS[case]
    deployment = make_agent_deployment(generation=2)
    deployment["spec"]["replicas"] = 2
    deployment["status"] = rolled_out(2, generation=2) | changes

    assert is_rolled_out(trim_object(deployment)) is is_ready


def test_container_of_agent_is_observed_apart_from_retrievers() -> None:
    deployments = [make_agent_deployment()]

    observed = observed_agent(deployments, AGENT_SPEC, [], lambda _: (None, False))

    address = "http://small-agent.research.svc:8080"
    assert observed == ServiceObserved("agent", address, is_ready=True, spec_hash="abc")
    assert observed_retrievers(deployments, [], lambda _: (None, False)) == ()


def test_container_of_agent_that_is_being_deleted_is_not_observed() -> None:
    going = make_agent_deployment(deletionTimestamp="2026-11-21T12:00:00Z")
    assert observed_agent([going], AGENT_SPEC, [], lambda _: (None, False)) is None


def make_agent_pod(status: Manifest, spec_hash: str = "abc") -> Manifest:
    owner = {"kind": "ReplicaSet", "name": "small-agent-7f", "uid": "rs", "controller": True}
    labels = {"pod-template-hash": "7f", names.LABEL_SPEC_HASH: spec_hash}
    pod = make_pod(status, name="small-agent-7f-x", labels=labels, owner=owner)
    return trim_object(pod | {"kind": "Pod"})


def observed_of(*pods: Manifest) -> ServiceObserved:
    deployment = trim_object(make_agent_deployment() | {"status": {}})
    check = lambda pod: (start_problem(pod), False)  # noqa: E731
    observed = observed_agent([deployment], AGENT_SPEC, list(pods), check)
    assert observed is not None
    return observed


def test_exit_code_of_agent_is_no_data_error() -> None:
    observed = observed_of(make_agent_pod(container(last=ended("Error", 3))))

    assert observed.cause is None
    assert "exited with exit code 3" in observed.problem


@pytest.mark.parametrize(
    ("waiting", "reason"),
    [
        ("ImagePullBackOff", ConditionReason.IMAGE_PULL_FAILED),
        ("CrashLoopBackOff", ConditionReason.CRASH_LOOP_BACK_OFF),
    ],
)
def test_problem_of_agent_pod_is_observed_with_reason(
    waiting: str, reason: ConditionReason
) -> None:
    last = ended("Error", 1) if waiting == "CrashLoopBackOff" else None
    status = container({"waiting": {"reason": waiting, "message": "app:1"}}, last=last)
    status["containerStatuses"][0]["restartCount"] = 2

    observed = observed_of(make_agent_pod(status))

    assert (observed.reason, observed.restarts) == (reason, 2)
    assert "pod small-agent-7f-x" in observed.problem


def test_problem_of_replaced_agent_pod_is_not_observed() -> None:
    old = make_agent_pod(container({"waiting": {"reason": "ImagePullBackOff"}}), spec_hash="old")

    observed = observed_of(old)

    assert observed.problem == "starting (0 of 1 replicas available)"


def test_restart_of_ready_pod_is_no_problem() -> None:
    status = container(last=ended("Error", 1))
    status["conditions"] = [{"type": "Ready", "status": "True"}]

    assert observed_of(make_agent_pod(status)).problem == "starting (0 of 1 replicas available)"


def status_after_attempt(cause: Cause | None) -> JobStatus:
    record = AttemptRecord(number=1, started=NOW - timedelta(minutes=2), cause=cause)
    return JobStatus(attempt=1, attempts=[record], cluster=ClusterStatus(name="small-c1", number=1))


@pytest.mark.parametrize(
    ("pod", "cause", "is_waited_for"),
    [
        (make_pod(kind="head"), Cause.HEAD_LOST, True),
        (make_pod(kind="head", going=True), Cause.PREEMPTED, True),
        (make_pod(going=True), Cause.PREEMPTED, False),
        (make_pod({"phase": "Failed"}, kind="head"), Cause.HEAD_LOST, False),
        (make_pod(kind="head", owner=CLUSTER | {"name": "small-c0"}), Cause.HEAD_LOST, False),
        (make_pod(kind="head", owner=CLUSTER | {"controller": False}), Cause.HEAD_LOST, False),
        (make_pod(kind="head", going=True), None, False),  # its attempt has to end first
    ],
    ids=[
        "running head",
        "terminating head",
        "worker",
        "exited head",
        "head of another cluster",
        "foreign pod",
        "attempt without cause",
    ],
)
def test_orphaned_head_is_observed_as_lost_cluster(
    pod: Manifest, cause: Cause | None, is_waited_for: bool
) -> None:
    job = make_job().model_copy(update={"status": status_after_attempt(cause)})
    in_grace = datetime(2026, 11, 21, 12, 0, 29, tzinfo=UTC)

    result = cluster_with_orphaned_head(job, [pod], in_grace)

    assert (result is not None and result.is_lost) == is_waited_for


@pytest.mark.parametrize(
    ("pod", "may"),
    [
        (make_pod(kind="head", going=True), True),
        (make_pod(kind="head"), False),
        (make_pod(going=True), False),
        (make_pod({"phase": "Pending"}, kind="head", going=True), False),
    ],
    ids=["terminating head", "running head", "worker", "pending head"],
)
def test_driver_may_save_while_head_terminates(pod: Manifest, may: bool) -> None:
    assert may_head_save([pod], datetime(2026, 11, 21, 12, 0, 29, tzinfo=UTC)) is may
    assert not may_head_save([pod], NOW)


@pytest.mark.parametrize(("hours", "may"), [(0, True), (1, False), (24, False)])
def test_backward_clock_jump_does_not_extend_wait_for_head(hours: int, may: bool) -> None:
    now = datetime(2026, 11, 21, 12, 0, tzinfo=UTC) - timedelta(hours=hours)

    assert may_head_save([make_pod(kind="head", going=True)], now) is may


def test_operator_does_not_wait_for_head_beyond_grace_period() -> None:
    job = make_job().model_copy(update={"status": status_after_attempt(Cause.NODE_LOST)})

    assert cluster_with_orphaned_head(job, [make_pod(kind="head", going=True)], NOW) is None


def test_retriever_service_name_equals_deployment_name() -> None:
    labels = {names.LABEL_RETRIEVER: "kb"}
    serving = {"metadata": {"name": "small-r-kb", "labels": labels}}
    going = {"metadata": {"name": "old", "labels": labels, "deletionTimestamp": "2026-11-21"}}

    assert service_names([serving, going]) == {"kb": "small-r-kb"}


def running(image_id: str, kind: str = "worker", name: str = "w") -> Manifest:
    status = container()
    status["containerStatuses"][0]["imageID"] = image_id
    return make_pod(status, kind=kind, name=name)


def test_cluster_images_are_unique_with_head_first() -> None:
    one, two = (f"sha256:{digit * 64}" for digit in "12")
    pods = [
        running(two, name="a"),
        running(f"docker://{one}", "head", "b"),
        running(one),
        make_pod(),
    ]

    assert image_ids(pods) == (one, two)


def test_sidecar_images_are_ignored() -> None:
    pod = running(f"sha256:{'1' * 64}")
    pod["status"] = with_proxy_sidecar(pod["status"])

    assert image_ids([pod]) == (f"sha256:{'1' * 64}",)
