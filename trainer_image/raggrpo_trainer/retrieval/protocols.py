"""The retrieval protocols' wire formats: request bodies and answers. Does no I/O."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from raggrpo_api.spec.retrieval import EndpointProtocol, RetrievalEndpoint
from raggrpo_trainer.sample_failures import CallFailed, FailureCause


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage returned by an endpoint; `score` is 1.0 if the answer had none."""

    id: str
    text: str
    score: float


@dataclass(frozen=True, slots=True)
class Query:
    """A query or dialogue context; for role Actor also the fields the policy wrote."""

    context: str
    fields: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The query for protocols without fields: the fields' values, then the context."""
        return "\n".join([*(value for _, value in self.fields), self.context])


def request_body(endpoint: RetrievalEndpoint, queries: Sequence[Query]) -> dict[str, Any]:
    """Return the request body for `queries`; RagChat takes exactly one.

    `extraBody` adds fields but cannot override the protocol's own.
    """
    match endpoint.protocol:
        case EndpointProtocol.SEARCH_R1:
            own: dict[str, Any] = {
                "queries": [query.text for query in queries],
                "topk": endpoint.top_k,
                "return_scores": True,
            }
        case EndpointProtocol.RAG_CHAT:
            [query] = queries
            own = {
                "context": query.context,
                **dict(query.fields),
                "score_threshold": endpoint.score_threshold,
                "top_k": endpoint.top_k,
            }
        case _:
            assert_never(endpoint.protocol)
    return {**endpoint.extra_body, **own}


def parse_answer(
    protocol: EndpointProtocol, answer: Mapping[str, Any], num_queries: int
) -> list[tuple[Passage, ...]]:
    """Return each query's passages, in the endpoint's order.

    Search-R1: {"result": [[{"document": {...}, "score"} or the bare document, ...], ...]};
    RagChat: {"results": [{"id", "text", "score"}, ...]}. Raises CallFailed (MissingField).
    """
    try:
        passages = _passages(protocol, answer)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(str(part) for part in first["loc"])
        raise CallFailed(FailureCause.MISSING_FIELD, f"{place}: {first['msg']}") from error
    if len(passages) != num_queries:
        raise CallFailed(
            FailureCause.MISSING_FIELD, f"result: {len(passages)} lists for {num_queries} queries"
        )
    return passages


def _passages(protocol: EndpointProtocol, answer: Mapping[str, Any]) -> list[tuple[Passage, ...]]:
    match protocol:
        case EndpointProtocol.SEARCH_R1:
            lists = _SearchR1Answer.model_validate(answer).result
            return [tuple(found.passage() for found in each) for each in lists]
        case EndpointProtocol.RAG_CHAT:
            results = _RagChatAnswer.model_validate(answer).results
            return [tuple(result.passage() for result in results)]
        case _:
            assert_never(protocol)


class _Document(BaseModel):
    model_config = ConfigDict(coerce_numbers_to_str=True)

    id: str = ""
    text: str = Field(validation_alias=AliasChoices("contents", "text"))

    def scored(self, score: float) -> Passage:
        # Without ids, the text itself identifies a passage.
        return Passage(self.id or self.text, self.text, score)


class _Found(BaseModel):
    document: _Document
    score: FiniteFloat = 1.0

    @model_validator(mode="before")
    @classmethod
    def _accept_bare_document(cls, item: Any) -> Any:
        return item if isinstance(item, dict) and "document" in item else {"document": item}

    def passage(self) -> Passage:
        return self.document.scored(self.score)


class _SearchR1Answer(BaseModel):
    result: list[list[_Found]]


class _ChatResult(_Document):
    score: FiniteFloat

    def passage(self) -> Passage:
        return self.scored(self.score)


class _RagChatAnswer(BaseModel):
    results: list[_ChatResult]
