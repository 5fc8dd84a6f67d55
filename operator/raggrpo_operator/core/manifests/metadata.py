"""Metadata of the objects that the operator creates: owner and labels."""

from collections.abc import Mapping
from typing import Any

from raggrpo_api import names
from raggrpo_api.job import Metadata

Manifest = dict[str, Any]


def child_metadata(
    job: Metadata,
    name: str,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> Manifest:
    """Return the metadata of an object that is deleted with its job."""
    metadata: Manifest = {
        "name": name,
        "namespace": job.namespace,
        "labels": child_labels(job) | dict(labels or {}),
        "ownerReferences": [owner_reference(job)],
    }
    return metadata | ({"annotations": dict(annotations)} if annotations else {})


def child_labels(job: Metadata) -> dict[str, str]:
    """Return the labels of all objects and pods of a job; selectors use LABEL_JOB."""
    return {
        "app.kubernetes.io/part-of": "raggrpo",
        "app.kubernetes.io/instance": job.name,
        names.LABEL_MANAGED_BY: names.MANAGER,
        names.LABEL_JOB: job.name,
    }


def owner_reference(job: Metadata) -> Manifest:
    """Return the owner reference for garbage collection, which does not block a job's deletion."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": job.name,
        "uid": job.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }
