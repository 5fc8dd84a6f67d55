"""`spec.reward`: reward functions and their weights."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from raggrpo_api.fields.addresses import HttpUrl
from raggrpo_api.fields.base import PLAIN_TEXT, ApiModel, OptionalPath
from raggrpo_api.fields.change_class import MODEL, OPERATIONAL, OPTIMIZATION
from raggrpo_api.fields.json_values import JsonPath, JsonTemplate
from raggrpo_api.fields.kubernetes_names import OptionalObjectName

from .retrieval import BodyField, Header, Template

JUDGE_MODEL: Final = "^[ -~]+$"
PYTHON_FUNCTION: Final = "^([A-Za-z0-9_.]+:[A-Za-z_][A-Za-z0-9_]*)?$"

PythonFunction = Annotated[str, StringConstraints(pattern=PYTHON_FUNCTION, max_length=256)]
"""A function as `package.module:function`, or ""."""


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


class PythonSignature(StrEnum):
    """How a Python reward is called: with a sample, or as verl or TRL call their rewards."""

    NATIVE = "Native"
    VERL = "Verl"
    TRL = "Trl"


ANSWER_REWARDS = (RewardKind.EXACT_MATCH, RewardKind.F1, RewardKind.CONTAINS)
"""Rewards that require a reference answer in every row."""
SERVICE_REWARDS = (RewardKind.HTTP, RewardKind.JUDGE)
"""Rewards that call a service."""


class CodeSource(ApiModel):
    """Source of the code of Python rewards and agents."""

    config_map: OptionalObjectName = ""
    """ConfigMap whose keys are Python files."""
    path: OptionalPath = ""
    """Folder on a mounted volume, added to the import path."""


class JudgeSpec(ApiModel):
    """A language model that grades completions, behind an OpenAI-compatible chat endpoint."""

    model: Annotated[str, StringConstraints(pattern=JUDGE_MODEL, max_length=253), MODEL]
    """Model name on its server."""
    prompt: Annotated[Template, StringConstraints(min_length=1), MODEL]
    """User message with {completion}, {prompt}, {answer}, {context}, {passages} or columns."""
    system: Annotated[Template, MODEL] = ""
    """System message; empty: none."""
    score_pattern: Annotated[str, StringConstraints(max_length=256), MODEL] = ""
    """Regular expression whose first group is the grade; empty: JSON, or the number of the
    statement that gives the grade."""
    score_path: Annotated[JsonPath, MODEL] = ""
    """JSON path of the grade in the reply, such as `score`."""
    lowest: Annotated[float, Field(ge=-1e6, le=1e6), MODEL] = 0.0
    """Grade that is mapped to reward 0; grades outside the range are failures."""
    highest: Annotated[float, Field(ge=-1e6, le=1e6), MODEL] = 10.0
    """Grade that is mapped to reward 1."""
    temperature: Annotated[float, Field(ge=0.0, le=2.0), MODEL] = 0.0
    """Sampling temperature of the judge."""
    max_tokens: Annotated[int, Field(ge=1, le=32768), MODEL] = 256
    """Maximum tokens of the judge's reply."""
    extra_body: Annotated[dict[BodyField, JsonTemplate], Field(max_length=8), MODEL] = {}
    """Additional request fields, any JSON, such as response_format."""
    headers: Annotated[list[Header], Field(max_length=2), OPERATIONAL] = []
    """HTTP headers, such as Authorization by secretKeyRef."""
    max_concurrency: Annotated[int, Field(ge=1, le=4096), OPERATIONAL] = 64
    """Maximum concurrent calls."""
    retries: Annotated[int, Field(ge=0, le=10), OPERATIONAL] = 2
    """Retries after transient failures, such as 429 and 5xx."""
    cache: Annotated[bool, OPERATIONAL] = True
    """Cache grades by prompt and completion."""


class RewardFunction(ApiModel):
    """A weighted term of the reward."""

    name: Annotated[RewardKind, MODEL]
    """Type of the reward."""
    weight: Annotated[float, Field(ge=-1000.0, le=1000.0), OPTIMIZATION] = 1.0
    """Weight in the sum."""
    python: Annotated[PythonFunction, MODEL] = ""
    """Python: `package.module:function`, called with a sample, returns a number."""
    signature: Annotated[PythonSignature, MODEL] = PythonSignature.NATIVE
    """Python: arguments and result of the function; Verl and Trl as in these trainers."""
    url: Annotated[HttpUrl, OPERATIONAL] = ""
    """Http: URL of a service that returns {"score": number}. Judge: URL of /v1/chat/completions."""
    not_secret: Annotated[bool, OPERATIONAL] = False
    """Accept values in url and judge.extraBody that look like secrets but are not."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=600.0), OPERATIONAL] = 30.0
    """Timeout of a call in seconds."""
    judge: Annotated[JudgeSpec | None, MODEL] = None
    """Judge: model, prompt and grading scale."""


class RewardSpec(ApiModel):
    """A weighted sum of rewards."""

    functions: Annotated[list[RewardFunction], Field(min_length=1, max_length=16), MODEL] = [
        RewardFunction(name=RewardKind.EXACT_MATCH)
    ]
    """Terms of the sum."""
    answer_marker: Annotated[str, StringConstraints(pattern=PLAIN_TEXT, max_length=64), MODEL] = ""
    """Marker before the answer at the end of a line, such as ####; empty: <answer>…</answer>, else
    the whole completion."""
    code_from: Annotated[CodeSource, OPERATIONAL] = CodeSource()
    """Source of the code of Python rewards and agents."""

    @property
    def judges(self) -> list[tuple[int, JudgeSpec]]:
        """The judges with the index of their term."""
        judges = ((index, each.judge) for index, each in enumerate(self.functions))
        return [(index, judge) for index, judge in judges if judge is not None]


def passes_all_columns(reward: RewardSpec) -> bool:
    """Return whether a reward gets all columns of its row, as in verl and TRL."""
    return any(
        term.name is RewardKind.PYTHON and term.signature is not PythonSignature.NATIVE
        for term in reward.functions
    )
