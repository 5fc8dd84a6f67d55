"""`spec.retrieval`: where passages come from and when they are fetched."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.addresses import HttpUrl, display_url
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
from raggrpo_api.fields.json_values import JsonPath, JsonTemplate

BODY_FIELD: Final = "^[ -~]+$"
BodyField = Annotated[str, StringConstraints(pattern=BODY_FIELD, max_length=64)]
Template = Annotated[str, StringConstraints(max_length=16384)]
Prefix = Annotated[str, StringConstraints(max_length=1024)]


class RetrievalMode(StrEnum):
    """When retrieval happens."""

    NONE = "None"
    PROMPT = "Prompt"
    """Before generation: passages are put into the prompt."""
    SEARCH = "Search"
    """Inside generation: the policy writes <search>query</search> and reads the answer."""
    REWARD = "Reward"
    """After generation: endpoints are called with the actor's fields and their results scored."""


class EndpointRole(StrEnum):
    """What an endpoint is used for."""

    RETRIEVER = "Retriever"
    """Passages for a query (modes Prompt and Search)."""
    ACTOR = "Actor"
    """Called with the fields the actor wrote (mode Reward)."""
    REFERENCE = "Reference"
    """Called with the context alone (mode Reward)."""


class EndpointProtocol(StrEnum):
    """Shape of requests and answers."""

    SEARCH_R1 = "SearchR1"
    """POST /retrieve {queries, topk, return_scores}."""
    RAG_CHAT = "RagChat"
    """POST {context, user_profile, rewritten_query, history_summary, score_threshold, top_k}."""
    HTTP = "Http"
    """Any search server: method, url, headers and body as given, one call for each question."""


class HttpMethod(StrEnum):
    """How a search server is asked."""

    GET = "GET"
    POST = "POST"


SERVED_PATHS: Final = {EndpointProtocol.SEARCH_R1: "/retrieve", EndpointProtocol.RAG_CHAT: "/chat"}
"""Where the bundled retriever serves each protocol."""


class IndexKind(StrEnum):
    """Index of a managed retriever."""

    BM25 = "BM25"
    """Words in common."""
    DENSE = "Dense"
    """Closeness in an embedding model's space."""
    HYBRID = "Hybrid"
    """Both, joined by reciprocal rank fusion."""


class Pooling(StrEnum):
    """How an embedding model's token vectors become one."""

    MEAN = "Mean"
    """Their mean, as E5 and GTE."""
    CLS = "Cls"
    """The first one, as BGE."""
    LAST = "Last"
    """The last one, as Qwen3-Embedding."""


class ActorFormat(StrEnum):
    """How the actor writes its fields."""

    JSON = "JSON"
    TAGS = "Tags"


class FailurePolicy(StrEnum):
    """What a failed retrieval or reward call does to its sample."""

    DROP_SAMPLE = "DropSample"
    """The sample is left out of its group's baseline and of the loss."""
    ZERO_REWARD = "ZeroReward"
    """The sample keeps its place with reward 0."""


class ActorOutput(ApiModel):
    """The fields that the actor writes in mode Reward."""

    format: ActorFormat = ActorFormat.JSON
    """One JSON object, or one tag per field."""
    fields: Annotated[list[EnvName], Field(min_length=1, max_length=16)] = [
        "user_profile",
        "rewritten_query",
        "history_summary",
    ]
    """Names of the fields; what does not parse scores Format 0 and makes no RAG call."""


class Header(ApiModel):
    """An HTTP header; credentials only by reference."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+$", max_length=128)]
    """Header name."""
    value: Annotated[str, StringConstraints(pattern=r"^[\x20-\x7e]*$", max_length=1024)] = ""
    """Literal value, for headers that are no secret."""
    secret_key_ref: SecretKeyRef | None = None
    """Key of a Secret that holds the value."""


class ResponseMapping(ApiModel):
    """Where an answer holds its results: paths such as `payload.hits`; empty: the usual names."""

    items: JsonPath = ""
    """List of results; `groups[*].docs` joins several lists, `$` is the whole answer."""
    id: JsonPath = ""
    """Inside a result: what identifies it; without any, its text does."""
    text: JsonPath = ""
    """Inside a result: its text."""
    score: JsonPath = ""
    """Inside a result: its score, more is better; 1 where an answer has none."""


class EmbeddingModel(ApiModel):
    """The model that turns queries and passages into vectors, on CPU in FP32."""

    path: AbsolutePath
    """Folder of a Hugging Face encoder or decoder with safetensors and a tokenizer."""
    pooling: Pooling = Pooling.MEAN
    """How token vectors become one; must be what the model was trained with."""
    query_prefix: Prefix = ""
    """Put before every query, such as `query: ` for E5."""
    passage_prefix: Prefix = ""
    """Put before every passage, such as `passage: ` for E5."""
    normalize: bool = True
    """Scale vectors to length 1, so that scores are cosines."""
    max_tokens: Annotated[int, Field(ge=8, le=8192)] = 512
    """Tokens read of a text; the rest is cut off."""


class ManagedRetriever(ApiModel):
    """A retriever that the operator runs beside the job."""

    corpus: AbsolutePath
    """JSONL or parquet file with `id` and `contents` (or `text`) per passage."""
    index: IndexKind = IndexKind.BM25
    """BM25 over words, Dense over an embedding model's vectors, or Hybrid of both."""
    embedding: EmbeddingModel | None = None
    """Dense, Hybrid: the embedding model."""
    vectors: OptionalPath = ""
    """Dense, Hybrid: `.npy` of float32 [passages, dimension] by that model; empty: computed."""
    index_path: OptionalPath = ""
    """Dense, Hybrid: where the index is kept; empty: `indexes` in checkpoint.path."""
    hnsw_above: Annotated[int, Field(ge=0, le=10**9)] = 200_000
    """Dense, Hybrid: more passages are searched approximately (HNSW), up to them exactly."""
    memory: Memory = ""
    """Memory of the retriever; empty: sized from corpus, vectors and embedding model."""

    @property
    def embeds(self) -> bool:
        """Whether queries are turned into vectors."""
        return self.index is not IndexKind.BM25


class RetrievalEndpoint(ApiModel):
    """One retrieval service: given by url, or managed."""

    name: Name
    """Name in messages, metrics and `--endpoint NAME=URL`."""
    role: EndpointRole = EndpointRole.RETRIEVER
    """What the endpoint is asked for."""
    protocol: EndpointProtocol = EndpointProtocol.SEARCH_R1
    """Shape of requests and answers."""
    url: HttpUrl = ""
    """URL of the call, no credentials; Http fills placeholders in its path and query."""
    managed: ManagedRetriever | None = None
    """Run by the operator instead of an existing service."""
    top_k: Annotated[int, Field(ge=1, le=50)] = 3
    """Passages asked for per query; more of them leave less room to the question."""
    score_threshold: Annotated[float, Field(ge=0.0, le=1.0)] = 0.95
    """RagChat: results below this score are not returned."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 30.0
    """Limit of one call."""
    max_concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Calls in flight at once."""
    cache: bool = True
    """Keep answers of equal requests; switch off where answers change."""
    extra_body: Annotated[dict[BodyField, JsonTemplate], Field(max_length=32)] = {}
    """SearchR1, RagChat: further fields of the body, any JSON, with placeholders as in body."""
    method: HttpMethod = HttpMethod.POST
    """Http: how the server is asked; GET sends no body."""
    body: JsonTemplate = None
    """Http: any JSON; {question} {context} {top_k} {score_threshold} {message_id} or columns."""
    response: ResponseMapping = ResponseMapping()
    """RagChat, Http: where the answer holds its results; empty: the usual names."""
    headers: Annotated[list[Header], Field(max_length=16)] = []
    """HTTP headers, credentials by reference."""

    @property
    def display_url(self) -> str:
        """The URL for messages, without the query, in which some services expect their key."""
        return display_url(self.url)


class RetrievalSpec(ApiModel):
    """Retrieval before generation, inside it, or in the reward."""

    mode: RetrievalMode = RetrievalMode.NONE
    """When retrieval happens."""
    endpoints: Annotated[list[RetrievalEndpoint], Field(max_length=8)] = []
    """The services."""
    prompt_template: Template = "Passages:\n{passages}\n\nQuestion: {prompt}\nAnswer:"
    """Mode Prompt: text around {passages} and {prompt}."""
    passage_template: Template = "[{index}] {text}\n"
    """One passage, with {index} from 1 and {text}."""
    shuffle_passages: bool = False
    """Mode Prompt: order passages at random (seeded), so that rank is no shortcut."""
    max_passage_tokens: Annotated[int, Field(ge=1, le=100_000)] = 256
    """Tokens kept of one passage; less when not given and the lengths are short."""
    max_turns: Annotated[int, Field(ge=1, le=32)] = 2
    """Mode Search: searches per completion."""
    actor_output: ActorOutput = ActorOutput()
    """Mode Reward: what the actor writes."""
    on_failure: FailurePolicy = FailurePolicy.DROP_SAMPLE
    """What a failed call does to its sample."""
    max_failure_ratio: Ratio = 0.2
    """Share of failed samples in a step above which the attempt ends with the reason."""
    warm_up_timeout_seconds: Seconds = 60
    """How long the first call of each endpoint may take; a cold service is slow at first."""

    @property
    def external(self) -> list[RetrievalEndpoint]:
        """Endpoints that exist independently of the job; the others are started with it."""
        return [endpoint for endpoint in self.endpoints if endpoint.managed is None]

    @property
    def managed(self) -> dict[str, ManagedRetriever]:
        """The retrievers that are started with the job, by the name of their endpoint."""
        return {each.name: each.managed for each in self.endpoints if each.managed is not None}
