"""`OwnedObjects`: write only objects that a job controls.

The owner is checked before each write. The request contains the UID of the checked object, so the
API server rejects the write if the name now belongs to another object.
"""

import logging
from dataclasses import dataclass

from raggrpo_api.job import Metadata
from raggrpo_operator.errors import AlreadyExists, Conflict, NameTaken, NotFound, TransientError
from raggrpo_operator.kube.client import KubeClient, Manifest, Resource, resource_of
from raggrpo_operator.kube.cluster_objects import is_being_deleted, is_owned, labels_of

log = logging.getLogger(__name__)


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
        """Create an object, or update the existing object if it differs from the manifest.

        Raises:
            NameTaken: The job does not own the object with this name.

        """
        existing = await self._existing(job, manifest) or await self.create(job, manifest)
        if existing is None:
            return
        metadata = existing["metadata"]
        if is_being_deleted(existing):
            raise TransientError(f"{manifest['kind']} {metadata['name']} is terminating")
        if _is_up_to_date(existing, manifest):
            return
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await self.client.apply(manifest | {"metadata": manifest["metadata"] | version})

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
        """Return the existing object, or None. Raises NameTaken if the job does not own it."""
        metadata = manifest["metadata"]
        try:
            existing = await self.client.get(
                resource_of(manifest), metadata["namespace"], metadata["name"]
            )
        except NotFound:
            return None
        if not is_owned(existing, job.uid):
            raise name_taken(manifest) from None
        return existing


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
