"""Rules about the size of amounts, paths, texts and of the whole configuration."""

import json
from collections.abc import Iterator
from typing import Any

from raggrpo_api import limits
from raggrpo_api.fields.json_values import FREE_JSON
from raggrpo_api.spec.resources import CPU_RANGE, MEMORY_RANGE, SHM_RANGE
from raggrpo_operator.core.spec.path_fields import path_fields
from raggrpo_operator.core.spec.quantity import parse_quantity
from raggrpo_operator.core.spec.resolve import Resolved, trainer_config
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput

MAX_PART_BYTES = 255
"""Of one file name, on every file system in use."""
LEFT_OUT_CHECKPOINTS = 64
CHECKPOINT_NAME_BYTES = 48
"""Recovery may add the paths of so many checkpoints to a configuration, each with such a name."""
ESCAPED = 6
"""Bytes that one byte of a text may take in JSON."""
USUAL_BYTES = 16 * 1024
"""At most, of all in a configuration that is no text of the job's, with names of checkpoints."""
ADDED_BYTES = 2048
"""What else may be added: the job's uid, addresses of managed retrievers, steps left out."""


def amounts_are_in_range(given: RuleInput) -> Iterator[Violation]:
    """Reject amounts that no node has, and those with which no pod could start."""
    resources = given.spec.resources
    amounts = [
        ("spec.resources.cpu", resources.cpu, CPU_RANGE),
        ("spec.resources.memory", resources.memory, MEMORY_RANGE),
        ("spec.resources.shmSize", resources.shm_size, SHM_RANGE),
    ]
    for index, endpoint in enumerate(given.spec.retrieval.endpoints):
        if endpoint.managed is not None:
            path = f"spec.retrieval.endpoints[{index}].managed.memory"
            amounts.append((path, endpoint.managed.memory, MEMORY_RANGE))
    for path, amount, (least, most) in amounts:
        low, high = parse_quantity(least), parse_quantity(most)
        if amount and not low <= parse_quantity(amount) <= high:
            message, field = f"{amount} is not within {least} to {most}", path.rpartition(".")[2]
            remedy = f"{field}: {least} or more, or leave it out to have it sized"
            yield Violation(path, Reason.AMOUNT_OUT_OF_RANGE, message, remedy)


def path_parts_are_short(given: RuleInput) -> Iterator[Violation]:
    """Reject paths that no file system can hold; it counts bytes, not characters."""
    for place, path in path_fields(given.job.spec):
        longest = max(len(part.encode()) for part in path.split("/"))
        if longest > MAX_PART_BYTES:
            message = f"a part of the path has {longest} bytes"
            remedy = f"at most {MAX_PART_BYTES} bytes between two slashes"
            yield Violation(place, Reason.PATH_TOO_LONG, message, remedy)


def texts_fit_into_an_object(given: RuleInput) -> Iterator[Violation]:
    """Keep a job small enough for the API server, and its environment for every pod."""
    spec = given.job.spec
    env = sum(_text_bytes(each.model_dump(exclude_unset=True)) for each in spec.env)
    if env > limits.MAX_ENV_BYTES:
        yield _too_large("spec.env", env, limits.MAX_ENV_BYTES, "shorten values, or use a file")
    whole = _text_bytes(spec.model_dump(mode="json", by_alias=True, exclude_unset=True))
    if whole > limits.MAX_SPEC_BYTES:
        yield _too_large("spec", whole, limits.MAX_SPEC_BYTES, "shorten templates, lists or env")


def configuration_fits(given: RuleInput) -> Iterator[Violation]:
    """Require a configuration that fits into a process's environment, in every later attempt."""
    given_spec = given.job.spec.model_dump(mode="json", by_alias=True, exclude_unset=True)
    texts = _text_bytes(given_spec)
    added = LEFT_OUT_CHECKPOINTS * len(given.spec.checkpoint.path.encode())
    if ESCAPED * (texts + added) + USUAL_BYTES <= limits.MAX_CONFIG_BYTES:
        return  # most jobs are so far from it that they need not be rendered
    config = trainer_config(given.job, Resolved(given.spec, given.origins))
    checkpoint = len(json.dumps(given.spec.checkpoint.path)) + CHECKPOINT_NAME_BYTES
    found = len(config.to_json()) + LEFT_OUT_CHECKPOINTS * checkpoint + ADDED_BYTES
    if found > limits.MAX_CONFIG_BYTES:
        remedy = "shorten templates, lists of files or checkpoint.path; ASCII takes least room"
        yield _too_large("spec", found, limits.MAX_CONFIG_BYTES, remedy, "the configuration")


def _too_large(
    path: str, found: int, limit: int, remedy: str, what: str = "its texts together"
) -> Violation:
    message = f"{what} may take {found} bytes, more than {limit}"
    return Violation(path, Reason.SPEC_TOO_LARGE, message, remedy)


def _text_bytes(value: Any, is_free: bool = False) -> int:
    """Return the bytes of all texts in a JSON value, in UTF-8; names count in free JSON alone."""
    match value:
        case str():
            return len(value.encode())
        case dict() if is_free:
            return sum(len(key.encode()) + _text_bytes(each, True) for key, each in value.items())
        case dict():
            return sum(_text_bytes(each, key in FREE_JSON) for key, each in value.items())
        case list():
            return sum(_text_bytes(each, is_free) for each in value)
        case _:
            return 0
