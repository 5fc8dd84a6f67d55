"""Wire formats of the retrieval protocols: requests and responses. Does no I/O."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, assert_never
from urllib.parse import quote
from uuid import uuid4

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    FiniteFloat,
    ValidationError,
    field_validator,
    model_validator,
)

from raggrpo_api.fields.json_values import placeholders, render_template
from raggrpo_api.spec.retrieval import (
    EndpointProtocol,
    EndpointRole,
    HttpMethod,
    RetrievalEndpoint,
)
from raggrpo_trainer.call_failures import CallFailed, FailureCause
from raggrpo_trainer.http.json_service import Request
from raggrpo_trainer.http.reported_errors import reported_error, reported_failure
from raggrpo_trainer.http.responses import require_object

from .passage import Passage, Query
from .response_mapping import map_response

_DOT_SEGMENT = re.compile(r"^[^?#]*/\.{1,2}([/?#]|$)")


def request_for(endpoint: RetrievalEndpoint, queries: Sequence[Query]) -> Request:
    """Return the request for `queries`; RagChat and Http take exactly one query.

    `extraBody` adds fields but cannot override the protocol's fields. Raises CallFailed if a
    placeholder has no value, which preflight rejects, or would select another path of the URL.
    """
    match endpoint.protocol:
        case EndpointProtocol.SEARCH_R1:
            body: dict[str, Any] = {
                "queries": [query.text for query in queries],
                "topk": endpoint.top_k,
                "return_scores": True,
            }
        case EndpointProtocol.RAG_CHAT:
            [query] = queries
            body = {
                "context": query.context,
                **dict(query.fields),
                "score_threshold": endpoint.score_threshold,
                "top_k": endpoint.top_k,
            }
        case EndpointProtocol.HTTP:
            return _http_request(endpoint, queries)
        case _:
            assert_never(endpoint.protocol)
    if not endpoint.extra_body:
        return Request(body)
    return Request({**fill_template(endpoint.extra_body, _values(endpoint, queries)), **body})


def parse_response(
    endpoint: RetrievalEndpoint, response: Any, num_queries: int
) -> list[tuple[Passage, ...]]:
    """Return the passages of each query, in the endpoint's order; they may exceed `topK`.

    Search-R1: {"result": [[{"document": {...}, "score"} or the bare document, ...], ...]}.
    RagChat and Http: by `response`, else by default paths, such as {"results": [{"id", "text",
    "score"}, ...]}. Raises CallFailed: MissingField, or ServiceError if the response states a
    failure, or if there are no passages and the response reports an error.
    """
    if failure := reported_failure(response):
        raise failure
    try:
        passages = _parsed(endpoint, response, num_queries)
    except CallFailed:
        if error := reported_error(response):
            raise error from None
        raise
    if not any(passages) and (error := reported_error(response)):
        raise error
    return passages


def _parsed(
    endpoint: RetrievalEndpoint, response: Any, num_queries: int
) -> list[tuple[Passage, ...]]:
    match endpoint.protocol:
        case EndpointProtocol.SEARCH_R1:
            return _search_r1(require_object(response), num_queries)
        case EndpointProtocol.RAG_CHAT | EndpointProtocol.HTTP:
            return [map_response(response, endpoint.response, needs_score=_needs_score(endpoint))]
        case _:
            assert_never(endpoint.protocol)


def column_names(endpoint: RetrievalEndpoint) -> frozenset[str]:
    """Return the names of the placeholders in an endpoint's templates."""
    return frozenset(placeholders([endpoint.extra_body, endpoint.body, endpoint.url]))


def _needs_score(endpoint: RetrievalEndpoint) -> bool:
    """Return whether results need scores, by which the reward RagScore weights them."""
    return endpoint.role is not EndpointRole.RETRIEVER


def _http_request(endpoint: RetrievalEndpoint, queries: Sequence[Query]) -> Request:
    [query] = queries
    values = _values(endpoint, [query])
    quoted = {name: quote(_as_text(value), safe="") for name, value in values.items()}
    url = fill_template(endpoint.url, quoted)
    if _DOT_SEGMENT.search(url):
        raise CallFailed(
            FailureCause.BAD_URL,
            "a placeholder in the path has the value . or .., which clients remove",
        )
    body = None if endpoint.method is HttpMethod.GET else fill_template(endpoint.body, values)
    return Request(body, method=endpoint.method, url=url)


def _values(endpoint: RetrievalEndpoint, queries: Sequence[Query]) -> dict[str, Any]:
    """Return the values of placeholders; for a batch, only the values that its queries share."""
    shared = {
        "top_k": endpoint.top_k,
        "score_threshold": endpoint.score_threshold,
        "message_id": uuid4().hex,
    }
    if len(queries) != 1:
        return shared
    [query] = queries
    columns = {name: json.loads(text) for name, text in query.columns}
    values = {"context": query.context, **columns, **dict(query.fields), "question": query.text}
    return values | shared


def fill_template(
    template: Any, values: Mapping[str, Any], fill: Callable[..., Any] = render_template
) -> Any:
    """Return `fill(template, values)`. Raises CallFailed if a placeholder has no value."""
    try:
        return fill(template, values)
    except KeyError as error:
        raise CallFailed(
            FailureCause.MISSING_FIELD,
            f"the sample has no value for placeholder {{{error.args[0]}}}",
        ) from error


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _search_r1(response: Mapping[str, Any], num_queries: int) -> list[tuple[Passage, ...]]:
    try:
        lists = _SearchR1Response.model_validate(response).result
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        path = ".".join(str(key) for key in first["loc"])
        raise CallFailed(FailureCause.MISSING_FIELD, f"{path}: {first['msg']}") from error
    if len(lists) != num_queries:
        raise CallFailed(
            FailureCause.MISSING_FIELD, f"result has {len(lists)} lists for {num_queries} queries"
        )
    return [tuple(hit.passage() for hit in hits) for hits in lists]


class _Document(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str = ""
    text: str = Field(validation_alias=AliasChoices("contents", "text"))

    def with_score(self, score: float) -> Passage:
        # Without ids, the text itself identifies a passage.
        return Passage(self.id or self.text, self.text, score)


class _Hit(BaseModel):
    document: _Document
    score: FiniteFloat = 1.0

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_document(cls, item: Any) -> Any:
        return item if isinstance(item, dict) and "document" in item else {"document": item}

    def passage(self) -> Passage:
        return self.document.with_score(self.score)


class _SearchR1Response(BaseModel):
    # Only the first error is reported; millions of them need more memory than their response.
    result: Annotated[list[Annotated[list[_Hit], FailFast()]], FailFast()]

    @field_validator("result", mode="before")
    @classmethod
    def _drop_null(cls, lists: Any) -> Any:
        if not isinstance(lists, list):
            return lists
        return [
            [item for item in each if item is not None] if isinstance(each, list) else each
            for each in lists
        ]
