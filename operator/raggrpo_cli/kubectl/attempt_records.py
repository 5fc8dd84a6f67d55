"""Reads the recorded configurations of a job's attempts in the cluster."""

import json
from typing import Any

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_operator.kube.client import CONFIG_MAPS
from raggrpo_operator.kube.cluster_objects import owned_by
from raggrpo_operator.kube.user_client import UserClient


def record_labels(job: Metadata, number: int) -> str:
    """Return the label selector of the ConfigMap of attempt `number`."""
    return f"{names.LABEL_JOB}={job.name},{names.LABEL_ATTEMPT}={number}"


async def recorded_config(client: UserClient, job: Metadata, number: int) -> dict[str, Any] | None:
    """Return the configuration of attempt `number`, or None if its ConfigMap does not exist."""
    labels = record_labels(job, number)
    for record in owned_by(job.uid, await client.find(CONFIG_MAPS, job.namespace, labels=labels)):
        config: dict[str, Any] = json.loads(record["data"][names.CONFIG_FILE])
        return config
    return None
