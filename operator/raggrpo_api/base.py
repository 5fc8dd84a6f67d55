"""`ApiModel`, the base of every contract type, and the field types shared by several blocks."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """Frozen, closed (unknown fields are errors) and camelCase on the wire.

    `model_fields_set` records what the user set, from which `core.spec.resolve` derives every
    value's origin. The CRD therefore carries no defaults: they would look set by the user.
    """

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
        allow_inf_nan=False,
    )


class PathMarker:
    """Marks a field as a file-system path, so that `--mount` can map it to a local folder."""


AbsolutePath = Annotated[
    str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=1024), PathMarker()
]
"""An absolute path inside the pods, or on this machine for a local run."""

OptionalPath = Annotated[
    str, StringConstraints(pattern=r"^(/[^\x00]*)?$", max_length=1024), PathMarker()
]
"""An absolute path, or empty for the default."""

Name = Annotated[
    str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=44)
]
"""A DNS label of at most 44 characters."""

JobName = Annotated[
    str, StringConstraints(pattern=r"^[a-z]([-a-z0-9]*[a-z0-9])?$", min_length=1, max_length=44)
]
"""A DNS label that begins with a letter, as KubeRay requires; 44 leaves room for our suffixes."""

Quantity = Annotated[
    str, StringConstraints(pattern=r"^([0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?)?$", max_length=32)
]
"""A Kubernetes quantity such as `16`, `500m` or `64Gi`; empty: sized by the operator."""

EnvName = Annotated[
    str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", min_length=1, max_length=128)
]
LabelValue = Annotated[str, StringConstraints(max_length=253)]
Seconds = Annotated[int, Field(ge=1, le=30 * 24 * 3600)]
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]


class SecretKeyRef(ApiModel):
    """One key of a Secret in the job's namespace; the value never enters the job or its status."""

    name: LabelValue
    """Name of the Secret."""
    key: LabelValue
    """Key inside the Secret; locally the variable RAGGRPO_SECRET_<NAME>_<KEY> stands in for it."""
