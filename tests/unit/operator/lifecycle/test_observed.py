"""Observed state: derived properties and defaults."""

import pytest

from raggrpo_operator.core.lifecycle.observed import (
    AttemptObserved,
    ClusterObserved,
    Observed,
    ServiceObserved,
    SubmissionStatus,
)


@pytest.mark.parametrize("status", SubmissionStatus)
def test_submission_status_is_terminal_unless_pending_or_running(status: SubmissionStatus) -> None:
    assert status.is_terminal is (status not in ("PENDING", "RUNNING"))


@pytest.mark.parametrize(
    ("cluster", "is_queued"),
    [
        (None, False),
        (ClusterObserved(1), False),
        (ClusterObserved(1, is_queued=True), True),
    ],
)
def test_observed_is_queued_when_cluster_is_queued(
    cluster: ClusterObserved | None, is_queued: bool
) -> None:
    assert Observed(cluster=cluster).is_queued is is_queued


def test_observed_flags_default_to_false() -> None:
    cluster, retriever = ClusterObserved(1), ServiceObserved("kb", "http://kb")
    attempt = AttemptObserved(1, SubmissionStatus.FAILED)
    claims = [cluster.is_ready, cluster.is_lost, cluster.may_save, cluster.is_queued]
    claims += [retriever.is_ready, retriever.has_ended, attempt.is_out_of_memory]
    assert not any(claims)


def test_observed_defaults_to_pods_with_reachable_head_and_no_delay() -> None:
    observed = Observed()
    assert (observed.delay_seconds, observed.evidence_seconds) == (0.0, 0.0)
    assert observed.in_pods
    assert observed.is_head_reachable
