"""Random jobs, what their rendered objects reach, and what a `jobPolicy` allows."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, get_origin

from hypothesis import strategies as st

from raggrpo_api.fields.addresses import HTTP_URL, has_other_path
from raggrpo_api.fields.base import ApiModel
from raggrpo_api.fields.change_class import model_in
from raggrpo_api.fields.reach import (
    REDIRECTING_HEADERS,
    REDIRECTING_VARIABLES,
    HeaderName,
    SecretName,
    Server,
)
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import EnvVar
from raggrpo_operator.core.rules.base.spec_rule import values_at
from raggrpo_operator.core.spec.marked_fields import marked_places
from support.builders.operator.manifests import Manifest

M = TypeVar("M")

OWN_TOKEN = re.compile(r"[a-z0-9-]+-token(-[0-9a-f]{16})?")
_SERVICE = re.compile(r"\b([a-z][a-z0-9+]*://[^\s/?#\"'\\,]+)")
"""Scheme, host and port of a URL within a text."""
_EXCEPTIONS = re.compile(r'{"name": "(?i:no_proxy)", "value": "[^"]*"}')
"""Variable with the servers that are called without a proxy."""
HOSTS = (
    "https://rag.example.com", "https://rag.example.com:8443", "http://kb.team-b.svc:8000",
    "http://judge:8000", "http://192.0.2.77:3128", "https://RAG.example.com", "http://[2001:db8::7]",
    "https://rag.example.com.evil.example", "http://rag.team-c", "https://api.wandb.ai",
)  # fmt: skip
PATHS = (
    "",
    "/",
    "/v1/",
    "/v1",
    "/v1/chat",
    "/v1/../v2",
    "/v1/%2e%2e/v2",
    "/v1/..;/v2",
    "/v1\\..\\v2",
    "?q=/v1/",
)
BUCKETS = ("s3://ours", "s3://ours-too", "gs://ours", "file:///mnt/runs")
SOURCES = ("hf://ours", "hf://theirs", "s3://ours", "gs://ours", "oci://rag.example.com")
"""Where models and data are downloaded from; their paths have two names."""
VARIABLES = (
    "https_proxy", "ALL_PROXY", "No_Proxy", "AWS_ENDPOINT_URL", "Hf_Endpoint", "OPENAI_API_BASE",
    "WANDB_BASE_URL", "LEVEL", "NCCL_DEBUG", "HOSTALIASES",
)  # fmt: skip
HEADERS = ("Authorization", "X-Tenant", "Host", "x-forwarded-host", "Forwarded")
SECRETS = ("wandb", "rag", "theirs", "registry")

URLS = st.builds("".join, st.tuples(st.sampled_from(HOSTS), st.sampled_from(PATHS)))
REFS = st.fixed_dictionaries({"name": st.sampled_from(SECRETS), "key": st.just("key")})


@dataclass(frozen=True)
class JobPolicy:
    """The servers and Secrets that jobs may name; an empty tuple allows all of them."""

    endpoints: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    unchecked: str = ""
    """Place that the policy does not check, such as `spec.egress[]`."""

    def refuses(self, job: RagGrpoJob) -> bool:
        """Return whether a job names another server or Secret."""
        return any(self._violations(job))

    def allows(self, server: str) -> bool:
        is_listed = any(f"{server}/".startswith(prefix) for prefix in self.endpoints)
        return is_listed and not has_other_path(server)

    def _violations(self, job: RagGrpoJob) -> Iterator[bool]:
        if self.secrets:
            for name, _ in self._checked(job, SecretName):
                yield name not in self.secrets
        if not self.endpoints:
            return
        for value, server in self._checked(job, Server):
            yield not self.allows(server.url or value) and not value.startswith("file:///")
        for name, _ in self._checked(job, HeaderName):
            yield re.search(REDIRECTING_HEADERS, name) is not None
        for place in VARIABLE_PLACES:
            for _, variable in values_at(job.spec, place) if place != self.unchecked else ():
                yield self._redirects(variable)

    def _checked(self, job: RagGrpoJob, kind: type[M]) -> Iterator[tuple[str, M]]:
        """Yield (value, marker) of every checked field with a marker that is not empty."""
        for place, marker in marked_places(JobSpec, kind):
            if place != self.unchecked:
                yield from ((value, marker) for _, value in values_at(job.spec, place) if value)

    def _redirects(self, variable: EnvVar) -> bool:
        """Return whether a variable names, or may name, a server that is not allowed."""
        is_redirect = re.search(REDIRECTING_VARIABLES, variable.name) or "://" in variable.value
        if not is_redirect or variable.name.lower() == "no_proxy":
            return False
        is_url = re.search(HTTP_URL, variable.value) and self.allows(variable.value)
        return variable.secret_key_ref is not None or bool(variable.value and not is_url)


def variable_places(model: type[ApiModel], prefix: str = "spec") -> Iterator[str]:
    """Yield the place of every list of environment variables below a model."""
    for field in model.model_fields.values():
        nested = model_in(field.annotation)
        is_list = get_origin(field.annotation) is list
        place = f"{prefix}.{field.alias}{'[]' if is_list else ''}"
        if nested is EnvVar:
            yield place
        elif nested:
            yield from variable_places(nested, place)


VARIABLE_PLACES = tuple(variable_places(JobSpec))


def changes() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for changes to a job below `spec` that name servers and Secrets."""
    header = st.one_of(
        st.fixed_dictionaries({"name": st.sampled_from(HEADERS), "value": st.just("a")}),
        st.fixed_dictionaries({"name": st.sampled_from(HEADERS), "secretKeyRef": REFS}),
        st.fixed_dictionaries({"name": st.just("X-Api-Key"), "secretKeyRef": REFS}),
    )
    headers = st.lists(header, max_size=1)
    endpoint = st.fixed_dictionaries({"name": st.just("kb"), "url": URLS, "headers": headers})
    judge = st.fixed_dictionaries(
        {"model": st.just("m"), "prompt": st.just("Grade {completion}."), "headers": headers}
    )
    functions = st.one_of(
        st.fixed_dictionaries({"name": st.just("Http"), "url": URLS}),
        st.fixed_dictionaries({"name": st.just("Judge"), "url": URLS, "judge": judge}),
    )
    names = st.sampled_from(VARIABLES)
    values = st.one_of(URLS, st.sampled_from(["", "proxy:3128", "debug", "a https://rag.team-c"]))
    variable = st.one_of(
        st.fixed_dictionaries({"name": names, "value": values}),
        st.fixed_dictionaries({"name": names, "secretKeyRef": REFS}),
        st.fixed_dictionaries({"name": st.just("API_KEY"), "secretKeyRef": REFS}),
    )
    managed = {"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}
    backup = st.builds("".join, st.tuples(st.sampled_from(BUCKETS), st.sampled_from(PATHS[:7])))
    variables = st.lists(variable, max_size=2, unique_by=lambda each: each["name"])
    agents = _agents(variables)
    sources = st.builds("{}/a/b".format, st.sampled_from(SOURCES))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "retrieval": st.fixed_dictionaries(
            {
                "mode": st.just("Prompt"),
                "endpoints": st.tuples(st.one_of(endpoint, st.just(managed))).map(list),
            }
        ),
        "reward.functions": st.lists(functions, min_size=1, max_size=2),
        "rollout.agent": st.one_of(agents),
        "model.source": sources,
        "data.sources": st.lists(sources, max_size=2, unique=True),
        "data.validationSources": st.lists(sources, max_size=2, unique=True),
        "env": variables,
        "egress": st.lists(URLS, max_size=2),
        "checkpoint.backup": st.fixed_dictionaries({"url": backup}),
        "monitoring.wandb": st.just({"project": "p"}),
        "caBundle": st.fixed_dictionaries({"secret": st.sampled_from(SECRETS)}),
        "imagePullSecrets": st.lists(st.sampled_from(SECRETS), max_size=2, unique=True),
        "output.push": sources,
    }
    single = [st.fixed_dictionaries({name: values}) for name, values in fields.items()]
    single += [st.fixed_dictionaries({"rollout.agent": agent}) for agent in agents]
    return st.one_of(st.fixed_dictionaries({}, optional=fields), *single)


def _agents(
    variables: st.SearchStrategy[list[dict[str, Any]]],
) -> tuple[st.SearchStrategy[dict[str, Any]], ...]:
    """Return a strategy of `spec.rollout.agent` for each type; a container has the variables."""
    forward = st.fixed_dictionaries(
        {"models": st.just(["judge"]), "url": URLS}, optional={"apiKeySecret": REFS}
    )
    servers = st.lists(URLS, max_size=2)
    container = st.fixed_dictionaries(
        {"image": st.just("mirror.example.com/raggrpo/app:1")},
        optional={"env": variables, "egress": servers},
    )
    types: tuple[dict[str, st.SearchStrategy[Any]], ...] = (
        {"python": st.just("app:answer")},
        {"type": st.just("Http"), "identify": st.just("Trace"), "url": URLS},
        {"type": st.just("Container"), "identify": st.just("Trace"), "container": container},
    )
    more = {"forward": st.lists(forward, max_size=1)}
    return tuple(st.fixed_dictionaries(each, optional=more) for each in types)


def reached_secrets(objects: Sequence[Manifest]) -> set[str]:
    """Return the names of the Secrets in a job's objects, without the token of its cluster."""
    named = {name for each in objects for name in _secrets(each)}
    return {name for name in named if not OWN_TOKEN.fullmatch(name)}


def reached_servers(objects: Sequence[Manifest], namespace: str) -> set[str]:
    """Return scheme, host and port of each URL in a job's objects except its own services."""
    text = _EXCEPTIONS.sub("", json.dumps(objects, ensure_ascii=False))
    own = f".{namespace}.svc"
    return {url for url in _SERVICE.findall(text.replace('\\"', '"')) if own not in url}


def admitted_peers(policy: Manifest) -> set[str]:
    """Return the peers with ports of a NetworkPolicy's egress rules."""
    return {
        json.dumps([peer, rule.get("ports")], sort_keys=True)
        for rule in policy["spec"]["egress"]
        for peer in rule.get("to", [{}])
        for rule in _by_port(rule)
    }


def _by_port(rule: Manifest) -> Sequence[Manifest]:
    return [{"ports": each} for each in rule.get("ports", [])] or [{}]


def _secrets(value: Any, name: str = "") -> Iterator[str]:
    match value:
        case dict():
            for key, item in value.items():
                yield from _secrets(item, key if key != "name" else f"{name}.name")
        case list():
            for item in value:
                yield from _secrets(item, name)
        case str() if name in ("secretKeyRef.name", "secretName", "imagePullSecrets.name"):
            yield value
