"""`TrainerConfig`: the resolved configuration of an attempt.

A `TrainerConfig` shares its sections with the spec, so that each field is declared only once. The
digest of its JSON schema is included, because operator and image may have different versions.
"""

import hashlib
import json
from functools import cache
from typing import Annotated, Any

from pydantic import Field

from raggrpo_api.fields.base import ApiModel, AttemptNumber
from raggrpo_api.secrets.redaction import redacted_field
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

from .preflight import Facts
from .schemas import drop_unknown, known_schemas


class AttemptIdentity(ApiModel):
    """Identity of an attempt."""

    job_name: str
    namespace: str = "default"
    job_uid: str
    number: AttemptNumber
    """Attempt number, from 1."""
    config_hash: str = ""
    resume_hash: str = ""


class World(ApiModel):
    """Numbers of ranks and engines, and the resources of each."""

    num_ranks: int = 1
    num_engines: int = 1
    cpus_per_rank: float = 1.0
    gpus_per_rank: float = 0.0
    cpus_per_engine: float = 1.0
    gpus_per_engine: float = 0.0
    threads_per_rank: Annotated[int, Field(ge=1)] = 1
    """OpenMP threads of a rank; equal in all attempts for bitwise reproducible results."""
    threads_per_engine: Annotated[int, Field(ge=1)] = 1
    """OpenMP threads of an engine."""


class TrainerConfig(ApiModel):
    """Configuration of an attempt, as passed to the driver."""

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
    """Preflight facts; the ranks compare their measurements with them."""
    skipped_steps: list[int] = []
    """Steps whose batch is skipped because its loss was not finite twice."""
    rejected_checkpoints: list[str] = []
    """Checkpoint folders that must not be resumed from."""

    def record(self) -> str:
        """Return the configuration for display, without secrets.

        URL queries and all that looks like a secret are hidden, because `notSecret` may be wrong
        and the job may predate the rule that rejects secrets in plain text.
        """
        return json.dumps(redacted_field(self.values()), indent=1, sort_keys=True)

    def to_json(self) -> str:
        """Return the canonical JSON for the driver, which follows the schema of `schema_digest`."""
        return json.dumps(self.values(), sort_keys=True)

    def values(self) -> dict[str, Any]:
        """Return the values that `to_json` serializes."""
        values = self.model_dump(mode="json", by_alias=True)
        known: dict[str, Any] = drop_unknown(values, known_schemas().get(self.schema_digest))
        return known


@cache
def schema_digest() -> str:
    """Return the digest of TrainerConfig's JSON schema without descriptions."""
    schema = _without_descriptions(TrainerConfig.model_json_schema(by_alias=True))
    return hashlib.sha256(json.dumps(schema, sort_keys=True).encode()).hexdigest()[:16]


def content_hash(value: Any) -> str:
    """Return a short stable hash of a JSON value."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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
