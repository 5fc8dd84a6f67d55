"""Failure counts of nodes and their decay."""

from datetime import datetime, timedelta

import pytest

from raggrpo_api.spec.recovery import RecoverySpec
from raggrpo_api.status.cause import Cause
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.status.restart_state import Remedies, RestartState
from raggrpo_api.trainer.progress import CheckpointRef
from raggrpo_operator.core.lifecycle.after_attempt.node_exclusion import (
    avoided_nodes,
    with_decayed_counts,
    with_node_failure,
)
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from support.fakes.fake_runtime import T0

DAY = timedelta(days=1)
SECOND = timedelta(seconds=1)
LOST = ClusterObserved(1, cause=Cause.NODE_LOST, node="gpu-7")


def make_status(remedies: Remedies, saved: int | None = None) -> JobStatus:
    checkpoint = None if saved is None else CheckpointRef(step=saved, path=f"/{saved}")
    return JobStatus(checkpoint=checkpoint, restart_state=RestartState(remedies=remedies))


def failed_at(step: int = 0) -> Remedies:
    counts = {"a": 1, "b": 2, "c": 5}
    return Remedies(failures_by_node=counts, node_failed_at=T0, node_failed_step=step)


ALL, LESS_ONE, LESS_TWO = {"a": 1, "b": 2, "c": 5}, {"b": 1, "c": 4}, {"c": 3}


@pytest.mark.parametrize(
    ("now", "counts"),
    [
        (T0 - 3 * DAY, ALL),
        (T0 + DAY - SECOND, ALL),
        (T0 + DAY, LESS_ONE),
        (T0 + 2 * DAY - SECOND, LESS_ONE),
        (T0 + 2 * DAY, LESS_TWO),
    ],
)
def test_node_failure_count_decreases_by_one_per_day(now: datetime, counts: dict[str, int]) -> None:
    assert with_decayed_counts(make_status(failed_at()), 5, now).failures_by_node == counts


@pytest.mark.parametrize(
    ("saved", "every", "counts"),
    [
        (None, 5, ALL),
        (59, 5, ALL),
        (10 + 49, 5, ALL),
        (10 + 50, 5, LESS_ONE),
        (10 + 99, 5, LESS_ONE),
        (10 + 100, 5, LESS_TWO),
        (10 + 10, 1, LESS_ONE),
        (10 + 1000, 0, ALL),
        (5, 5, ALL),
    ],
)
def test_node_failure_count_decreases_by_one_per_ten_checkpoints(
    saved: int | None, every: int, counts: dict[str, int]
) -> None:
    assert (
        with_decayed_counts(make_status(failed_at(step=10), saved), every, T0).failures_by_node
        == counts
    )


def test_node_failure_counts_do_not_decay_without_failure_time() -> None:
    never = Remedies(failures_by_node={"a": 1})
    assert with_decayed_counts(make_status(never, 1000), 5, T0) == never


@pytest.mark.parametrize(
    ("limit", "nodes"), [(0, ()), (1, ("a", "b", "c")), (2, ("b", "c")), (3, ("c",)), (6, ())]
)
def test_nodes_are_avoided_at_failure_limit(limit: int, nodes: tuple[str, ...]) -> None:
    recovery = RecoverySpec(exclude_node_after_failures=limit)
    assert avoided_nodes(failed_at(), recovery) == nodes


def test_node_failure_is_counted_with_time_and_checkpoint() -> None:
    remedies = with_node_failure(make_status(failed_at(), 3), LOST, Cause.NODE_LOST, 5, T0 + DAY)

    assert list(remedies.failures_by_node.items()) == [("b", 1), ("c", 4), ("gpu-7", 1)]
    assert (remedies.node_failed_at, remedies.node_failed_step) == (T0 + DAY, 3)
    assert with_node_failure(make_status(remedies), LOST, Cause.NODE_LOST, 5, T0 + DAY) == Remedies(
        failures_by_node={"b": 1, "c": 4, "gpu-7": 2}, node_failed_at=T0 + DAY
    )


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param(None, id="no cluster"),
        pytest.param(ClusterObserved(1, cause=Cause.NODE_LOST), id="no node"),
        pytest.param(ClusterObserved(1, node="gpu-7"), id="no cause"),
        pytest.param(ClusterObserved(1, cause=Cause.HEAD_LOST, node="gpu-7"), id="another cause"),
    ],
)
def test_failure_without_node_does_not_change_node_failure_counts(
    cluster: ClusterObserved | None,
) -> None:
    status = make_status(failed_at())
    assert with_node_failure(status, cluster, Cause.NODE_LOST, 5, T0 + DAY) == failed_at()


def test_least_recently_failed_node_is_dropped_beyond_limit() -> None:
    many = Remedies(failures_by_node={f"n{i}": 1 for i in range(64)}, node_failed_at=T0)

    again = ClusterObserved(1, cause=Cause.NODE_LOST, node="n0")
    kept = with_node_failure(make_status(many), again, Cause.NODE_LOST, 5, T0)
    remedies = with_node_failure(make_status(kept), LOST, Cause.NODE_LOST, 5, T0)

    assert [*remedies.failures_by_node] == [*(f"n{i}" for i in range(2, 64)), "n0", "gpu-7"]
