"""`spec.reward`: what a completion is worth."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.addresses import HttpUrl
from raggrpo_api.fields.base import PLAIN_TEXT, ApiModel, OptionalPath
from raggrpo_api.fields.json_values import JsonPath, JsonTemplate
from raggrpo_api.fields.kubernetes_names import OptionalObjectName

from .retrieval import BodyField, Header, Template

JUDGE_MODEL: Final = "^[ -~]+$"


class RewardKind(StrEnum):
    """Built-in rewards, a Python function, an HTTP service, or a language model as judge."""

    EXACT_MATCH = "ExactMatch"
    F1 = "F1"
    CONTAINS = "Contains"
    FORMAT = "Format"
    RAG_SCORE = "RagScore"
    PYTHON = "Python"
    HTTP = "Http"
    JUDGE = "Judge"


ANSWER_REWARDS = (RewardKind.EXACT_MATCH, RewardKind.F1, RewardKind.CONTAINS)
"""Compare with the reference answer, so every row needs one."""


class CodeSource(ApiModel):
    """Where the code of Python rewards comes from."""

    config_map: OptionalObjectName = ""
    """ConfigMap whose keys are Python files."""
    path: OptionalPath = ""
    """Folder on a mounted volume that is put on the import path."""


class JudgeSpec(ApiModel):
    """A language model that grades completions, behind an OpenAI-compatible chat endpoint."""

    model: Annotated[str, StringConstraints(pattern=JUDGE_MODEL, max_length=253)]
    """Name of the model, as its server knows it."""
    prompt: Annotated[Template, StringConstraints(min_length=1)]
    """Message to the judge; {completion} {prompt} {answer} {context} {passages} or columns."""
    system: Template = ""
    """System message; empty: none."""
    score_pattern: Annotated[str, StringConstraints(max_length=256)] = ""
    """Regular expression whose first group is the score; empty: the only number, as in 8/10."""
    score_path: JsonPath = ""
    """Path to the score where the reply is JSON, such as `score`."""
    lowest: Annotated[float, Field(ge=-1e6, le=1e6)] = 0.0
    """Grade that counts as 0; grades outside the range fail their sample."""
    highest: Annotated[float, Field(ge=-1e6, le=1e6)] = 10.0
    """Grade that counts as 1."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0)] = 0.0
    """Of the judge's sampling; 0 repeats itself, so that answers may be cached."""
    max_tokens: Annotated[int, Field(ge=1, le=32768)] = 256
    """Limit of the judge's reply."""
    extra_body: Annotated[dict[BodyField, JsonTemplate], Field(max_length=8)] = {}
    """Further fields of the request, any JSON, such as response_format."""
    headers: Annotated[list[Header], Field(max_length=2)] = []
    """HTTP headers, such as Authorization by secretKeyRef."""
    max_concurrency: Annotated[int, Field(ge=1, le=4096)] = 64
    """Calls in flight at once."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further tries of a call that failed in passing, such as 429 and 5xx."""
    cache: bool = True
    """Grade equal prompts with equal completions once."""


class RewardFunction(ApiModel):
    """One term of the reward."""

    name: RewardKind
    """Which reward."""
    weight: Annotated[float, Field(ge=-1000.0, le=1000.0)] = 1.0
    """Factor in the sum."""
    python: Annotated[
        str,
        StringConstraints(pattern="^([A-Za-z0-9_.]+:[A-Za-z_][A-Za-z0-9_]*)?$", max_length=256),
    ] = ""
    """Python: `package.module:function` taking the sample, returning a number."""
    url: HttpUrl = ""
    """Http: of a service that answers {"score": number}. Judge: of /v1/chat/completions."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 30.0
    """Limit of one call."""
    judge: JudgeSpec | None = None
    """Judge: the model and how it grades."""


class RewardSpec(ApiModel):
    """A weighted sum of rewards."""

    functions: Annotated[list[RewardFunction], Field(min_length=1, max_length=16)] = [
        RewardFunction(name=RewardKind.EXACT_MATCH)
    ]
    """The terms."""
    answer_marker: Annotated[str, StringConstraints(pattern=PLAIN_TEXT, max_length=64)] = ""
    """Text whose line ends with the answer, such as ####; empty: <answer>…</answer>, or all."""
    code_from: CodeSource = CodeSource()
    """Where Python rewards are imported from."""

    @property
    def judges(self) -> list[tuple[int, JudgeSpec]]:
        """The language models that grade, by the place of their term."""
        found = ((at, each.judge) for at, each in enumerate(self.functions))
        return [(at, judge) for at, judge in found if judge is not None]
