"""`spec.reward`: what a completion is worth."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from raggrpo_api.addresses import HttpUrl
from raggrpo_api.base import PLAIN_TEXT, ApiModel, OptionalPath
from raggrpo_api.kubernetes_names import OptionalObjectName


class RewardKind(StrEnum):
    """Built-in rewards, a Python function, or an HTTP judge."""

    EXACT_MATCH = "ExactMatch"
    F1 = "F1"
    CONTAINS = "Contains"
    FORMAT = "Format"
    RAG_SCORE = "RagScore"
    PYTHON = "Python"
    HTTP = "Http"


ANSWER_REWARDS = (RewardKind.EXACT_MATCH, RewardKind.F1, RewardKind.CONTAINS)
"""Compare with the reference answer, so every row needs one."""


class CodeSource(ApiModel):
    """Where the code of Python rewards comes from."""

    config_map: OptionalObjectName = ""
    """ConfigMap whose keys are Python files."""
    path: OptionalPath = ""
    """Folder on a mounted volume that is put on the import path."""


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
    """Http: URL of the judge, which answers {"score": number}."""
    timeout_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 30.0
    """Limit of one call."""


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
