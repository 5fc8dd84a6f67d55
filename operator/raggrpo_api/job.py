"""`RagGrpoJob`: the custom resource."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from . import names
from .fields.base import ApiModel, JobName
from .spec.job_spec import JobSpec
from .status.job_status import JobStatus


class Metadata(BaseModel):
    """Kubernetes metadata, limited to the fields that the operator uses."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True
    )

    name: JobName
    namespace: str = "default"
    uid: str = ""
    generation: int = 1
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    creation_timestamp: str = ""
    deletion_timestamp: str = ""


class RagGrpoJob(ApiModel):
    """A retrieval-augmented GRPO post-training job."""

    api_version: Literal["raggrpo.io/v1alpha1"] = names.API_VERSION
    kind: Literal["RagGrpoJob"] = names.KIND
    metadata: Metadata
    spec: JobSpec
    status: JobStatus = JobStatus()

    def manifest(self) -> dict[str, Any]:
        """Return the specified fields as a dict for YAML or JSON, without defaults and status."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"status"})
