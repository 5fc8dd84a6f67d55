"""`TrainerConfig`: the resolved configuration of one attempt.

It is built from the same blocks as the spec, so that a setting is declared only once. It names the
digest of its JSON schema, because operator and image may be of different versions.
"""

import hashlib
import json
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from raggrpo_api.fields.addresses import without_queries
from raggrpo_api.fields.base import ApiModel, AttemptNumber
from raggrpo_api.fields.json_values import FREE_JSON
from raggrpo_api.spec.algorithm import AlgorithmSpec
from raggrpo_api.spec.checkpoint import CheckpointSpec
from raggrpo_api.spec.data import DataSpec
from raggrpo_api.spec.model import ModelSpec
from raggrpo_api.spec.monitoring import MonitoringSpec
from raggrpo_api.spec.redaction import HIDDEN, redacted
from raggrpo_api.spec.resources import ResourcesSpec
from raggrpo_api.spec.retrieval import RetrievalSpec
from raggrpo_api.spec.reward import RewardSpec
from raggrpo_api.spec.rollout import RolloutSpec
from raggrpo_api.spec.training import TrainingSpec
from raggrpo_api.spec.validation import ValidationSpec

from .preflight import Facts
from .schemas import drop_unknown, known_schemas


class AttemptIdentity(ApiModel):
    """Identifies an attempt."""

    job_name: str
    namespace: str = "default"
    job_uid: str
    number: AttemptNumber
    """Attempt number, from 1."""
    config_hash: str = ""
    resume_hash: str = ""


class World(ApiModel):
    """How many processes of each kind there are, and what each may use."""

    num_ranks: int = 1
    num_engines: int = 1
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    cpus_per_engine: float = 1.0
    gpus_per_engine: float = 0.0
    threads_per_rank: Annotated[int, Field(ge=1)] = 1
    """OpenMP threads; the same in all attempts, or results differ in the last bits."""
    threads_per_engine: Annotated[int, Field(ge=1)] = 1
    """OpenMP threads."""


class TrainerConfig(ApiModel):
    """Everything the driver needs to know about the job."""

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
    facts: Facts = Facts()
    """What preflight found; the ranks hold what they measure against it."""
    skipped_steps: list[int] = []
    """Steps that train on the batch after their own, whose loss was non-finite twice."""
    rejected_checkpoints: list[str] = []
    """Checkpoint folders that must not be resumed from."""

    def record(self) -> str:
        """Return the configuration for people to read, without what may be a secret.

        URLs are without their queries. Headers are hidden, and in bodies what looks secret: the
        job may have been admitted before a rule knew how.
        """
        return json.dumps(_recorded(self.values()), indent=1, sort_keys=True)

    def to_json(self) -> str:
        """Return the canonical JSON handed to the attempt, in the schema named by the digest."""
        return json.dumps(self.values(), sort_keys=True)

    def values(self) -> dict[str, Any]:
        """Return what `to_json` writes."""
        values = self.model_dump(mode="json", by_alias=True)
        known: dict[str, Any] = drop_unknown(values, known_schemas().get(self.schema_digest))
        return known


@cache
def schema_digest() -> str:
    """Return the digest of TrainerConfig's JSON schema, descriptions excluded."""
    schema = _without_descriptions(TrainerConfig.model_json_schema(by_alias=True))
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


def content_hash(value: Any) -> str:
    """Return a short stable hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _recorded(value: Any, field: str = "") -> Any:
    if field in FREE_JSON:
        return redacted(value)
    match value:
        case dict() if field == "headers":
            return value | {"value": HIDDEN if value.get("value") else ""}
        case dict():
            return {key: _recorded(each, key) for key, each in value.items()}
        case list():
            return [_recorded(each, field) for each in value]
        case str():
            return without_queries(value)
    return value


def _without_descriptions(schema: Any) -> Any:
    if isinstance(schema, dict):
        dropped = ("description", "title")
        return {
            key: _without_descriptions(value)
            for key, value in schema.items()
            if not (key in dropped and isinstance(value, str))
        }
    if isinstance(schema, list):
        return [_without_descriptions(item) for item in schema]
    return schema
