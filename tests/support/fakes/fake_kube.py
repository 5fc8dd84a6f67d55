"""In-memory `KubeClient` with resource versions, uids and conflicts."""

import copy
from collections.abc import Callable

from raggrpo_operator.errors import AlreadyExists, Conflict, NotFound, TransientError
from raggrpo_operator.kube.client import Manifest, Resource, resource_of

Address = tuple[str, str, str]


class FakeKube:
    """Implements `KubeClient`. A `before` hook may raise to simulate failures."""

    def __init__(self) -> None:
        self.objects: dict[Address, Manifest] = {}
        self.calls: list[tuple[str, str, str]] = []
        """(verb, plural, name) of all requests."""
        self.before: Callable[[str, str], None] = lambda verb, plural: None
        self._version = 0

    def put(self, manifest: Manifest) -> Manifest:
        """Store an object on behalf of another client."""
        metadata = manifest["metadata"]
        self._version += 1
        metadata["resourceVersion"] = str(self._version)
        metadata.setdefault("uid", f"uid-{self._version}")
        self.objects[_address_of(manifest)] = manifest
        return manifest

    async def get(self, resource: Resource, namespace: str, name: str) -> Manifest:
        self._called("get", resource, name)
        stored = self.objects.get(_address(resource, namespace, name))
        if stored is None:
            raise NotFound(f"{resource.plural} {name}")
        return copy.deepcopy(stored)

    async def list_all(self, resource: Resource, namespace: str) -> list[Manifest]:
        self._called("list", resource, "")
        return [
            copy.deepcopy(each)
            for (plural, where, _), each in self.objects.items()
            if plural == resource.plural and namespace in ("", where)
        ]

    async def list_metadata(self, resource: Resource, namespace: str) -> list[Manifest]:
        objects = await self.list_all(resource, namespace)
        return [{"metadata": each["metadata"]} for each in objects]

    async def create(self, manifest: Manifest) -> Manifest:
        name = manifest["metadata"]["name"]
        self._called("create", resource_of(manifest), name)
        if _address_of(manifest) in self.objects:
            raise AlreadyExists(f"{name} exists")
        return copy.deepcopy(self.put(copy.deepcopy(manifest)))

    async def apply(self, manifest: Manifest) -> Manifest:
        return self._apply("apply", manifest, manifest)

    async def replace(self, manifest: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        self._called("replace", resource_of(manifest), metadata["name"])
        old = self.objects.get(_address_of(manifest), {}).get("metadata", {})
        for field in ("uid", "resourceVersion"):
            if metadata[field] != old.get(field):
                raise Conflict(f"{metadata['name']} has another {field}")
        changed = {**old, "labels": metadata["labels"]}
        stored = {**manifest, "metadata": changed}
        return copy.deepcopy(self.put(copy.deepcopy(stored)))

    async def apply_status(self, manifest: Manifest) -> Manifest:
        return self._apply("apply_status", manifest, {"status": manifest["status"]})

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> None:
        self._called("delete", resource, name)
        stored = self.objects.get(_address(resource, namespace, name))
        if stored is None:
            raise NotFound(name)
        if stored["metadata"]["uid"] != uid:
            raise Conflict(f"{name} is another one")
        del self.objects[_address(resource, namespace, name)]

    async def get_raw(self, path: str) -> Manifest:
        raise NotFound(path)

    def named(self, plural: str) -> list[str]:
        return [name for kind, _, name in self.objects if kind == plural]

    def _apply(self, verb: str, manifest: Manifest, change: Manifest) -> Manifest:
        metadata = manifest["metadata"]
        self._called(verb, resource_of(manifest), metadata["name"])
        old = self.objects.get(_address_of(manifest), {})
        expected = metadata.get("resourceVersion")
        if expected and expected != old.get("metadata", {}).get("resourceVersion"):
            raise Conflict(f"{metadata['name']} has changed")
        if metadata.get("uid", old_uid := old.get("metadata", {}).get("uid")) != old_uid:
            raise Conflict(f"{metadata['name']} is another one")
        merged = {**old, **copy.deepcopy(change)}
        merged["metadata"] = {**metadata, **old.get("metadata", {})}
        return copy.deepcopy(self.put(merged))

    def _called(self, verb: str, resource: Resource, name: str) -> None:
        self.calls.append((verb, resource.plural, name))
        self.before(verb, resource.plural)


def failing(*verbs: str) -> Callable[[str, str], None]:
    """Return a `before` hook that fails requests with these verbs."""

    def before(verb: str, plural: str) -> None:
        if verb in verbs:
            raise TransientError(f"{verb} {plural}: HTTP 503")

    return before


def _address(resource: Resource, namespace: str, name: str) -> Address:
    return resource.plural, namespace, name


def _address_of(manifest: Manifest) -> Address:
    metadata = manifest["metadata"]
    return _address(resource_of(manifest), metadata["namespace"], metadata["name"])
