"""The servers and Secrets that a job's objects can reach are those that `jobPolicy` allows."""

import re
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic.fields import FieldInfo

from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import model_in
from raggrpo_api.fields.reach import SecretName, Server
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_operator.core.spec.marked_fields import marker_in
from raggrpo_operator.core.spec.parse import parse_job
from support.builders.operator.jobs import KNOWN_TINY, make_job, make_raw_job
from support.builders.operator.manifests import all_manifests, make_clustered_job
from support.kubernetes.job_policy import (
    BUCKETS,
    HOSTS,
    SECRETS,
    JobPolicy,
    admitted_peers,
    changes,
    reached_secrets,
    reached_servers,
)

SERVERS = (*HOSTS, *BUCKETS[:3])
INTERNAL = ("http://kb.team-b.svc:8000", "http://judge:8000", "http://192.0.2.77:3128")


def prefixes(servers: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    prefixes = [f"{each}/{path}" for each in servers for path in ("", "v1/")]
    return st.lists(st.sampled_from(prefixes), min_size=1, max_size=12).map(tuple)


POLICIES = st.builds(
    JobPolicy,
    st.one_of(prefixes(SERVERS), prefixes(INTERNAL)),
    st.lists(st.sampled_from(SECRETS), min_size=1, max_size=3).map(tuple),
)
SERVER_WORDS = re.compile(r"\b(url|uri|host|address|server|proxy|egress|webhook)\b|\bURLs?\b|://")
SECRET_WORDS = re.compile(r"\bsecrets?\b|\bName of the Secret|\bSecrets\b")


def admitted_by(policy: JobPolicy) -> set[str]:
    """Return the peers of a job that names each server of the policy."""
    urls = [each for each in policy.endpoints if each.startswith("http")]
    bucket = next((each for each in policy.endpoints if not each.startswith("http")), "")
    job = make_job({"egress": urls, "checkpoint.backup": {"url": bucket}})
    return admitted_peers(all_manifests(make_clustered_job(job, KNOWN_TINY))["networkpolicy"])


@pytest.mark.row("E9")
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes(), POLICIES)
def test_objects_of_job_reach_only_servers_and_secrets_that_policy_allows(
    changed: dict[str, Any], policy: JobPolicy
) -> None:
    parsed = parse_job(make_raw_job({f"spec.{place}": value for place, value in changed.items()}))
    if not isinstance(parsed, RagGrpoJob) or policy.refuses(parsed):
        return
    job = make_clustered_job(parsed, KNOWN_TINY)
    assert reached_secrets(job) <= set(policy.secrets)
    allowed = {"/".join(prefix.split("/")[:3]) for prefix in policy.endpoints}
    assert reached_servers(job) - {"file://"} <= allowed
    peers = admitted_peers(all_manifests(job)["networkpolicy"])
    assert peers <= admitted_by(policy)


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
