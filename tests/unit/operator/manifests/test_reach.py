"""The servers and Secrets that a job's objects can reach are those that `jobPolicy` allows."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import model_in
from raggrpo_api.fields.reach import SecretName, Server
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_operator.core.spec.marked_fields import marked_places, marker_in
from raggrpo_operator.core.spec.parse import parse_job
from support.builders.operator.jobs import KNOWN_TINY, make_job, make_raw_job
from support.builders.operator.manifests import (
    Manifest,
    all_manifests,
    make_clustered_job,
    objects_of,
)
from support.kubernetes.job_policy import (
    BUCKETS,
    HOSTS,
    SECRETS,
    SOURCES,
    VARIABLE_PLACES,
    JobPolicy,
    admitted_peers,
    changes,
    reached_secrets,
    reached_servers,
)

SERVERS = (*HOSTS, *BUCKETS[:3], *SOURCES)
MAX_EGRESS = 8
"""Maximum servers of an agent's container."""
INTERNAL = ("http://kb.team-b.svc:8000", "http://judge:8000", "http://192.0.2.77:3128")


def prefixes(servers: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    prefixes = [f"{each}/{path}" for each in servers for path in ("", "v1/")]
    listed = st.lists(st.sampled_from(prefixes), min_size=1, max_size=MAX_EGRESS, unique=True)
    return listed.map(tuple)


POLICIES = st.builds(
    JobPolicy,
    st.one_of(prefixes(SERVERS), prefixes(INTERNAL)),
    st.lists(st.sampled_from(SECRETS), min_size=1, max_size=3).map(tuple),
)
SERVER_WORDS = re.compile(r"\b(url|uri|host|address|server|proxy|egress|webhook)\b|\bURLs?\b|://")
SECRET_WORDS = re.compile(r"\bsecrets?\b|\bName of the Secret|\bSecrets\b")


@cache
def admitted_by(policy: JobPolicy) -> dict[str, set[str]]:
    """Return the peers of a job, and of its agent, that name each server of the policy."""
    urls = [each for each in policy.endpoints if each.startswith("http")]
    has_others = len(urls) < len(policy.endpoints)
    container = {"image": "app:1", "egress": urls}
    job = make_job(
        {
            "egress": urls,
            "checkpoint.backup": {"url": "s3://bucket" if has_others else ""},
            "rollout.agent": {"type": "Container", "identify": "Trace", "container": container},
        }
    )
    return peers_of(all_manifests(make_clustered_job(job, KNOWN_TINY)))


def peers_of(manifests: Mapping[str, Manifest]) -> dict[str, set[str]]:
    """Return the peers that each NetworkPolicy admits, by its purpose."""
    purposes = [name for name, each in manifests.items() if each["kind"] == "NetworkPolicy"]
    return {name: admitted_peers(manifests[name]) for name in purposes}


def parsed(changed: Mapping[str, Any]) -> RagGrpoJob | None:
    job = parse_job(make_raw_job({f"spec.{place}": value for place, value in changed.items()}))
    return job if isinstance(job, RagGrpoJob) else None


def unlisted_reach(admitted: RagGrpoJob, policy: JobPolicy) -> list[str]:
    """Return the Secrets, servers and peers that a job reaches and the policy does not list."""
    job = make_clustered_job(admitted, KNOWN_TINY)
    named = objects_of(job)
    objects = list(named.values())
    servers = {"/".join(prefix.split("/")[:3]) for prefix in policy.endpoints}
    peers = admitted_by(policy)
    return [
        *(reached_secrets(objects) - set(policy.secrets)),
        *(reached_servers(objects, job.metadata.namespace) - {"file://"} - servers),
        *(peer for name, reached in peers_of(named).items() for peer in reached - peers[name]),
    ]


@pytest.mark.row("E9")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes(), POLICIES)
def test_objects_of_job_reach_only_servers_and_secrets_that_policy_allows(
    changed: dict[str, Any], policy: JobPolicy
) -> None:
    job = parsed(changed)
    if job is not None and not policy.refuses(job):
        assert unlisted_reach(job, policy) == []


SECRETS_POLICY = JobPolicy(tuple(f"{host}/" for host in HOSTS[:MAX_EGRESS]), ("wandb",))
SERVERS_POLICY = JobPolicy(("http://judge:8000/",), SECRETS)
CHECKS = {
    **dict.fromkeys((place for place, _ in marked_places(JobSpec, SecretName)), SECRETS_POLICY),
    **dict.fromkeys((place for place, _ in marked_places(JobSpec, Server)), SERVERS_POLICY),
    **dict.fromkeys(VARIABLE_PLACES, SERVERS_POLICY),
}
"""Policy that rejects some of the drawn values, by the place that it checks."""
DRAWING = settings(
    max_examples=3000, phases=[Phase.generate], database=None, derandomize=True, deadline=None
)


@pytest.mark.parametrize("place", CHECKS)
def test_property_fails_if_policy_does_not_check_a_field(place: str) -> None:
    policy = CHECKS[place]
    incomplete = replace(policy, unchecked=place)

    def has_unlisted_reach(changed: dict[str, Any]) -> bool:
        is_drawn = any(place.startswith(f"spec.{name}") for name in changed)
        job = parsed(changed) if is_drawn else None
        if job is None or not policy.refuses(job) or incomplete.refuses(job):
            return False
        return unlisted_reach(job, incomplete) != []

    find(changes(), has_unlisted_reach, settings=DRAWING)


NO_SECRET = {
    "spec.caBundle.configMap": "the alternative to a Secret",
    "spec.env[].value": "a literal value",
    "spec.rollout.agent.container.env[].value": "a literal value",
}
NO_SERVER = {
    "spec.retrieval.endpoints[].name": "mentions --endpoint NAME=URL",
    "spec.reward.functions[].judge.model": "a name on the judge's server",
}
"""Fields whose name or description mentions servers, but whose value does not name one."""


def text_fields(model: type[ApiModel], prefix: str = "spec") -> list[tuple[str, FieldInfo]]:
    """Return (place, field) of every field below a model that contains texts."""
    fields = []
    for field in model.model_fields.values():
        is_list = "list[" in str(field.annotation)
        place = f"{prefix}.{field.alias}{'[]' if is_list else ''}"
        if nested := model_in(field.annotation):
            fields += text_fields(nested, place)
        elif re.search(r"\bstr\b|<class 'str'>", str(field.annotation)):
            fields.append((place, field))
    return fields


def unmarked(kind: type, words: re.Pattern[str], model: type[ApiModel] = JobSpec) -> set[str]:
    """Return the fields whose name or description has one of the words, but that have no marker."""
    return {
        place
        for place, field in text_fields(model)
        if words.search(f"{words_of(place)} {field.description}")
        and marker_in(field.annotation, field.metadata, kind) is None
    }


def words_of(place: str) -> str:
    """Return the words of a field's name: `tracker url` for `spec.trackerUrl`."""
    name = place.rpartition(".")[2].removesuffix("[]")
    return re.sub("([A-Z])", r" \1", name).lower()


def test_fields_that_name_servers_are_marked() -> None:
    assert unmarked(Server, SERVER_WORDS) == NO_SERVER.keys()


def test_fields_that_name_secrets_are_marked() -> None:
    assert unmarked(SecretName, SECRET_WORDS) == NO_SECRET.keys()


def test_new_field_without_marker_is_found() -> None:
    class Extended(ApiModel):
        tracker_url: str = ""
        proxy: list[str] = []
        key_secret: str | None = None
        other: str = ""
        """Server such as http://host."""

    expected = {"spec.trackerUrl", "spec.proxy[]", "spec.other"}
    assert unmarked(Server, SERVER_WORDS, Extended) == expected
    assert unmarked(SecretName, SECRET_WORDS, Extended) == {"spec.keySecret"}
