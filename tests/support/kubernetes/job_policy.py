"""Random jobs, what their rendered objects reach, and what a `jobPolicy` allows."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from raggrpo_api.fields.addresses import HTTP_URL, has_other_path
from raggrpo_api.fields.reach import (
    REDIRECTING_HEADERS,
    REDIRECTING_VARIABLES,
    HeaderName,
    SecretName,
    Server,
)
from raggrpo_api.job import RagGrpoJob
from raggrpo_operator.core.spec.marked_fields import marked_values
from support.builders.operator.manifests import Manifest, objects_of

OWN_TOKEN = re.compile(r"[a-z0-9-]+-token(-[0-9a-f]{16})?")
_SERVICE = re.compile(r"\b([a-z][a-z0-9+]*://[^\s/?#\"'\\,]+)")
"""Scheme, host and port of a URL within a text."""
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

    def refuses(self, job: RagGrpoJob) -> bool:
        """Return whether a job names another server or Secret."""
        return any(self._violations(job))

    def allows(self, server: str) -> bool:
        is_listed = any(f"{server}/".startswith(prefix) for prefix in self.endpoints)
        return is_listed and not has_other_path(server)

    def _violations(self, job: RagGrpoJob) -> Iterator[bool]:
        if self.secrets:
            for _, _, name in marked_values(job.spec, SecretName):
                yield name not in self.secrets
        if not self.endpoints:
            return
        for _, server, value in marked_values(job.spec, Server):
            yield not self.allows(server.url or value) and not value.startswith("file:///")
        for _, _, name in marked_values(job.spec, HeaderName):
            yield re.search(REDIRECTING_HEADERS, name) is not None
        for variable in job.spec.env:
            redirects = re.search(REDIRECTING_VARIABLES, variable.name) or "://" in variable.value
            if redirects and variable.name.lower() != "no_proxy":
                is_url = re.search(HTTP_URL, variable.value) and self.allows(variable.value)
                yield variable.secret_key_ref is not None or bool(variable.value and not is_url)


def changes() -> st.SearchStrategy[dict[str, Any]]:
    """Return a strategy for changes to a job below `spec` that name servers and Secrets."""
    header = st.one_of(
        st.fixed_dictionaries({"name": st.sampled_from(HEADERS), "value": st.just("a")}),
        st.fixed_dictionaries({"name": st.sampled_from(HEADERS), "secretKeyRef": REFS}),
    )
    endpoint = st.fixed_dictionaries(
        {"name": st.just("kb"), "url": URLS}, optional={"headers": st.lists(header, max_size=1)}
    )
    judge = st.fixed_dictionaries(
        {"model": st.just("m"), "prompt": st.just("Grade {completion}.")},
        optional={"headers": st.lists(header, max_size=1)},
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
    )
    managed = {"name": "kb", "managed": {"corpus": "/mnt/runs/corpus.jsonl"}}
    backup = st.builds("".join, st.tuples(st.sampled_from(BUCKETS), st.sampled_from(PATHS[:7])))
    fields: dict[str, st.SearchStrategy[Any]] = {
        "retrieval": st.fixed_dictionaries(
            {
                "mode": st.just("Prompt"),
                "endpoints": st.lists(st.one_of(endpoint, st.just(managed)), max_size=1),
            }
        ),
        "reward.functions": st.lists(functions, min_size=1, max_size=2),
        "env": st.lists(variable, max_size=2, unique_by=lambda each: each["name"]),
        "egress": st.lists(URLS, max_size=2),
        "checkpoint.backup": st.fixed_dictionaries({"url": backup}),
        "monitoring.wandb": st.just({"project": "p"}),
        "caBundle": st.fixed_dictionaries({"secret": st.sampled_from(SECRETS)}),
        "imagePullSecrets": st.lists(st.sampled_from(SECRETS), max_size=2, unique=True),
    }
    single = [st.fixed_dictionaries({name: values}) for name, values in fields.items()]
    return st.one_of(st.fixed_dictionaries({}, optional=fields), *single)


def reached_secrets(job: RagGrpoJob) -> set[str]:
    """Return the names of the Secrets in the job's objects, without the token of its cluster."""
    named = {name for each in objects_of(job).values() for name in _secrets(each)}
    return {name for name in named if not OWN_TOKEN.fullmatch(name)}


def reached_servers(job: RagGrpoJob) -> set[str]:
    """Return scheme, host and port of each URL in the job's objects except its own retrievers."""
    text = json.dumps(list(objects_of(job).values()), ensure_ascii=False)
    own = f".{job.metadata.namespace}.svc"
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
