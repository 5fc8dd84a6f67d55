"""`ApiModel` and `api_dataclass`, the base types of the API, and shared field types."""

from collections.abc import Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import Annotated, Any, Final, NewType, Self, TypeVar, cast, dataclass_transform

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    WithJsonSchema,
)
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass

from .kubernetes_names import DataKey, ObjectName
from .reach import SecretName

T = TypeVar("T")


class ApiModel(BaseModel):
    """Frozen model that rejects unknown fields and uses camelCase names in JSON.

    `core.spec.resolve` derives the origin of each value from `model_fields_set`. The CRD therefore
    contains no defaults: the API server would fill them in as if the user had specified them.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return an updated copy. Raises TypeError for unknown fields, unlike pydantic's method."""
        if unknown := sorted((update or {}).keys() - type(self).model_fields.keys()):
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        return super().model_copy(update=update, deep=deep)


DATACLASS_CONFIG = ApiModel.model_config.copy()
DATACLASS_CONFIG.pop("frozen")  # `api_dataclass` passes `frozen` as an argument


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(field,))
def api_dataclass(cls: type[T]) -> type[T]:
    """Make a frozen, validated dataclass: `dataclasses.replace` checks names, types and limits."""
    return cast(type[T], dataclass(frozen=True, kw_only=True, config=DATACLASS_CONFIG)(cls))


def format_time(time: datetime | None) -> str:
    """Return a time as RFC 3339 in UTC with whole seconds, as in Kubernetes, or "" for None."""
    return "" if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


YEARS: Final = range(2000, 2200)
"""Years of a valid time; sums of such times and durations are still valid dates."""
MAX_SECONDS: Final = 10**10


def _read_time(value: object) -> datetime | None:
    if value is None or value == "":
        return None
    time = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(time, datetime) or time.tzinfo is None:
        raise ValueError("a time must be RFC 3339 with a time zone")
    if time.year not in YEARS:
        raise ValueError(f"the year must be from {YEARS.start} to {YEARS.stop - 1}")
    return time.astimezone(UTC).replace(microsecond=0)


Time = Annotated[
    datetime | None,
    PlainValidator(_read_time),
    PlainSerializer(format_time, return_type=str),
    WithJsonSchema({"type": "string"}),
]
"""A time in whole seconds, or None; a string in JSON, where "" stands for None."""


WholeSeconds = Annotated[int, Field(ge=-MAX_SECONDS, le=MAX_SECONDS)]
FractionalSeconds = Annotated[float, Field(ge=-MAX_SECONDS, le=MAX_SECONDS)]
"""Durations in a status, within the range of Python's dates."""


class PathMarker:
    """Marks a field as a file system path, so that `--mount` can map it to a local folder."""


CONTROLS: Final = r"\x00-\x1f\x7f-\x9f"
PLAIN_TEXT: Final = f"^[^{CONTROLS}]*$"
_ANY: Final = f"[^/{CONTROLS}]"
_NO_DOT: Final = f"[^/.{CONTROLS}]"
_PART: Final = rf"({_NO_DOT}{_ANY}*|\.{_NO_DOT}{_ANY}*|\.\.{_ANY}+)"
_PATH: Final = f"/({_PART}(/{_PART})*/?)?"
ABSOLUTE_PATH: Final = f"^{_PATH}$"
OPTIONAL_PATH: Final = f"^({_PATH})?$"
"""Patterns without empty components, `.` or `..`, so that a path has only one spelling."""
MAX_PATH: Final = 512
MAX_CHECKPOINT_PATH: Final = 480
"""Maximum characters; less than MAX_PATH, so that derived paths such as the log folder fit."""

AbsolutePath = Annotated[
    str, StringConstraints(pattern=ABSOLUTE_PATH, max_length=MAX_PATH), PathMarker()
]
"""An absolute path in the pods, or on the host in a local run."""

OptionalPath = Annotated[
    str, StringConstraints(pattern=OPTIONAL_PATH, max_length=MAX_PATH), PathMarker()
]
"""An absolute path, or "" for the default."""

CheckpointPath = Annotated[
    str, StringConstraints(pattern=ABSOLUTE_PATH, max_length=MAX_CHECKPOINT_PATH), PathMarker()
]
"""An absolute path that other paths are derived from."""

Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=44)
]
"""A DNS label of at most 44 characters."""

JobName = Annotated[
    str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=44)
]
"""A DNS label that starts with a letter, as KubeRay requires; 44 leaves room for suffixes."""

CPU: Final = r"^([0-9]{1,5}(\.[0-9]{1,3})?|[0-9]{1,8}m)?$"
MEMORY: Final = r"^([0-9]{1,15}|[0-9]{1,12}(\.[0-9]{1,3})?(k|Ki|M|Mi|G|Gi|T|Ti))?$"

Cpu = Annotated[str, StringConstraints(pattern=CPU, max_length=16)]
"""Number of CPUs, such as `16` or `500m`; empty: computed by the operator."""

Memory = Annotated[str, StringConstraints(pattern=MEMORY, max_length=24)]
"""An amount of memory such as `64Gi`; empty: computed by the operator."""

EnvName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)
]
AttemptNumber = NewType("AttemptNumber", int)
"""Number of an attempt within its job, from 1."""
ClusterNumber = NewType("ClusterNumber", int)
"""Number of a Ray cluster within its job, from 1; several attempts may share a cluster."""
Count = Annotated[int, Field(ge=0, le=10**9)]
"""A number reported by a pod, limited so that its product with a Duration fits into int64."""
Duration = Annotated[float, Field(ge=0.0, le=10 * 365 * 86_400.0)]
"""Seconds reported by a pod."""
Seconds = Annotated[int, Field(ge=1, le=30 * 24 * 3600)]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class SecretKeyRef(ApiModel):
    """A key of a Secret in the job's namespace; its value is never stored in the job."""

    name: Annotated[ObjectName, SecretName()]
    """Name of the Secret."""
    key: DataKey
    """Key within the Secret; local runs read the variable RAGGRPO_SECRET_<NAME>_<KEY>."""
