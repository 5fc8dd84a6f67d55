"""Reads the recorded configurations of a job's attempts in the cluster."""

from typing import Any

from raggrpo_api import names
from raggrpo_api.foreign_files import parse_json
from raggrpo_api.job import Metadata
from raggrpo_operator.errors import PermanentError
from raggrpo_operator.kube.client import CONFIG_MAPS
from raggrpo_operator.kube.cluster_objects import owned_by
from raggrpo_operator.kube.user_client import UserClient


def record_labels(job: Metadata, number: int) -> str:
    """Return the label selector of the ConfigMap of attempt `number`."""
    return f"{names.LABEL_JOB}={job.name},{names.LABEL_ATTEMPT}={number}"


async def recorded_config(client: UserClient, job: Metadata, number: int) -> Any:
    """Return the JSON value in the ConfigMap of attempt `number`, or None if that does not exist.

    Raises OperatorError if the ConfigMap does not contain JSON.
    """
    labels = record_labels(job, number)
    for record in owned_by(job.uid, await client.find(CONFIG_MAPS, job.namespace, labels=labels)):
        name = record["metadata"]["name"]
        content = (record.get("data") or {}).get(names.CONFIG_FILE, "")
        try:
            return parse_json(content)
        except ValueError as error:
            raise PermanentError(
                f"{names.CONFIG_FILE} of ConfigMap {name} is not JSON: {error}"
            ) from error
    return None
