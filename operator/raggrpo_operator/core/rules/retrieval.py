"""Rules on retrieval: endpoints, roles, protocols and templates."""

import re
from collections.abc import Iterator
from string import Formatter

from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.placeholders import SHARED_PLACEHOLDERS
from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    HttpMethod,
    ManagedRetriever,
    ResponseMapping,
    RetrievalEndpoint,
    RetrievalMode,
    RetrievalSpec,
)
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import HAS_RAG_SCORE, is_one_of, specified, value_or
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule
from .reward import uses_rag_score

_JSON_START = re.compile(r"""\s*(\{\s*['"]|\[\s*['"{\[])""")
RAG_FIELDS = ("user_profile", "rewritten_query", "history_summary")
"""Fields that a RagChat request requires in addition to the context."""
PASSAGE_MODES = (RetrievalMode.PROMPT, RetrievalMode.SEARCH)
_UNUSED_REMEDIES = {
    "extraBody": "move the fields of extraBody into body, or set protocol: SearchR1 or RagChat",
    "body": "set protocol: Http with method: POST, or use extraBody instead",
    "method": "set protocol: Http, or omit method",
    "response": "set protocol: Http or RagChat, or omit response",
}
_READS_PASSAGES = is_one_of("mode", *map(str, PASSAGE_MODES))
_ROLE = value_or("role", repr("Retriever"))
_PROTOCOL = value_or("protocol", repr("SearchR1"))
_INDEX = value_or("index", repr("BM25"))


def _one_endpoint(role: str) -> str:
    """Return a CEL condition that exactly one endpoint has the role."""
    return (
        f"({specified('retrieval.endpoints')} && "
        f"self.retrieval.endpoints.exists_one(e, has(e.role) && e.role == '{role}'))"
    )


@spec_rule(
    "spec.retrieval.endpoints[]",
    reason=Reason.ENDPOINT_SOURCE,
    message="exactly one of url and managed is required",
    values=lambda endpoint: endpoint.name,
    remedy="specify one of the two",
    cel="(has(self.url) && size(self.url) > 0) != has(self.managed)",
)
def endpoint_has_one_source(endpoint: RetrievalEndpoint) -> bool:
    """Require either the URL of a service or a retriever that the operator runs."""
    return bool(endpoint.url) != (endpoint.managed is not None)


@spec_rule(
    "spec.retrieval.endpoints[].managed",
    field="embedding",
    reason=Reason.EMBEDDING_NEEDED,
    message="indexes Dense and Hybrid need an embedding model",
    remedy="set embedding: {path: /path/to/model}, or index: BM25",
    cel=f"{_INDEX} == 'BM25' || has(self.embedding)",
)
def index_has_embedding_model(managed: ManagedRetriever) -> bool:
    """Require an embedding model for indexes Dense and Hybrid."""
    return managed.embedding is not None or not managed.embeds


@spec_rule(
    "spec.retrieval.endpoints[].managed",
    field="index",
    reason=Reason.EMBEDDING_UNUSED,
    message="index BM25 uses neither embedding nor vectors nor indexPath",
    remedy="set index: Dense or Hybrid, or remove these fields",
    cel=f"{_INDEX} != 'BM25' || !(has(self.embedding) || "
    "(has(self.vectors) && size(self.vectors) > 0) || "
    "(has(self.indexPath) && size(self.indexPath) > 0))",
)
def embedding_model_is_used(managed: ManagedRetriever) -> bool:
    """Reject an embedding model, vectors and an index folder for index BM25."""
    is_specified = managed.embedding is not None or managed.vectors or managed.index_path
    return managed.embeds or not is_specified


@spec_rule(
    "spec.retrieval.endpoints[]",
    field="protocol",
    reason=Reason.PROTOCOL_MISMATCH,
    message="the protocol is not available for the role",
    values=lambda endpoint: f"{endpoint.name}: {endpoint.protocol}, {endpoint.role}",
    remedy="use SearchR1 or Http for role Retriever, RagChat or Http for roles Actor and Reference",
    cel=f"{_PROTOCOL} == 'Http' || ({_ROLE} == 'Retriever') == ({_PROTOCOL} == 'SearchR1')",
)
def protocol_fits_role(endpoint: RetrievalEndpoint) -> bool:
    """Require SearchR1 for retrievers, and RagChat for Actor and Reference; Http fits all roles."""
    is_retriever = endpoint.role is EndpointRole.RETRIEVER
    expected = EndpointProtocol.SEARCH_R1 if is_retriever else EndpointProtocol.RAG_CHAT
    return endpoint.protocol in (expected, EndpointProtocol.HTTP)


@spec_rule(
    "spec.retrieval.endpoints[]",
    field="protocol",
    reason=Reason.PROTOCOL_MISMATCH,
    message="protocol Http requires url",
    remedy="set url: http://host:8000/search; for a managed retriever, set protocol: SearchR1 or "
    "RagChat",
    cel=f"{_PROTOCOL} != 'Http' || (has(self.url) && size(self.url) > 0)",
)
def http_endpoint_has_url(endpoint: RetrievalEndpoint) -> bool:
    """Require the URL of an Http endpoint: managed retrievers serve other protocols."""
    return endpoint.protocol is not EndpointProtocol.HTTP or bool(endpoint.url)


def fields_fit_protocol(inputs: RuleInput) -> Iterator[Violation]:
    """Reject fields that the protocol would ignore."""
    for path, endpoint in _endpoints(inputs):
        is_http = endpoint.protocol is EndpointProtocol.HTTP
        ignored = {
            "extraBody": is_http and bool(endpoint.extra_body),
            "body": not is_http and endpoint.body is not None,
            "method": not is_http and endpoint.method is not HttpMethod.POST,
            "response": endpoint.protocol is EndpointProtocol.SEARCH_R1
            and endpoint.response != ResponseMapping(),
        }
        if is_http and endpoint.method is HttpMethod.GET and endpoint.body is not None:
            ignored["body"] = True
        for field in (name for name, is_ignored in ignored.items() if is_ignored):
            message = f"endpoint {endpoint.name} with protocol {endpoint.protocol} ignores {field}"
            remedy = _UNUSED_REMEDIES[field]
            yield Violation(f"{path}.{field}", Reason.PROTOCOL_MISMATCH, message, remedy)


def calls_contain_the_question(inputs: RuleInput) -> Iterator[Violation]:
    """Require the question in an Http call, and no per-sample value in a SearchR1 call."""
    for path, endpoint in _endpoints(inputs):
        match endpoint.protocol:
            case EndpointProtocol.HTTP:
                if placeholders([endpoint.body, endpoint.url]) <= SHARED_PLACEHOLDERS:
                    message = f"calls to endpoint {endpoint.name} do not contain the query"
                    remedy = 'set body: {query: "{question}"}, or add {question} to url'
                    yield Violation(f"{path}.body", Reason.TEMPLATE_PLACEHOLDER, message, remedy)
            case EndpointProtocol.SEARCH_R1:
                for name in sorted(placeholders(endpoint.extra_body) - SHARED_PLACEHOLDERS):
                    message = (
                        f"SearchR1 calls batch queries; {{{name}}} is per sample and unavailable"
                    )
                    remedy = "set protocol: Http with a body, or remove the placeholder"
                    field = f"{path}.extraBody"
                    yield Violation(field, Reason.TEMPLATE_PLACEHOLDER, message, remedy)
            case _:
                pass


def body_is_not_json_text(inputs: RuleInput) -> Iterator[Violation]:
    """Reject a body that is a string of JSON, because it would be sent as a string."""
    for path, endpoint in _endpoints(inputs):
        if isinstance(endpoint.body, str) and _JSON_START.match(endpoint.body):
            message = f"the body of endpoint {endpoint.name} is a string that looks like JSON"
            remedy = 'write the body without quotes around it, as in body: {query: "{question}"}'
            yield Violation(f"{path}.body", Reason.BODY_IS_TEXT, message, remedy)


@spec_rule(
    "spec.retrieval",
    field="endpoints",
    reason=Reason.RETRIEVER_NEEDED,
    message="modes Prompt and Search need exactly one endpoint with role Retriever",
    values=lambda retrieval: retrieval.mode,
    remedy="specify one endpoint {name, role: Retriever, protocol: SearchR1, url or managed}",
    cel=f"!{_READS_PASSAGES} || (has(self.endpoints) && self.endpoints.exists_one(e, "
    "!has(e.role) || e.role == 'Retriever'))",
)
def passages_have_a_retriever(retrieval: RetrievalSpec) -> bool:
    """Require exactly one retriever in modes Prompt and Search."""
    roles = [endpoint.role for endpoint in retrieval.endpoints]
    return retrieval.mode not in PASSAGE_MODES or roles.count(EndpointRole.RETRIEVER) == 1


@spec_rule(
    "spec",
    field="retrieval.mode",
    reason=Reason.RAG_ENDPOINTS_NEEDED,
    message="reward RagScore needs mode Reward, which calls endpoints after generation",
    values=lambda spec: spec.retrieval.mode,
    remedy="set retrieval.mode: Reward, or use another reward",
    cel=f"!{HAS_RAG_SCORE} || {is_one_of('retrieval.mode', 'Reward')}",
)
def rag_score_has_mode_reward(spec: JobSpec) -> bool:
    """Require mode Reward for RagScore."""
    return spec.retrieval.mode is RetrievalMode.REWARD or not uses_rag_score(spec)


@spec_rule(
    "spec",
    field="retrieval.endpoints",
    reason=Reason.RAG_ENDPOINTS_NEEDED,
    message="reward RagScore needs exactly one endpoint with role Actor and one with role "
    "Reference",
    remedy="specify {name, role: Actor, protocol: RagChat, url} and {name, role: Reference, "
    "protocol: RagChat, url}",
    cel=f"!{HAS_RAG_SCORE} || ({_one_endpoint('Actor')} && {_one_endpoint('Reference')})",
)
def rag_score_has_endpoints(spec: JobSpec) -> bool:
    """Require both endpoints whose results RagScore compares."""
    roles = [endpoint.role for endpoint in spec.retrieval.endpoints]
    is_complete = roles.count(EndpointRole.ACTOR) == roles.count(EndpointRole.REFERENCE) == 1
    return is_complete or not uses_rag_score(spec)


@spec_rule(
    "spec",
    field="retrieval.actorOutput.fields",
    reason=Reason.RAG_FIELD_MISSING,
    message=f"RagChat requests need {', '.join(RAG_FIELDS)}",
    remedy=f"set fields: [{', '.join(RAG_FIELDS)}]",
    cel=f"!({specified('retrieval.actorOutput.fields')}) || !{HAS_RAG_SCORE} || "
    f"({specified('retrieval.endpoints')} && self.retrieval.endpoints.exists(e, has(e.role) && "
    "e.role == 'Actor' && has(e.protocol) && e.protocol == 'Http')) || "
    f"{list(RAG_FIELDS)}.all(f, f in self.retrieval.actorOutput.fields)",
)
def actor_writes_required_fields(spec: JobSpec) -> bool:
    """Require the policy to write every field that the service requires in a RagChat request."""
    is_http = any(
        endpoint.role is EndpointRole.ACTOR and endpoint.protocol is EndpointProtocol.HTTP
        for endpoint in spec.retrieval.endpoints
    )
    is_complete = set(RAG_FIELDS) <= set(spec.retrieval.actor_output.fields)
    return is_complete or is_http or not uses_rag_score(spec)


def endpoints_are_used(inputs: RuleInput) -> Iterator[Violation]:
    """Warn about endpoints that are never called, usually because retrieval.mode is unspecified."""
    mode = inputs.spec.retrieval.mode
    used: set[EndpointRole] = set()
    if mode in PASSAGE_MODES:
        used = {EndpointRole.RETRIEVER}
    elif uses_rag_score(inputs.spec):
        used = {EndpointRole.ACTOR, EndpointRole.REFERENCE}
    for path, endpoint in _endpoints(inputs):
        if endpoint.role not in used:
            message = (
                f"endpoint {endpoint.name} with role {endpoint.role} is not called in mode {mode}"
            )
            remedy = "remove the endpoint, or select a mode and reward that use it"
            yield warning(path, Reason.ENDPOINT_UNUSED, message, remedy)


@spec_rule(
    "spec.retrieval",
    field="promptTemplate",
    reason=Reason.TEMPLATE_PLACEHOLDER,
    message="{passages} or {prompt} is missing",
    remedy="write {passages} and {prompt} where they belong; double any other brace",
    cel=f"!{is_one_of('mode', 'Prompt')} || !has(self.promptTemplate) || "
    "(self.promptTemplate.contains('{passages') && self.promptTemplate.contains('{prompt'))",
)
def prompt_template_is_complete(retrieval: RetrievalSpec) -> bool:
    """Require the placeholders for passages and prompt in the prompt template."""
    template = retrieval.prompt_template
    is_complete = "{passages" in template and "{prompt" in template
    return is_complete or retrieval.mode is not RetrievalMode.PROMPT


@spec_rule(
    "spec.retrieval",
    field="passageTemplate",
    reason=Reason.TEMPLATE_PLACEHOLDER,
    message="{text} is missing",
    remedy="write {text} where it belongs; double any other brace",
    cel=f"!{_READS_PASSAGES} || !has(self.passageTemplate) || "
    "self.passageTemplate.contains('{text')",
)
def passage_template_is_complete(retrieval: RetrievalSpec) -> bool:
    """Require the placeholder for the text in the passage template."""
    return "{text" in retrieval.passage_template or retrieval.mode not in PASSAGE_MODES


def templates_are_valid(inputs: RuleInput) -> Iterator[Violation]:
    """Reject templates with unknown placeholders or single braces.

    Not a CEL rule, because CEL cannot parse templates.
    """
    retrieval = inputs.spec.retrieval
    problems: dict[str, str] = {}
    if retrieval.mode is RetrievalMode.PROMPT and prompt_template_is_complete.is_met(retrieval):
        both = {"prompt", "passages"}
        problems["promptTemplate"] = _template_problem(retrieval.prompt_template, both, both)
    if retrieval.mode in PASSAGE_MODES and passage_template_is_complete.is_met(retrieval):
        known = {"text", "index"}
        template = retrieval.passage_template
        problems["passageTemplate"] = _template_problem(template, {"text"}, known)
    for name, problem in problems.items():
        if problem:
            remedy = "double any brace that is not part of a placeholder"
            yield Violation(f"spec.retrieval.{name}", Reason.TEMPLATE_PLACEHOLDER, problem, remedy)


def _template_problem(template: str, required: set[str], known: set[str]) -> str:
    try:
        names = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        return str(error)
    if missing := sorted(required - names):
        return f"{{{missing[0]}}} is missing"
    if unknown := sorted(names - known):
        return f"{{{unknown[0]}}} is unknown"
    return ""


def _endpoints(inputs: RuleInput) -> Iterator[tuple[str, RetrievalEndpoint]]:
    for index, endpoint in enumerate(inputs.spec.retrieval.endpoints):
        yield f"spec.retrieval.endpoints[{index}]", endpoint
