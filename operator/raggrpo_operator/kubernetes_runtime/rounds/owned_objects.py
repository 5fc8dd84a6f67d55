"""`OwnedObjects`: write only objects that a job controls.

The owner is checked before each write. The request contains the UID of the checked object, so the
API server rejects the write if the name now belongs to another object.
"""

import logging
from dataclasses import dataclass

from raggrpo_api import names
from raggrpo_api.job import Metadata
from raggrpo_operator.errors import (
    AlreadyExists,
    Conflict,
    NameTaken,
    NotFound,
    PermanentError,
    TransientError,
)
from raggrpo_operator.kube.client import KubeClient, Manifest, Resource, resource_of
from raggrpo_operator.kube.cluster_objects import (
    controller_of,
    is_being_deleted,
    is_owned,
    labels_of,
)

log = logging.getLogger(__name__)

IMMUTABLE = "field is immutable"
"""Text of the API server's error for a change of a field that must not change."""


@dataclass(frozen=True, slots=True)
class OwnedObjects:
    """Creates, applies and deletes objects that a job controls."""

    client: KubeClient

    async def create(self, job: Metadata, manifest: Manifest) -> Manifest | None:
        """Create an object; return None, or the existing object if the job already owns one.

        Raises:
            NameTaken: The job does not own the object with this name.

        """
        try:
            await self.client.create(manifest)
        except AlreadyExists as error:
            existing = await self._existing(job, manifest)
            if existing is None:  # deleted in the meantime
                raise TransientError(f"{error}, but it was deleted") from None
            return existing
        return None

    async def apply(self, job: Metadata, manifest: Manifest) -> None:
        """Create an object, or replace labels and spec of the existing object if they differ.

        An object with a change that Kubernetes does not allow is deleted; a later round creates it.

        Raises:
            NameTaken: The job does not own the object with this name.
            TransientError: The object is being deleted.

        """
        existing = await self._existing(job, manifest) or await self.create(job, manifest)
        if existing is None:
            return
        metadata = existing["metadata"]
        if is_being_deleted(existing):
            raise TransientError(f"{manifest['kind']} {metadata['name']} is terminating")
        if _is_up_to_date(existing, manifest):
            return
        changed = {
            "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"],
            "labels": {**labels_of(existing), **labels_of(manifest)},
        }
        try:
            await self.client.replace(manifest | {"metadata": manifest["metadata"] | changed})
        except PermanentError as error:
            if IMMUTABLE not in str(error):
                raise
            await self.delete(job, resource_of(manifest), existing)
            raise TransientError(f"deleted, to create it with the change: {error}") from error

    async def delete(self, job: Metadata, resource: Resource, item: Manifest) -> None:
        """Delete an object, unless the object is terminating or not owned by the job."""
        metadata = item["metadata"]
        if is_being_deleted(item) or not is_owned(item, job.uid):
            return
        try:
            await self.client.delete(
                resource, metadata["namespace"], metadata["name"], metadata["uid"]
            )
        except (NotFound, Conflict) as error:  # gone, or another object has its name
            log.info("%s %s is already gone: %s", resource.plural, metadata["name"], error)

    async def _existing(self, job: Metadata, manifest: Manifest) -> Manifest | None:
        """Return the existing object, or None.

        Raises:
            NameTaken: The job does not own it.
            TransientError: An earlier job of this name owns it; it is deleted with that job.

        """
        metadata = manifest["metadata"]
        try:
            existing = await self.client.get(
                resource_of(manifest), metadata["namespace"], metadata["name"]
            )
        except NotFound:
            return None
        if is_owned(existing, job.uid):
            return existing
        owner = controller_of(existing)
        if (owner.get("kind"), owner.get("name")) == (names.KIND, job.name):
            kind, name = manifest["kind"], metadata["name"]
            raise TransientError(f"{kind} {name} of an earlier job of this name is terminating")
        raise name_taken(manifest)


def _is_up_to_date(existing: Manifest, manifest: Manifest) -> bool:
    """Return whether applying would change nothing; False if the server has set default values."""
    has_labels = labels_of(manifest).items() <= labels_of(existing).items()
    return has_labels and bool(existing.get("spec") == manifest["spec"])


def name_taken(manifest: Manifest) -> NameTaken:
    """Return the error for a name that already belongs to an object of another owner."""
    metadata = manifest["metadata"]
    return NameTaken(
        f"{manifest['kind']} {metadata['namespace']}/{metadata['name']} exists and is not "
        "owned by this job, so the operator does not change it: delete it, or delete and recreate "
        "this job, which gives its objects other names"
    )
