"""Computed resources of each kind of pod, as sums of named terms."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import api_dataclass
from raggrpo_api.fields.text import Message, ShortText


class PodRole(StrEnum):
    """Kind of a pod; value of the label raggrpo.io/role."""

    HEAD = "head"
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    RETRIEVER = "retriever"
    AGENT = "agent"
    PREFLIGHT = "preflight"
    STAGING = "staging"
    PUSH = "push"


@api_dataclass
class SizingTerm:
    """A named term of a computed amount."""

    resource: ShortText
    """memory, shm or gpu for a trainer pod; headMemory, rolloutShm and so on for other pods."""
    name: ShortText
    bytes: int
    reason: Message


@api_dataclass
class PodSizing:
    """Resource requests of one kind of pod; memory is also the limit."""

    role: PodRole
    name: ShortText = ""
    """Endpoint name of a managed retriever."""
    replicas: int = 1
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    """Size of /dev/shm; empty: the default."""
    object_store: int = 0
    """Bytes of Ray's object store in /dev/shm."""


@api_dataclass
class Sizing:
    """Computed resources with their terms."""

    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    pods: Annotated[list[PodSizing], Field(max_length=16)] = field(default_factory=list)
    """Requests of each kind of pod; the amounts above are those of a trainer pod."""
    terms: Annotated[list[SizingTerm], Field(max_length=64)] = field(default_factory=list)
