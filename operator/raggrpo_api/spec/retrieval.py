"""`spec.retrieval`: endpoints and managed retrievers, and when they are called."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.addresses import HttpUrl
from raggrpo_api.fields.base import (
    AbsolutePath,
    ApiModel,
    EnvName,
    Memory,
    Name,
    OptionalPath,
    Ratio,
    Seconds,
    SecretKeyRef,
)
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL, OPTIMIZATION
from raggrpo_api.fields.json_values import JsonPath, JsonTemplate
from raggrpo_api.fields.reach import HeaderName
from raggrpo_api.secrets.redaction import display_url

BODY_FIELD: Final = "^[ -~]+$"
BodyField = Annotated[str, StringConstraints(pattern=BODY_FIELD, max_length=64)]
Template = Annotated[str, StringConstraints(max_length=16384)]
Prefix = Annotated[str, StringConstraints(max_length=1024)]


class RetrievalMode(StrEnum):
    """When endpoints are called."""

    NONE = "None"
    PROMPT = "Prompt"
    """Before generation: passages are inserted into the prompt."""
    SEARCH = "Search"
    """During generation: the policy writes <search>query</search> and receives passages."""
    REWARD = "Reward"
    """After generation: endpoints are called with fields written by the policy, for the reward."""


class EndpointRole(StrEnum):
    """Role of an endpoint."""

    RETRIEVER = "Retriever"
    """Passages for a query (modes Prompt and Search)."""
    ACTOR = "Actor"
    """Called with the fields that the policy wrote (mode Reward)."""
    REFERENCE = "Reference"
    """Called with the context only (mode Reward)."""


class EndpointProtocol(StrEnum):
    """Format of requests and responses."""

    SEARCH_R1 = "SearchR1"
    """POST /retrieve {queries, topk, return_scores}."""
    RAG_CHAT = "RagChat"
    """POST {context, user_profile, rewritten_query, history_summary, score_threshold, top_k}."""
    HTTP = "Http"
    """Any search server: method, url, headers and body as specified, one call per query."""


class HttpMethod(StrEnum):
    """HTTP method of a search request."""

    GET = "GET"
    POST = "POST"


SERVED_PATHS: Final = {EndpointProtocol.SEARCH_R1: "/retrieve", EndpointProtocol.RAG_CHAT: "/chat"}
"""URL path of each protocol on a managed retriever."""


class IndexKind(StrEnum):
    """Index of a managed retriever."""

    BM25 = "BM25"
    """Term overlap."""
    DENSE = "Dense"
    """Similarity of embeddings."""
    HYBRID = "Hybrid"
    """Both, combined by reciprocal rank fusion."""


class Pooling(StrEnum):
    """Reduction of an embedding model's token vectors to one vector."""

    MEAN = "Mean"
    """Mean of all tokens (E5, GTE)."""
    CLS = "Cls"
    """First token (BGE)."""
    LAST = "Last"
    """Last token (Qwen3-Embedding)."""


class ActorFormat(StrEnum):
    """Format of the fields that the policy writes."""

    JSON = "JSON"
    TAGS = "Tags"


class FailurePolicy(StrEnum):
    """Effect of a failed retrieval or reward call on its sample."""

    DROP_SAMPLE = "DropSample"
    """Exclude the sample from its group's baseline and from the loss."""
    ZERO_REWARD = "ZeroReward"
    """Give the sample reward 0."""


class ActorOutput(ApiModel):
    """Fields that the policy writes in mode Reward."""

    format: ActorFormat = ActorFormat.JSON
    """JSON: one object. Tags: one tag per field."""
    fields: Annotated[list[EnvName], Field(min_length=1, max_length=16)] = [
        "user_profile",
        "rewritten_query",
        "history_summary",
    ]
    """Field names; a completion that cannot be parsed has Format reward 0 and makes no call."""


class Header(ApiModel):
    """An HTTP header; credentials only by reference."""

    name: Annotated[
        str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$", max_length=128), HeaderName()
    ]
    """Header name."""
    value: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=1024)] = ""
    """Literal value, for headers without credentials."""
    not_secret: bool = False
    """Accept a literal value that looks like a secret but is not one."""
    secret_key_ref: SecretKeyRef | None = None
    """Secret key that contains the value."""


# Applied by raggrpo_trainer/retrieval/response_mapping.py.
class ResponseMapping(ApiModel):
    """JSON paths of passages in a response; an empty path tries the common field names."""

    items: JsonPath = ""
    """List of results, such as `payload.hits`; `groups[*].docs` joins lists, `$` is the
    response."""
    id: JsonPath = ""
    """Id within a result; results without an id are identified by their text."""
    text: JsonPath = ""
    """Text within a result."""
    score: JsonPath = ""
    """Score within a result, higher is better; 1 if the result has none."""


class EmbeddingModel(ApiModel):
    """Model that embeds queries and passages, on CPU in FP32."""

    path: AbsolutePath
    """Folder of a Hugging Face encoder or decoder with safetensors and a tokenizer."""
    pooling: Pooling = Pooling.MEAN
    """Pooling of token vectors; must match the training of the model."""
    query_prefix: Prefix = ""
    """Prefix of every query, such as `query: ` for E5."""
    passage_prefix: Prefix = ""
    """Prefix of every passage, such as `passage: ` for E5."""
    normalize: bool = True
    """Normalize vectors to length 1, so that scores are cosine similarities."""
    max_tokens: Annotated[int, Field(ge=8, le=8192)] = 512
    """Maximum tokens per text; the rest is truncated."""


class ManagedRetriever(ApiModel):
    """A retrieval server that the operator runs for the job."""

    corpus: AbsolutePath
    """JSONL or parquet file with `id` and `contents` (or `text`) per passage."""
    index: IndexKind = IndexKind.BM25
    """Index type: BM25 (terms), Dense (embeddings) or Hybrid (both)."""
    embedding: EmbeddingModel | None = None
    """Dense, Hybrid: embedding model."""
    vectors: OptionalPath = ""
    """Dense, Hybrid: `.npy` file of float32 [passages, dimension] embeddings; empty: computed."""
    index_path: OptionalPath = ""
    """Dense, Hybrid: folder of the index; empty: <checkpoint.path>/indexes."""
    hnsw_above: Annotated[int, Field(ge=0, le=10**9)] = 200_000
    """Dense, Hybrid: number of passages above which search is approximate (HNSW)."""
    memory: Memory = ""
    """Memory of the retriever; empty: computed from corpus, embeddings and embedding model."""

    @property
    def embeds(self) -> bool:
        """Whether queries are embedded."""
        return self.index is not IndexKind.BM25


class RetrievalEndpoint(ApiModel):
    """A retrieval service: an existing one by url, or a managed one."""

    name: Annotated[Name, MODEL]
    """Name in messages, metrics and `--endpoint NAME=URL`."""
    role: Annotated[EndpointRole, MODEL] = EndpointRole.RETRIEVER
    """Role of the endpoint."""
    protocol: Annotated[EndpointProtocol, MODEL] = EndpointProtocol.SEARCH_R1
    """Format of requests and responses."""
    url: Annotated[HttpUrl, OPERATIONAL] = ""
    """Full URL without credentials; with protocol Http, path and query may have placeholders."""
    not_secret: Annotated[bool, OPERATIONAL] = False
    """Accept values in url, extraBody and body that look like secrets but are not."""
    managed: Annotated[ManagedRetriever | None, OPERATIONAL] = None
    """Retriever to run instead of calling an existing service."""
    top_k: Annotated[int, Field(ge=1, le=50), OPTIMIZATION] = 3
    """Passages per query."""
    score_threshold: Annotated[float, Field(ge=0.0, le=1.0), OPTIMIZATION] = 0.95
    """RagChat: minimum score of results."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=600.0), OPERATIONAL] = 30.0
    """Timeout of a call in seconds."""
    max_concurrency: Annotated[int, Field(ge=1, le=4096), OPERATIONAL] = 64
    """Maximum concurrent calls."""
    cache: Annotated[bool, OPERATIONAL] = True
    """Cache responses by request; disable if responses change."""
    extra_body: Annotated[dict[BodyField, JsonTemplate], Field(max_length=32), MODEL] = {}
    """SearchR1, RagChat: additional body fields, any JSON, with placeholders as in body."""
    method: Annotated[HttpMethod, MODEL] = HttpMethod.POST
    """Http: method; GET sends no body."""
    body: Annotated[JsonTemplate, MODEL] = None
    """Http: request body, any JSON, with {question}, {context}, {top_k}, {score_threshold},
    {message_id} or columns."""
    response: Annotated[ResponseMapping, MODEL] = ResponseMapping()
    """RagChat, Http: JSON paths of passages in the response; empty: common field names."""
    headers: Annotated[list[Header], Field(max_length=16), OPERATIONAL] = []
    """HTTP headers, with credentials by reference."""

    @property
    def display_url(self) -> str:
        """The URL for messages, without what may be secret."""
        return display_url(self.url)


class RetrievalSpec(ApiModel):
    """Retrieval before or during generation, or in the reward."""

    mode: Annotated[RetrievalMode, MODEL] = RetrievalMode.NONE
    """When endpoints are called."""
    endpoints: Annotated[list[RetrievalEndpoint], Field(max_length=8), MODEL] = []
    """Retrieval services."""
    prompt_template: Annotated[Template, MODEL] = (
        "Passages:\n{passages}\n\nQuestion: {prompt}\nAnswer:"
    )
    """Mode Prompt: prompt template with {passages} and {prompt}."""
    passage_template: Annotated[Template, MODEL] = "[{index}] {text}\n"
    """Template of a passage with {index}, from 1, and {text}."""
    shuffle_passages: Annotated[bool, OPTIMIZATION] = False
    """Mode Prompt: shuffle passages (seeded), so that the policy cannot rely on their order."""
    max_passage_tokens: Annotated[int, Field(ge=1, le=100_000), OPTIMIZATION] = 256
    """Maximum tokens per passage; if unspecified, reduced for short sequence lengths."""
    max_turns: Annotated[int, Field(ge=1, le=32), OPTIMIZATION] = 2
    """Mode Search: maximum searches per completion."""
    actor_output: Annotated[ActorOutput, MODEL] = ActorOutput()
    """Mode Reward: fields that the policy writes."""
    on_failure: Annotated[FailurePolicy, OPTIMIZATION] = FailurePolicy.DROP_SAMPLE
    """Effect of a failed call on its sample."""
    max_failure_ratio: Annotated[Ratio, OPERATIONAL] = 0.2
    """Maximum share of failed calls to a service in one step; above it, the attempt fails."""
    warm_up_timeout_seconds: Annotated[Seconds, OPERATIONAL] = 60
    """Timeout of the first call of each endpoint in seconds."""

    @property
    def external(self) -> list[RetrievalEndpoint]:
        """Endpoints with a URL: services, and managed retrievers that are running."""
        return [endpoint for endpoint in self.endpoints if endpoint.managed is None or endpoint.url]

    @property
    def managed(self) -> dict[str, ManagedRetriever]:
        """Managed retrievers by endpoint name."""
        return {each.name: each.managed for each in self.endpoints if each.managed is not None}
