"""Rules about retrieval: endpoints, roles, protocols and templates."""

import re
from collections.abc import Iterator
from string import Formatter

from raggrpo_api.fields.json_values import placeholders
from raggrpo_api.spec.placeholders import SHARED_PLACEHOLDERS
from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    HttpMethod,
    ResponseMapping,
    RetrievalEndpoint,
    RetrievalMode,
)
from raggrpo_api.spec.reward import RewardKind
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning

_LIKE_JSON = re.compile(r"""\s*(\{\s*['"]|\[\s*['"{\[])""")
MODE = "spec.retrieval.mode"
RAG_FIELDS = ("user_profile", "rewritten_query", "history_summary")
"""Fields required in a RagChat request besides the context."""
_USED_BY = {
    "extraBody": "write it into body, or protocol: SearchR1 or RagChat",
    "body": "protocol: Http with method: POST, or extraBody",
    "method": "protocol: Http, or leave it out",
    "response": "protocol: Http or RagChat, or leave it out",
    "managed": "protocol: SearchR1 or RagChat, or url in place of managed",
}


def endpoint_has_one_source(given: RuleInput) -> Iterator[Violation]:
    """Require either the URL of a service or a retriever that the operator runs."""
    for path, endpoint in _endpoints(given):
        if bool(endpoint.url) == (endpoint.managed is not None):
            state = "both url and managed" if endpoint.url else "neither url nor managed"
            message = f"endpoint {endpoint.name} has {state}"
            remedy = "give exactly one of url and managed"
            yield Violation(path, Reason.ENDPOINT_SOURCE, message, remedy)


def index_has_its_model(given: RuleInput) -> Iterator[Violation]:
    """Require an embedding model for Dense and Hybrid, and nothing of it for BM25."""
    for path, endpoint in _endpoints(given):
        managed = endpoint.managed
        if managed is None:
            continue
        if managed.embeds and managed.embedding is None:
            message = f"index {managed.index} has no model that embeds queries"
            remedy = "embedding: {path: /path/to/model}, or index: BM25"
            yield Violation(f"{path}.managed.embedding", Reason.EMBEDDING_NEEDED, message, remedy)
        of_embedding = {
            "embedding": managed.embedding is not None,
            "vectors": bool(managed.vectors),
            "indexPath": bool(managed.index_path),
        }
        for field in (name for name, is_given in of_embedding.items() if is_given):
            if not managed.embeds:
                message = f"index BM25 does not use {field}"
                remedy = "index: Dense or Hybrid, or leave it out"
                place = f"{path}.managed.{field}"
                yield Violation(place, Reason.EMBEDDING_UNUSED, message, remedy)


def protocol_fits_role(given: RuleInput) -> Iterator[Violation]:
    """Require SearchR1 of retrievers, and RagChat of Actor and Reference; Http fits all roles."""
    for path, endpoint in _endpoints(given):
        is_retriever = endpoint.role is EndpointRole.RETRIEVER
        wanted = EndpointProtocol.SEARCH_R1 if is_retriever else EndpointProtocol.RAG_CHAT
        if endpoint.protocol not in (wanted, EndpointProtocol.HTTP):
            message = f"{endpoint.name} with role {endpoint.role} has protocol {endpoint.protocol}"
            remedy = f"protocol: {wanted} or Http, or another role"
            yield Violation(f"{path}.protocol", Reason.PROTOCOL_MISMATCH, message, remedy)


def fields_fit_protocol(given: RuleInput) -> Iterator[Violation]:
    """Reject fields that the protocol would ignore: the call would not be the one they describe."""
    for path, endpoint in _endpoints(given):
        is_http = endpoint.protocol is EndpointProtocol.HTTP
        ignored = {
            "extraBody": is_http and bool(endpoint.extra_body),
            "body": not is_http and endpoint.body is not None,
            "method": not is_http and endpoint.method is not HttpMethod.POST,
            "response": endpoint.protocol is EndpointProtocol.SEARCH_R1
            and endpoint.response != ResponseMapping(),
            "managed": is_http and endpoint.managed is not None,
        }
        if is_http and endpoint.method is HttpMethod.GET and endpoint.body is not None:
            ignored["body"] = True
        for field in (name for name, is_ignored in ignored.items() if is_ignored):
            message = f"{endpoint.name} with protocol {endpoint.protocol} does not use {field}"
            yield Violation(f"{path}.{field}", Reason.PROTOCOL_MISMATCH, message, _USED_BY[field])


def calls_carry_the_question(given: RuleInput) -> Iterator[Violation]:
    """Require the question in an Http call, and of SearchR1 nothing that differs by sample."""
    for path, endpoint in _endpoints(given):
        match endpoint.protocol:
            case EndpointProtocol.HTTP:
                named = placeholders([endpoint.body, endpoint.url])
                if named <= SHARED_PLACEHOLDERS:
                    message = f"no call to {endpoint.name} says what is looked for"
                    remedy = 'body: {query: "{question}"}, or {question} in url'
                    yield Violation(f"{path}.body", Reason.TEMPLATE_PLACEHOLDER, message, remedy)
            case EndpointProtocol.SEARCH_R1:
                for name in sorted(placeholders(endpoint.extra_body) - SHARED_PLACEHOLDERS):
                    message = f"one SearchR1 call asks for many samples, {{{name}}} is of one"
                    remedy = "protocol: Http with a body, or leave it out"
                    place = f"{path}.extraBody"
                    yield Violation(place, Reason.TEMPLATE_PLACEHOLDER, message, remedy)
            case _:
                pass


def body_is_json_and_no_text_of_it(given: RuleInput) -> Iterator[Violation]:
    """Reject a body written as a text that holds JSON: it would be sent as one string."""
    for path, endpoint in _endpoints(given):
        if isinstance(endpoint.body, str) and _LIKE_JSON.match(endpoint.body):
            message = f"the body of {endpoint.name} is a text that looks like JSON"
            remedy = 'write it without quotes around it, as in body: {query: "{question}"}'
            yield Violation(f"{path}.body", Reason.BODY_IS_TEXT, message, remedy)


def passages_need_a_retriever(given: RuleInput) -> Iterator[Violation]:
    """Require exactly one retriever in modes Prompt and Search."""
    mode = given.spec.retrieval.mode
    if mode not in (RetrievalMode.PROMPT, RetrievalMode.SEARCH):
        return
    found = _with_role(given, EndpointRole.RETRIEVER)
    if len(found) != 1:
        message = f"mode {mode} needs one endpoint with role Retriever, there are {len(found)}"
        remedy = "one endpoint {name, role: Retriever, protocol: SearchR1, url or managed}"
        yield Violation("spec.retrieval.endpoints", Reason.RETRIEVER_NEEDED, message, remedy)


def rag_score_needs_both_endpoints(given: RuleInput) -> Iterator[Violation]:
    """Require both endpoints whose results RagScore compares."""
    if not _uses_rag_score(given):
        return
    if given.spec.retrieval.mode is not RetrievalMode.REWARD:
        yield Violation(
            MODE,
            Reason.RAG_ENDPOINTS_NEEDED,
            f"reward RagScore calls endpoints after generation, the mode is "
            f"{given.spec.retrieval.mode}",
            "retrieval.mode: Reward, or another reward",
        )
    for role in (EndpointRole.ACTOR, EndpointRole.REFERENCE):
        found = _with_role(given, role)
        if len(found) != 1:
            path = "spec.retrieval.endpoints"
            message = f"reward RagScore needs one endpoint with role {role}, there are {len(found)}"
            remedy = f"one endpoint {{name, role: {role}, protocol: RagChat, url}}"
            yield Violation(path, Reason.RAG_ENDPOINTS_NEEDED, message, remedy)


def actor_writes_required_fields(given: RuleInput) -> Iterator[Violation]:
    """Require every field of a RagChat request; the service refuses incomplete ones."""
    fields = given.spec.retrieval.actor_output.fields
    missing = [name for name in RAG_FIELDS if name not in fields]
    actors = _with_role(given, EndpointRole.ACTOR)
    is_rag_chat = not actors or any(e.protocol is EndpointProtocol.RAG_CHAT for e in actors)
    if _uses_rag_score(given) and is_rag_chat and missing:
        path = "spec.retrieval.actorOutput.fields"
        message = f"RagChat requests need {', '.join(missing)}"
        remedy = f"fields: [{', '.join([*fields, *missing])}]"
        yield Violation(path, Reason.RAG_FIELD_MISSING, message, remedy)


def endpoints_are_used(given: RuleInput) -> Iterator[Violation]:
    """Warn of endpoints that are never called: the mode was probably forgotten."""
    mode = given.spec.retrieval.mode
    used: set[EndpointRole] = set()
    if mode in (RetrievalMode.PROMPT, RetrievalMode.SEARCH):
        used = {EndpointRole.RETRIEVER}
    elif _uses_rag_score(given):
        used = {EndpointRole.ACTOR, EndpointRole.REFERENCE}
    for path, endpoint in _endpoints(given):
        if endpoint.role not in used:
            message = f"{endpoint.name} with role {endpoint.role} is not called in mode {mode}"
            remedy = "remove it, or choose the mode and reward that use it"
            yield warning(path, Reason.ENDPOINT_UNUSED, message, remedy)


def templates_have_their_placeholders(given: RuleInput) -> Iterator[Violation]:
    """Reject templates that would keep passages from reaching the model."""
    retrieval = given.spec.retrieval
    checks: list[tuple[str, str, set[str], set[str]]] = []
    if retrieval.mode is RetrievalMode.PROMPT:
        both = {"prompt", "passages"}
        checks.append(("promptTemplate", retrieval.prompt_template, both, both))
    if retrieval.mode in (RetrievalMode.PROMPT, RetrievalMode.SEARCH):
        checks.append(("passageTemplate", retrieval.passage_template, {"text"}, {"text", "index"}))
    for name, template, required, known in checks:
        problem = _template_problem(template, required, known)
        if problem:
            wanted = " and ".join(f"{{{key}}}" for key in sorted(required))
            remedy = f"write {wanted}; double any other brace"
            yield Violation(f"spec.retrieval.{name}", Reason.TEMPLATE_PLACEHOLDER, problem, remedy)


def _template_problem(template: str, required: set[str], known: set[str]) -> str:
    try:
        found = {name for _, name, _, _ in Formatter().parse(template) if name is not None}
    except ValueError as error:
        return str(error)
    if missing := sorted(required - found):
        return f"misses {{{missing[0]}}}"
    if unknown := sorted(found - known):
        return f"has the unknown placeholder {{{unknown[0]}}}"
    return ""


def _endpoints(given: RuleInput) -> Iterator[tuple[str, RetrievalEndpoint]]:
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        yield f"spec.retrieval.endpoints[{index}]", endpoint


def _with_role(given: RuleInput, role: EndpointRole) -> list[RetrievalEndpoint]:
    return [endpoint for endpoint in given.spec.retrieval.endpoints if endpoint.role is role]


def _uses_rag_score(given: RuleInput) -> bool:
    return any(term.name is RewardKind.RAG_SCORE for term in given.spec.reward.functions)
