"""`OwnedObjects`: write only objects that a job controls, by UID.

The owner is checked before each write, and the write names UID and version of the checked object,
so the API server rejects it if another object has taken the name.
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
        """Create an object; return the existing one if it is the job's.

        Raises:
            NameTaken: An object that is not the job's has the name.

        """
        try:
            await self.client.create(manifest)
        except AlreadyExists as error:
            existing = await self._own(job, manifest)
            if existing is None:  # deleted in between
                raise TransientError(f"{error}, but it was deleted") from None
            return existing
        return None

    async def apply(self, job: Metadata, manifest: Manifest) -> None:
        """Create an object, or update the job's object if it differs.

        Raises:
            NameTaken: An object that is not the job's has the name.

        """
        existing = await self._own(job, manifest) or await self.create(job, manifest)
        if existing is None:
            return
        metadata = existing["metadata"]
        if is_being_deleted(existing):
            raise TransientError(f"{manifest['kind']} {metadata['name']} is terminating")
        if _is_up_to_date(existing, manifest):
            return
        version = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        await self.client.apply(manifest | {"metadata": manifest["metadata"] | version})

    async def delete(self, job: Metadata, resource: Resource, thing: Manifest) -> None:
        """Delete this object, unless it is terminating or not the job's."""
        metadata = thing["metadata"]
        if is_being_deleted(thing) or not is_owned(thing, job.uid):
            return
        try:
            await self.client.delete(
                resource, metadata["namespace"], metadata["name"], metadata["uid"]
            )
        except (NotFound, Conflict) as gone:  # gone, or another object took its name
            log.info("%s %s is already gone: %s", resource.plural, metadata["name"], gone)

    async def _own(self, job: Metadata, manifest: Manifest) -> Manifest | None:
        """Return the job's object of this name, or None if there is none. Raises NameTaken."""
        metadata = manifest["metadata"]
        try:
            existing = await self.client.get(
                resource_of(manifest), metadata["namespace"], metadata["name"]
            )
        except NotFound:
            return None
        if not is_owned(existing, job.uid):
            raise taken(manifest) from None
        return existing


def _is_up_to_date(existing: Manifest, manifest: Manifest) -> bool:
    """Return whether applying changes nothing; False if the server filled in defaults."""
    has_labels = labels_of(manifest).items() <= labels_of(existing).items()
    return has_labels and bool(existing.get("spec") == manifest["spec"])


def taken(manifest: Manifest) -> NameTaken:
    """Return the error that names the object which has this one's name."""
    metadata = manifest["metadata"]
    return NameTaken(
        f"{manifest['kind']} {metadata['namespace']}/{metadata['name']} exists and is not this "
        "job's, so it is left as it is: delete it, or delete this job and create it again, which "
        "gives its objects other names"
    )
