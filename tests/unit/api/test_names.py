"""Names of a job's objects are valid with KubeRay's suffixes, and unique."""

import re
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raggrpo_api import names

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
KUBERAY = (
    "-head-svc",
    "-headless",
    "-head-x7k2p",
    "-trainer-worker-x7k2p",
    "-rollout-worker-x7k2p",
)
KUBERAY_CUTS_AT = 50
"""Length to which KubeRay truncates a pod's name before `-worker-`."""
REPLICA_SET = "-5d8f9c7b6d-x7k2p"

JOBS = st.from_regex(r"[a-z]([-a-z0-9]{0,42}[a-z0-9])?", fullmatch=True)
ENDPOINTS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,42}[a-z0-9])?", fullmatch=True)
UIDS = st.uuids().map(str)


def all_names(job: str, uid: str, endpoints: list[str]) -> list[str]:
    all_of_job = [names.cluster_name(job, uid, number) for number in (1, 2, 11, 999_999)]
    all_of_job += [names.config_map_name(job, uid, number) for number in (1, 2, 11, 999_999)]
    all_of_job += [names.retriever_name(job, uid, endpoint) for endpoint in endpoints]
    return [*all_of_job, names.preflight_name(job, uid), names.network_policy_name(job, uid)]


@pytest.mark.row("E2")
@settings(max_examples=300)
@given(job=JOBS, uid=UIDS, endpoint=ENDPOINTS)
def test_child_names_are_valid_with_kuberay_suffixes(job: str, uid: str, endpoint: str) -> None:
    for name in all_names(job, uid, [endpoint]):
        assert DNS_1035.fullmatch(name)
        assert len(name) <= names.MAX_CHILD_NAME
        assert len(name + REPLICA_SET) <= 63
    cluster = names.cluster_name(job, uid, 999_999)
    assert all(len(cluster + appended) <= 63 for appended in KUBERAY)
    assert len(f"{cluster}-rollout") <= KUBERAY_CUTS_AT
    assert len(names.token_secret_name(job, "0" * 16)) <= 253


@pytest.mark.row("E2")
@settings(max_examples=100)
@given(st.lists(st.tuples(JOBS, UIDS), min_size=2, max_size=8, unique_by=lambda job: job[1]))
def test_child_names_of_different_jobs_do_not_collide(jobs: list[tuple[str, str]]) -> None:
    endpoints = ["c", "b-r-c", "e" * 44, "e" * 43]
    of_jobs = [set(all_names(job, uid, endpoints)) for job, uid in jobs]
    derived = {name + end for job_names in of_jobs for name in job_names for end in KUBERAY}

    for one, other in combinations(of_jobs, 2):
        assert not one & other
    assert not derived & set().union(*of_jobs)
    assert len(of_jobs[0]) == len(all_names(*jobs[0], endpoints))


def test_child_names_differ_when_joined_parts_are_equal() -> None:
    assert names.retriever_name("a", "u1", "b-r-c") != names.retriever_name("a-r-b", "u2", "c")
    assert names.cluster_name("a", "u1", 1) != names.cluster_name("a", "u2", 1)
    assert names.cluster_name("a-c1", "u1", 1) != names.cluster_name("a", "u2", 1)
    long = "e" * 43
    one, other = (names.retriever_name("a", "u", long + end) for end in "12")
    assert one != other


def test_child_names_are_readable_and_stable() -> None:
    job, uid = "sales-rag", "0b7d3f4e-6a51-4c1c-9d2f-1d2e3f4a5b6c"
    job_names = all_names(job, uid, ["corpus"])

    assert job_names[0] == "sales-rag-c1-2eb10664"
    shown = ["c1", "c2", "c11", "c999999", "a1", "a2", "a11", "a999999"]
    shown += ["r-corpus", "preflight", "network"]
    assert [name[:-9] for name in job_names] == [f"sales-rag-{part}" for part in shown]
