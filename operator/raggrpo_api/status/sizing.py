"""Computed resources of each kind of pod, with the terms they are the sum of."""

from dataclasses import field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from raggrpo_api.fields.base import api_dataclass


class PodRole(StrEnum):
    """Kinds of pods; also the value of the label raggrpo.io/role."""

    HEAD = "head"
    TRAINER = "trainer"
    ROLLOUT = "rollout"
    RETRIEVER = "retriever"
    PREFLIGHT = "preflight"


@api_dataclass
class SizingTerm:
    """One named part of a sized amount."""

    resource: str
    """memory, shm and gpu of a trainer pod, headMemory, rolloutShm and so on of the others."""
    name: str
    bytes: int
    reason: str


@api_dataclass
class PodSizing:
    """Requests of one kind of pod; memory is the limit too."""

    role: PodRole
    name: str = ""
    """Endpoint of a managed retriever."""
    replicas: int = 1
    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    """Size of /dev/shm; empty: none of its own."""
    object_store: int = 0
    """Bytes of Ray's object store, which lies in /dev/shm."""


@api_dataclass
class Sizing:
    """What was sized, with its terms."""

    gpus: int = 0
    cpu: str = ""
    memory: str = ""
    shm: str = ""
    pods: Annotated[list[PodSizing], Field(max_length=16)] = field(default_factory=list)
    """Requests of every kind of pod; the amounts above are those of a trainer pod."""
    terms: Annotated[list[SizingTerm], Field(max_length=64)] = field(default_factory=list)
