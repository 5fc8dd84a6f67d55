"""A job and its status as environment variables of the push."""

import json
from collections.abc import Mapping

from .job import Metadata, RagGrpoJob
from .names import ENV_PUSH_JOB, ENV_PUSH_STATUS
from .status.job_status import sparse_status, status_from_json


def job_variables(job: RagGrpoJob) -> dict[str, str]:
    """Return the variables that contain a job without labels and annotations, and its status."""
    metadata = job.metadata
    own = Metadata(name=metadata.name, namespace=metadata.namespace, uid=metadata.uid)
    manifest = job.model_copy(update={"metadata": own}).manifest()
    return {
        ENV_PUSH_JOB: json.dumps(manifest),
        ENV_PUSH_STATUS: json.dumps(sparse_status(job.status)),
    }


def job_from_variables(environ: Mapping[str, str]) -> RagGrpoJob:
    """Return the job in the variables. Raises ValueError if they are missing or invalid."""
    job = RagGrpoJob.model_validate_json(environ.get(ENV_PUSH_JOB, ""))
    status = status_from_json(json.loads(environ.get(ENV_PUSH_STATUS, "")))
    return job.model_copy(update={"status": status})
