"""Rules on the size of resource amounts, paths, strings and the trainer's configuration."""

import json
from collections.abc import Iterator

from pydantic.alias_generators import to_snake

from raggrpo_api import limits
from raggrpo_api.fields.base import ApiModel
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import (
    CPU_RANGE,
    MEMORY_RANGE,
    SHM_RANGE,
    STORAGE_RANGE,
    EnvVar,
)
from raggrpo_operator.core.spec.path_fields import path_fields
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.spec.resolve import Resolved, trainer_config
from raggrpo_operator.core.spec.structural import Schema, structural
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import within
from .base.rule_input import RuleInput
from .base.spec_rule import SpecRule, spec_rule
from .base.text_size import cel_text_bytes, text_bytes

MAX_NAME_BYTES = 255
"""Maximum bytes of a file name on common file systems."""
MAX_REJECTED_CHECKPOINTS = 64
"""Maximum number of checkpoint paths that recovery adds to a configuration."""
CHECKPOINT_NAME_BYTES = 48
"""Maximum bytes of a checkpoint's name below checkpoint.path."""
MAX_ESCAPED_BYTES = 6
"""Maximum bytes of escaped JSON per byte of a string."""
FIXED_BYTES = 16 * 1024
"""Maximum bytes of a configuration without the job's strings."""
ADDED_BYTES = 2048
"""Maximum bytes of the job's uid, addresses of managed retrievers and skipped steps together."""


def _spec_schema() -> Schema:
    return structural(JobSpec, lambda _place, _default: "")


def _in_range(
    name: str,
    place: str,
    field: str,
    bounds: tuple[str, str],
    alternative: str = ", or omit it to derive the amount",
) -> SpecRule:
    """Return a rule that rejects amounts too large for any node or too small for any pod."""
    lowest, highest = bounds

    def is_met(block: ApiModel) -> bool:
        amount = getattr(block, to_snake(field))
        low, high = parse_quantity(lowest), parse_quantity(highest)
        return not amount or low <= parse_quantity(amount) <= high

    return SpecRule(
        name=name,
        is_met=is_met,
        places=(place,),
        field=field,
        reason=Reason.AMOUNT_OUT_OF_RANGE,
        message=f"the amount is not between {lowest} and {highest}",
        values=lambda block: getattr(block, to_snake(field)),
        remedy=f"set {field}: {lowest} or more{alternative}",
        if_specified=(field,),
        cel=(within(field, bounds),),
    )


cpu_is_in_range = _in_range("cpu_is_in_range", "spec.resources", "cpu", CPU_RANGE)
memory_is_in_range = _in_range("memory_is_in_range", "spec.resources", "memory", MEMORY_RANGE)
shm_size_is_in_range = _in_range("shm_size_is_in_range", "spec.resources", "shmSize", SHM_RANGE)
retriever_memory_is_in_range = _in_range(
    "retriever_memory_is_in_range", "spec.retrieval.endpoints[].managed", "memory", MEMORY_RANGE
)
agent_cpu_is_in_range = _in_range(
    "agent_cpu_is_in_range", "spec.rollout.agent.container", "cpu", CPU_RANGE
)
agent_memory_is_in_range = _in_range(
    "agent_memory_is_in_range", "spec.rollout.agent.container", "memory", MEMORY_RANGE
)
process_memory_is_in_range = _in_range(
    "process_memory_is_in_range", "spec.rollout.agent", "processMemory", MEMORY_RANGE
)
claim_size_is_in_range = _in_range(
    "claim_size_is_in_range", "spec.volumes[].claimTemplate", "size", STORAGE_RANGE, ""
)


def file_names_are_short(inputs: RuleInput) -> Iterator[Violation]:
    """Reject file names of more than MAX_NAME_BYTES bytes; the schema counts characters."""
    for field, path in path_fields(inputs.job.spec):
        longest = max(len(name.encode()) for name in path.split("/"))
        if longest > MAX_NAME_BYTES:
            message = f"a file name in the path has {longest} bytes, limit {MAX_NAME_BYTES} bytes"
            remedy = "shorten the file name"
            yield Violation(field, Reason.PATH_TOO_LONG, message, remedy)


@spec_rule(
    "spec.env",
    "spec.rollout.agent.container.env",
    reason=Reason.SPEC_TOO_LARGE,
    message=f"names, values and references of env exceed {limits.MAX_ENV_BYTES} bytes in total",
    remedy="shorten values, or read them from a file",
    cel=lambda: f"{cel_text_bytes(_spec_schema()['properties']['env'])} <= {limits.MAX_ENV_BYTES}",
    as_specified=True,
)
def environment_is_small(env: list[EnvVar]) -> bool:
    """Reject an environment that is too large for a pod."""
    texts = (text_bytes(variable.model_dump(exclude_unset=True)) for variable in env)
    return sum(texts) <= limits.MAX_ENV_BYTES


@spec_rule(
    "spec",
    reason=Reason.SPEC_TOO_LARGE,
    message=f"the strings of the spec exceed {limits.MAX_SPEC_BYTES} bytes in total",
    remedy="shorten templates, lists or env",
    cel=lambda: f"{cel_text_bytes(_spec_schema())} <= {limits.MAX_SPEC_BYTES}",
    as_specified=True,
)
def texts_are_small(spec: JobSpec) -> bool:
    """Reject a job that is too large for the API server."""
    values = spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return text_bytes(values) <= limits.MAX_SPEC_BYTES


def configuration_fits(inputs: RuleInput) -> Iterator[Violation]:
    """Require a configuration that fits into an environment variable in all attempts."""
    specified = inputs.job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    texts = text_bytes(specified)
    added = MAX_REJECTED_CHECKPOINTS * len(inputs.spec.checkpoint.path.encode())
    if MAX_ESCAPED_BYTES * (texts + added) + FIXED_BYTES <= limits.MAX_CONFIG_BYTES:
        return  # most jobs are far below the limit and skip the expensive rendering
    config = trainer_config(inputs.job, Resolved(inputs.spec, inputs.origins))
    checkpoint = len(json.dumps(inputs.spec.checkpoint.path)) + CHECKPOINT_NAME_BYTES
    size = len(config.to_json()) + MAX_REJECTED_CHECKPOINTS * checkpoint + ADDED_BYTES
    if size > limits.MAX_CONFIG_BYTES:
        message = (
            f"the trainer's configuration may exceed its limit (up to {size} bytes, limit "
            f"{limits.MAX_CONFIG_BYTES} bytes)"
        )
        remedy = (
            "shorten templates, lists of files or checkpoint.path, or use ASCII characters only"
        )
        yield Violation("spec", Reason.SPEC_TOO_LARGE, message, remedy)
