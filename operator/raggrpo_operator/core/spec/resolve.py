"""Resolution of a spec: fill in every value and record its origin.

The only module that reads presets and replaces values such as 0, "" and Auto. Precedence:
user > coupled > preset > default; values derived from other values come last.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from raggrpo_api.fields.base import ApiModel, AttemptNumber
from raggrpo_api.job import RagGrpoJob
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.model import Attention
from raggrpo_api.spec.resources import Device
from raggrpo_api.spec.retrieval import SERVED_PATHS, RetrievalEndpoint, RetrievalMode
from raggrpo_api.spec.training import Precision, RowLayout
from raggrpo_api.status.job_status import Pinned
from raggrpo_api.trainer.config import AttemptIdentity, TrainerConfig, content_hash, schema_digest
from raggrpo_api.trainer.preflight import Facts
from raggrpo_api.trainer.resume import resume_values

from .claims import claim_name, with_default_volumes
from .mitigations import apply_mitigations
from .presets import preset_values
from .sources import staged_paths
from .world import cpus_per_pod, decay_steps, total_steps, world

MIN_BATCHED_TOKENS = {Device.GPU: 8192, Device.CPU: 4096}
"""Minimum tokens per engine step that keep the device busy during prefill."""
MAX_WORKERS = 16
MAX_PROCESSES = 32
"""Maximum processes of an agent of type Python if processes is unspecified."""
LORA_LEARNING_RATE = 1e-5
"""Learning rate of adapters if unspecified: ten times the default of full training."""
PASSAGE_SHARE = 0.75
"""Share of the prompt or response length for passages if maxPassageTokens is unspecified."""

_COUPLED = (("rollout.n", "algorithm.groupSize"), ("algorithm.groupSize", "rollout.n"))


class Origin(StrEnum):
    """Origin of a value."""

    USER = "user"
    COUPLED = "coupled"
    PRESET = "preset"
    DEFAULT = "default"
    SIZED = "sized"


@dataclass(frozen=True)
class Resolved:
    """A resolved spec and the origins of its values."""

    spec: JobSpec
    origins: Mapping[str, Origin]
    """Origin of every leaf, by path below `spec`, such as `rollout.n`."""

    def values(self) -> dict[str, Any]:
        """Return the value of every leaf that has an origin, as plain JSON by path."""
        spec = self.spec.model_dump(mode="json", by_alias=True)
        return {path: _get(spec, path) for path in self.origins}


def resolve(job: RagGrpoJob, facts: Facts | None = None) -> Resolved:
    """Return the resolved spec. Without `facts`, totalSteps stays 0 if epochs are specified."""
    spec = with_default_volumes(job.spec)
    specified = {path for path, given in _leaves(job.spec) if given}
    origins = {
        path: Origin.USER if path in specified else Origin.SIZED if given else Origin.DEFAULT
        for path, given in _leaves(spec)
    }
    values = spec.model_dump(by_alias=True)

    def take(path: str, value: object, origin: Origin) -> None:
        _put(values, path, value)
        origins[path] = origin

    for path, value in preset_values(job.spec.preset, job.spec.resources.placement).items():
        if origins[path] is Origin.DEFAULT:
            take(path, value, Origin.PRESET)
    for path, partner in _COUPLED:
        if origins[path] is not Origin.USER and origins[partner] is Origin.USER:
            take(path, _get(values, partner), Origin.COUPLED)
        elif origins[path] is Origin.DEFAULT:
            take(path, _get(values, partner), origins[partner])

    for number, volume in enumerate(spec.volumes):
        if volume.claim_template is not None:
            take(f"volumes[{number}].claimName", claim_name(job.metadata, volume), Origin.SIZED)

    filled = JobSpec.model_validate(values)
    for path, value in staged_paths(job, filled).items():
        take(path, value, Origin.SIZED)
    for path, value in _sized(filled, origins, facts).items():
        take(path, value, Origin.SIZED)
    return Resolved(JobSpec.model_validate(values), origins)


def trainer_config(
    job: RagGrpoJob,
    resolved: Resolved,
    *,
    number: AttemptNumber = AttemptNumber(1),
    mitigations: Sequence[str] = (),
    pinned: Pinned | None = None,
    facts: Facts | None = None,
    schema: str = "",
    skipped_steps: Sequence[int] = (),
    rejected_checkpoints: Sequence[str] = (),
    retriever_addresses: Mapping[str, str] | None = None,
    agent_address: str = "",
) -> TrainerConfig:
    """Return the configuration of attempt `number`.

    `pinned` replaces Auto with the value chosen by an earlier attempt. `schema` is the digest of
    the schema that the image supports; "" means this release's schema. `retriever_addresses` are
    base URLs of managed retrievers by endpoint, `agent_address` that of the agent's container.
    `config_hash` covers everything except the
    attempt's identity, including these URLs; `resume_hash` covers the values that a checkpoint
    depends on.
    """
    spec = apply_mitigations(_with_pins(resolved.spec, pinned or Pinned()), mitigations)
    rows = facts.rows if facts else 0
    lengths = {"total_steps": total_steps(spec, rows), "decay_steps": decay_steps(spec, rows)}
    spec = spec.model_copy(update={"training": spec.training.model_copy(update=lengths)})
    identity = AttemptIdentity(
        job_name=job.metadata.name,
        namespace=job.metadata.namespace,
        job_uid=job.metadata.uid,
        number=number,
        resume_hash=content_hash(resume_values(spec)),
    )
    spec = _with_retriever_urls(spec, retriever_addresses or {})
    spec = _with_agent_url(spec, agent_address)
    blocks = {
        name: getattr(spec, name)
        for name in JobSpec.model_fields
        if name in TrainerConfig.model_fields
    }
    config = TrainerConfig(
        schema_digest=schema or schema_digest(),
        attempt=identity,
        world=world(spec),
        facts=facts or Facts(),
        skipped_steps=list(skipped_steps),
        rejected_checkpoints=list(rejected_checkpoints),
        **blocks,
    )
    rendered = {k: v for k, v in config.values().items() if k != "attempt"}
    identity = identity.model_copy(update={"config_hash": content_hash(rendered)})
    return config.model_copy(update={"attempt": identity})


def trainer_image(spec: JobSpec, pinned: Pinned, default: str) -> str:
    """Return the trainer image: the specified one, else the pinned one, else `default`."""
    return spec.image or pinned.image or default


def _leaves(model: ApiModel, prefix: str = "", given: bool = True) -> Iterator[tuple[str, bool]]:
    """Yield (path, whether it is specified) of every leaf below `model`."""
    specified = model.model_fields_set
    for name, alias in _names(type(model)):
        value = getattr(model, name)
        path = f"{prefix}{alias}"
        from_user = given and name in specified
        if isinstance(value, ApiModel):
            yield from _leaves(value, f"{path}.", from_user)
        elif isinstance(value, list) and any(isinstance(item, ApiModel) for item in value):
            for index, item in enumerate(value):
                yield from _leaves(item, f"{path}[{index}].", from_user)
        else:
            yield path, from_user


@cache
def _names(model: type[ApiModel]) -> tuple[tuple[str, str | None], ...]:
    """Return the name of every field of a model, and its name in JSON."""
    return tuple((name, field.alias) for name, field in model.model_fields.items())


def _sized(spec: JobSpec, origins: Mapping[str, Origin], facts: Facts | None) -> dict[str, Any]:
    """Return the unspecified values that are derived from other values, by path."""
    data, retrieval = spec.data, spec.retrieval
    cpu_limit = max(1, int(cpus_per_pod(spec.resources)))
    sized: dict[str, Any] = {
        f"resources.{name}": ""
        for name in ("cpu", "memory", "shmSize")
        if not getattr(spec.resources, "shm_size" if name == "shmSize" else name)
    }
    if not spec.rollout.max_num_batched_tokens:
        floor = MIN_BATCHED_TOKENS[spec.resources.device]
        sized["rollout.maxNumBatchedTokens"] = max(floor, data.max_sequence_length)
    if not spec.training.mini_batch_prompts:
        sized["training.miniBatchPrompts"] = data.train_batch_size
    if data.num_workers > min(cpu_limit, MAX_WORKERS):
        sized["data.numWorkers"] = min(cpu_limit, MAX_WORKERS)
    agent = spec.rollout.agent
    if agent is not None and not agent.is_service and not agent.processes:
        sized["rollout.agent.processes"] = min(MAX_PROCESSES, 2 * cpu_limit)
    for number, endpoint in enumerate(retrieval.endpoints):
        managed = endpoint.managed
        if managed is not None and managed.embeds and not managed.index_path:
            place = f"retrieval.endpoints[{number}].managed.indexPath"
            sized[place] = f"{spec.checkpoint.path.rstrip('/')}/indexes"
    if not spec.monitoring.log_dir:
        sized["monitoring.logDir"] = f"{spec.checkpoint.path.rstrip('/')}/logs"
    rows = facts.rows if facts else 0
    steps, decay = total_steps(spec, rows), decay_steps(spec, rows)
    if steps and not spec.training.total_steps:
        sized["training.totalSteps"] = steps
    if decay and not spec.training.decay_steps:
        sized["training.decaySteps"] = decay
    if (lora := spec.training.lora) is not None and not lora.alpha:
        sized["training.lora.alpha"] = lora.scale * lora.rank
    if lora is not None and origins["training.learningRate"] is Origin.DEFAULT:
        sized["training.learningRate"] = LORA_LEARNING_RATE
    is_padded = facts is not None and facts.row_layout is RowLayout.PADDED
    if is_padded and origins["training.rowLayout"] is not Origin.USER:
        sized["training.rowLayout"] = RowLayout.PADDED
    fixed = origins["training.precision"] is Origin.USER or spec.resources.device is Device.GPU
    if spec.training.precision is Precision.BF16 and not fixed:
        sized["training.precision"] = Precision.AUTO
    room = _passage_room(spec)
    is_unspecified = origins["retrieval.maxPassageTokens"] is not Origin.USER
    if is_unspecified and room < retrieval.max_passage_tokens:
        sized["retrieval.maxPassageTokens"] = room
    return sized


def _passage_room(spec: JobSpec) -> int:
    """Return the maximum tokens per passage with which all passages fit into PASSAGE_SHARE."""
    retrieval = spec.retrieval
    passages = max((endpoint.top_k for endpoint in retrieval.endpoints), default=1)
    match retrieval.mode:
        case RetrievalMode.PROMPT:
            length = spec.data.max_prompt_length
        case RetrievalMode.SEARCH:
            length = spec.data.max_response_length
            passages *= retrieval.max_turns
        case _:
            return retrieval.max_passage_tokens
    return max(1, int(length * PASSAGE_SHARE) // passages)


def _with_pins(spec: JobSpec, pinned: Pinned) -> JobSpec:
    training, model = spec.training, spec.model
    # The trainer that reported the pin may be newer: ignore values that this release lacks.
    if training.precision is Precision.AUTO and pinned.precision in set(Precision):
        precision = Precision(pinned.precision)
        training = training.model_copy(update={"precision": precision})
    if model.attention is Attention.AUTO and pinned.attention in set(Attention):
        model = model.model_copy(update={"attention": Attention(pinned.attention)})
    start = training.start_from
    if start is not None and pinned.start_path:
        source = start.checkpoint.model_copy(update={"path": pinned.start_path, "job_ref": None})
        start = start.model_copy(update={"checkpoint": source})
        training = training.model_copy(update={"start_from": start})
    return spec.model_copy(update={"training": training, "model": model})


def _with_retriever_urls(spec: JobSpec, addresses: Mapping[str, str]) -> JobSpec:
    """Return the spec with the URLs of running managed retrievers.

    `managed` stays, because checkpoints depend on the content of its corpus.
    """

    def resolved(endpoint: RetrievalEndpoint) -> RetrievalEndpoint:
        if endpoint.managed is None or endpoint.name not in addresses:
            return endpoint
        url = addresses[endpoint.name] + SERVED_PATHS[endpoint.protocol]
        return endpoint.model_copy(update={"url": url})

    endpoints = [resolved(each) for each in spec.retrieval.endpoints]
    retrieval = spec.retrieval.model_copy(update={"endpoints": endpoints})
    return spec.model_copy(update={"retrieval": retrieval})


def _with_agent_url(spec: JobSpec, address: str) -> JobSpec:
    """Return the spec with the URL of the agent's container, if there is one."""
    agent = spec.rollout.agent
    if agent is None or agent.container is None or not address:
        return spec
    agent = agent.model_copy(update={"url": address + agent.container.path})
    return spec.model_copy(update={"rollout": spec.rollout.model_copy(update={"agent": agent})})


def _get(values: Any, path: str) -> Any:
    for key in path.replace("]", "").replace("[", ".").split("."):
        values = values[int(key)] if isinstance(values, list) else values[key]
    return values


def _put(values: dict[str, Any], path: str, value: object) -> None:
    parent, _, last = path.rpartition(".")
    (_get(values, parent) if parent else values)[last] = value
