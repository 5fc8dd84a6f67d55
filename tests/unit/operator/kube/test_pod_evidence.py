from datetime import UTC, datetime, timedelta

import pytest

from raggrpo_api.status.cause import Cause
from raggrpo_operator.kube.cluster_objects import JobKey
from raggrpo_operator.kube.pod_evidence import loss, start_problem
from raggrpo_operator.kubernetes_runtime.watching.evidence_store import (
    MAX_CLUSTERS,
    MAX_LOSSES,
    EvidenceStore,
)
from support.builders.operator.pods import (
    CLUSTER,
    CLUSTER_UID,
    Manifest,
    container,
    ended,
    make_pod,
    with_proxy_sidecar,
)

NOW = datetime(2026, 11, 21, 12, 2, tzinfo=UTC)
KEY = JobKey("default", "small")
LONG_AGO = NOW - timedelta(days=1)


def disrupted(reason: str) -> Manifest:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": reason,
        "message": "because",
        "lastTransitionTime": "2026-11-21T12:00:40Z",
    }
    return {"phase": "Running", "conditions": [condition]}


GCS = "Ray subprocesses exited:\n gcs_server [exit code=1]\n"
EVICTED = {"phase": "Failed", "reason": "Evicted"}
LOSSES: dict[str, tuple[Manifest, bool, Cause | None, str]] = {
    "runs": (make_pod(), False, None, ""),
    "out of memory": (make_pod(container(ended("OOMKilled", 137))), False, Cause.HOST_OUT_OF_MEMORY,
        "OOMKilled, limit 2Gi"),
    "out of memory, restarted in place": (make_pod(container(last=ended("OOMKilled", 137))), False,
        Cause.HOST_OUT_OF_MEMORY, "OOMKilled"),
    "out of memory, then deleted": (make_pod(container(ended("OOMKilled", 137)), going=True), True,
        Cause.HOST_OUT_OF_MEMORY, "OOMKilled"),
    "node short of memory": (
        make_pod(EVICTED | {"message": "The node was low on resource: memory."}),
        False, Cause.HOST_OUT_OF_MEMORY, "low on resource: memory"),
    "node short of disk": (
        make_pod(EVICTED | {"message": "The node was low on resource: ephemeral-storage."}), False,
        Cause.NODE_LOST, "ephemeral-storage"),
    "preempted": (make_pod(disrupted("PreemptionByScheduler")), False, Cause.PREEMPTED, "because"),
    "drained": (make_pod(disrupted("EvictionByEvictionAPI")), True, Cause.PREEMPTED, "because"),
    "node tainted": (make_pod(disrupted("DeletionByTaintManager")), False, Cause.NODE_LOST,
        "because"),
    "node gone": (make_pod(disrupted("DeletionByPodGC")), False, Cause.NODE_LOST, "because"),
    "node shut down": (make_pod(disrupted("TerminationByKubelet")), False, Cause.NODE_LOST,
        "because"),
    "worker exited": (make_pod(container(ended(code=1))), False, Cause.WORKER_LOST,
        "trainer pod small-c1-worker-0: exited with code 1 (Error)"),
    "head exited, end of its log": (make_pod(container(ended(message="up\n" * 900 + GCS)),
        kind="head"),
        False, Cause.HEAD_LOST, "up Ray subprocesses exited: gcs_server [exit code=1]"),
    "out of memory with a proxy sidecar": (make_pod(with_proxy_sidecar(container(ended("OOMKilled",
        137)))),
        False, Cause.HOST_OUT_OF_MEMORY, "OOMKilled"),
    "proxy sidecar exited": (make_pod(with_proxy_sidecar(container())), False, None, ""),
    "head restarted in place": (make_pod(container(last=ended(code=139)), kind="head"), False,
        Cause.HEAD_LOST, "exited with code 139"),
    "worker deleted": (make_pod(), True, Cause.WORKER_LOST, "was deleted"),
    "worker being deleted, container exited": (make_pod(container(ended(code=143)), going=True),
        False, Cause.WORKER_LOST, "was deleted"),
    "head deleted": (make_pod(kind="head"), True, Cause.HEAD_LOST, "was deleted"),
    "failed without a container": (
        make_pod({"phase": "Failed", "reason": "NodeAffinity", "message": "no"}), False,
        Cause.WORKER_LOST, "NodeAffinity"),
}  # fmt: skip


@pytest.mark.row("B17")
@pytest.mark.parametrize("case", LOSSES)
def test_pod_loss_has_cause_and_message(case: str) -> None:
    pod, was_deleted, cause, text = LOSSES[case]
    evidence = loss(pod, NOW, was_deleted=was_deleted)
    assert (evidence.cause if evidence else None) == cause
    assert text in (evidence.message if evidence else "")


ATTRIBUTED_TO_NODE = {
    "node short of disk",
    "node tainted",
    "node gone",
    "node shut down",
    "worker exited",
    "head exited, end of its log",
    "head restarted in place",
    "failed without a container",
}


@pytest.mark.row("B24")
@pytest.mark.parametrize("case", LOSSES)
def test_pod_loss_is_attributed_to_node_only_for_node_failures(case: str) -> None:
    pod, was_deleted, _, _ = LOSSES[case]
    pod["spec"]["nodeName"] = "gpu-7"
    evidence = loss(pod, NOW, was_deleted=was_deleted)
    assert (evidence.node if evidence else "") == ("gpu-7" if case in ATTRIBUTED_TO_NODE else "")


def waiting(reason: str, message: str = "the status message") -> Manifest:
    return container({"waiting": {"reason": reason, "message": message}})


def unscheduled(message: str) -> Manifest:
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": message,
    }
    return {"phase": "Pending", "conditions": [condition]}


STARTS: dict[str, tuple[Manifest, bool | None]] = {
    "runs": (container(), None),
    "is being created": (waiting("ContainerCreating"), None),
    "image": (waiting("ImagePullBackOff"), True),
    "wrong image name": (waiting("InvalidImageName"), True),
    "missing secret": (waiting("CreateContainerConfigError"), True),
    "crashes": (waiting("CrashLoopBackOff"), True),
    "no node": (unscheduled("the status message: 0/1 nodes: Insufficient nvidia.com/gpu"), False),
    "no claim": (unscheduled("the status message: claim not found"), False),
}


@pytest.mark.parametrize("case", STARTS)
def test_start_problem_contains_pod_status_message(case: str) -> None:
    status, is_final = STARTS[case]
    problem = start_problem(make_pod(status))
    assert (problem.is_final if problem else None) == is_final
    assert problem is None or "the status message" in problem.message


def make_book() -> EvidenceStore:
    return EvidenceStore(timedelta(seconds=120))


def test_first_loss_evidence_is_retained_after_pod_deletion() -> None:
    book = make_book()
    book.record(KEY, make_pod(container(ended("OOMKilled", 137))), NOW, was_deleted=False)
    book.record(KEY, make_pod(), NOW, was_deleted=True)
    [evidence] = book.losses(KEY, CLUSTER_UID, LONG_AGO)
    assert evidence.cause is Cause.HOST_OUT_OF_MEMORY


def test_most_severe_pod_loss_comes_first() -> None:
    book = make_book()
    book.record(KEY, make_pod(name="w0"), NOW, was_deleted=True)
    book.record(
        KEY, make_pod(container(ended("OOMKilled", 137)), name="w1"), NOW, was_deleted=False
    )
    assert [each.pod for each in book.losses(KEY, CLUSTER_UID, LONG_AGO)] == ["w1", "w0"]


def test_pod_losses_before_attempt_are_ignored() -> None:
    book, since = make_book(), datetime(2026, 11, 21, 12, 1, 30, tzinfo=UTC)
    book.record(KEY, make_pod(container(last=ended("OOMKilled", 137))), NOW, was_deleted=False)
    assert book.losses(KEY, CLUSTER_UID, since) == []

    again = container(last=ended("OOMKilled", 137, at="2026-11-21T12:01:40Z"))
    book.record(KEY, make_pod(again), NOW, was_deleted=False)
    assert len(book.losses(KEY, CLUSTER_UID, since)) == 1


def test_pod_not_controlled_by_cluster_is_not_recorded_as_loss() -> None:
    book = make_book()
    for owner in ({}, CLUSTER | {"uid": "another"}, CLUSTER | {"controller": False}):
        book.record(KEY, make_pod(owner=owner), NOW, was_deleted=True)
    assert book.losses(KEY, CLUSTER_UID, LONG_AGO) == []


def test_pod_losses_are_kept_per_cluster_and_job() -> None:
    book = make_book()
    book.record(KEY, make_pod(), NOW, was_deleted=True)
    assert book.losses(KEY, "another uid", LONG_AGO) == []
    assert book.losses(JobKey("default", "other"), CLUSTER_UID, LONG_AGO) == []

    book.remove(KEY)
    assert book.losses(KEY, CLUSTER_UID, LONG_AGO) == []


def test_losses_are_bounded_when_pods_name_many_clusters() -> None:
    book, uids = make_book(), [f"cluster-{index}" for index in range(1_000)]
    for uid in uids:
        book.record(KEY, make_pod(owner=CLUSTER | {"uid": uid}), NOW, was_deleted=True)

    recorded = [uid for uid in uids if book.losses(KEY, uid, LONG_AGO)]
    assert recorded == uids[-MAX_CLUSTERS:]


def test_losses_of_one_cluster_are_bounded() -> None:
    book, uids = make_book(), [f"pod-{index}" for index in range(MAX_LOSSES + 100)]
    for uid in uids:
        book.record(KEY, make_pod(name=uid), NOW, was_deleted=True)

    recorded = [each.pod for each in book.losses(KEY, CLUSTER_UID, LONG_AGO)]
    assert recorded == uids[-MAX_LOSSES:]


def test_evidence_is_dropped_without_its_cluster_or_pod() -> None:
    book, failing = make_book(), [make_pod(waiting("ImagePullBackOff"))]
    book.record(KEY, make_pod(), NOW, was_deleted=True)
    book.start_problem(KEY, failing, NOW)

    book.retain(KEY, {CLUSTER_UID}, {failing[0]["metadata"]["uid"]})
    assert book.losses(KEY, CLUSTER_UID, LONG_AGO)
    assert book.start_problem(KEY, failing, NOW + timedelta(seconds=121))[1]

    book.retain(KEY, {"another uid"}, set())
    assert not book.losses(KEY, CLUSTER_UID, LONG_AGO)
    assert not book.start_problem(KEY, failing, NOW + timedelta(seconds=130))[1]


def test_start_failure_is_final_after_grace_period() -> None:
    book, pods = make_book(), [make_pod(waiting("CreateContainerConfigError"))]
    early, is_final_early = book.start_problem(KEY, pods, NOW)
    _, is_final_late = book.start_problem(KEY, pods, NOW + timedelta(seconds=121))

    assert early is not None
    assert not is_final_early
    assert is_final_late


def test_start_failure_grace_period_restarts_after_recovery() -> None:
    book, failing = make_book(), [make_pod(waiting("ImagePullBackOff"))]
    book.start_problem(KEY, failing, NOW)
    assert book.start_problem(KEY, [make_pod()], NOW + timedelta(seconds=60)) == (None, False)
    _, is_final = book.start_problem(KEY, failing, NOW + timedelta(seconds=130))
    assert not is_final


def test_unschedulable_pod_is_never_final_start_failure() -> None:
    book, pods = make_book(), [make_pod(unscheduled("no node"))]
    for seconds in (0, 10_000):
        problem, is_final = book.start_problem(KEY, pods, NOW + timedelta(seconds=seconds))
        assert problem is not None
        assert not is_final


def test_start_problems_of_gpu_pods_come_first() -> None:
    status = unscheduled("no node")
    roles = ("head", "rollout", "proxy", "trainer")
    pods = [make_pod(status, role=role, name=role) for role in roles]

    def reported_pod() -> str:
        problem, _ = make_book().start_problem(KEY, pods, NOW)
        assert problem is not None
        return problem.pod

    assert reported_pod() == "trainer"
    pods.pop()
    assert reported_pod() == "rollout"
    del pods[1]
    assert reported_pod() == "head"


@pytest.mark.parametrize(
    "time", [None, "", "yesterday", "9999-99-99T00:00:00Z", "2026-11-21T12:00"]
)
@pytest.mark.parametrize("reason", ["OOMKilled", "Error"])
def test_pod_loss_with_invalid_timestamp_uses_current_time(time: str | None, reason: str) -> None:
    evidence = loss(make_pod(container(ended(reason, at=time))), NOW)
    disruption = disrupted("DeletionByPodGC")
    disruption["conditions"][0]["lastTransitionTime"] = time
    other = loss(make_pod(disruption), NOW)

    assert evidence is not None
    assert other is not None
    assert (evidence.time, other.time) == (NOW, NOW)


@pytest.mark.parametrize(
    "status",
    [
        {"containerStatuses": None, "conditions": None},
        {"containerStatuses": [{"state": None, "lastState": None}]},
        {"containerStatuses": [{"state": {"waiting": None, "terminated": None}}]},
        {"phase": "Running", "reason": None, "message": None},
    ],
)
def test_null_pod_sections_are_treated_as_empty(status: Manifest) -> None:
    assert loss(make_pod(status), NOW) is None
    assert start_problem(make_pod(status)) is None


def test_pod_loss_messages_are_one_short_printable_line() -> None:
    text = "\x1b[2Jno\r\n\x00such\u202e image " + 5000 * "x"
    problem = start_problem(make_pod(waiting("ErrImagePull", text)))
    lost = loss(make_pod({"phase": "Failed", "reason": "Evicted", "message": text}), NOW)

    for message in (problem and problem.message, lost and lost.message):
        assert message is not None
        assert message.isprintable()
        assert len(message) < 700
