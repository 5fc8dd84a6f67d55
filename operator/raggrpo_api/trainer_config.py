"""`TrainerConfig`: the resolved configuration one attempt runs with (no Auto from presets left).

It is assembled from the same blocks as the spec, so that a knob is declared once. The digest of
its JSON schema travels along: operator and image may have different versions.
"""

import hashlib
import json
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.model import ModelSpec
from raggrpo_api.spec.monitoring import MonitoringSpec
from raggrpo_api.spec.resources import ResourcesSpec
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.spec.validation import ValidationSpec

from .base import ApiModel
from .trainer_schemas import known_schemas, within


class AttemptIdentity(ApiModel):
    """Who this attempt is."""

    job_name: str
    namespace: str = "default"
    job_uid: str
    number: int
    """Attempt number, from 1."""
    config_hash: str = ""
    resume_hash: str = ""


class World(ApiModel):
    """How many processes of each kind."""

    num_ranks: int = 1
    num_engines: int = 1
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    cpus_per_engine: float = 1.0
    gpus_per_engine: float = 0.0
    threads_per_rank: Annotated[int, Field(ge=1)] = 1
    """OpenMP threads of a rank; equal in all attempts, or results differ in the last bits."""
    threads_per_engine: Annotated[int, Field(ge=1)] = 1
    """OpenMP threads of an engine."""


class TrainerConfig(ApiModel):
    """Everything the driver needs; it reads nothing else of the job."""

    schema_digest: str
    attempt: AttemptIdentity
    model: ModelSpec
    data: DataSpec
    algorithm: AlgorithmSpec
    rollout: RolloutSpec
    training: TrainingSpec
    retrieval: RetrievalSpec
    reward: RewardSpec
    validation: ValidationSpec
    checkpoint: CheckpointSpec
    monitoring: MonitoringSpec
    resources: ResourcesSpec
    world: World
    skipped_steps: list[int] = []
    """Steps that train on the batch behind their own, whose loss was not finite twice."""
    rejected_checkpoints: list[str] = []
    """Checkpoint folders that are not to be resumed from."""

    def to_json(self) -> str:
        """Return the canonical JSON that travels with the attempt, in the schema it names."""
        values = self.model_dump(mode="json", by_alias=True)
        return json.dumps(within(values, known_schemas().get(self.schema_digest)), sort_keys=True)


@cache
def schema_digest() -> str:
    """Return the digest of TrainerConfig's JSON schema, without its descriptions."""
    schema = _without_words(TrainerConfig.model_json_schema(by_alias=True))
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


def content_hash(value: Any) -> str:
    """Return a short stable hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_words(schema: Any) -> Any:
    if isinstance(schema, dict):
        words = ("description", "title")
        return {
            key: _without_words(value)
            for key, value in schema.items()
            if not (key in words and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_words(item) for item in schema]
    return schema
