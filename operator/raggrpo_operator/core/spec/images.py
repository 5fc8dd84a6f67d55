"""Image ids reported by nodes, and image references with a digest. Pure.

A kubelet reports `imageID` as `registry/name@sha256:…`, with the prefix `docker-pullable://` on
Docker. The id of an image that was loaded onto the node instead of pulled is a bare `sha256:…` or
has a name chosen by the loader.
"""

import re

from raggrpo_api.status.job_status import Pinned

_ID = re.compile(r"(?:[a-z-]+://)?((?:[^@\s/][^@\s]*@)?sha\d{3}:[0-9a-f]{64,128})")


def image_id(reported: str) -> str:
    """Return an `imageID` without its scheme, or "" if it has no digest."""
    match = _ID.fullmatch(reported)
    return match.group(1) if match else ""


def are_different(one: str, other: str) -> bool:
    """Return whether two ids certainly belong to different images.

    A registry digest and a bare digest are hashes of different data and cannot be compared.
    """
    if ("@" in one) != ("@" in other):
        return False
    return one.rpartition("@")[2] != other.rpartition("@")[2]


def pin_digest(image: str, pinned: Pinned) -> str:
    """Return the image with the pinned digest, or unchanged if no registry has that digest.

    The tag is kept for display and for admission rules on names; nodes pull by digest.
    """
    name, _, digest = pinned.image_id.rpartition("@")
    if image != pinned.image or "@" in image or not _is_name_of(name, image):
        return image
    return f"{image}@{digest}"


def _is_name_of(full: str, image: str) -> bool:
    """Return whether `full`, a name that a node reported without digest, refers to `image`.

    Short names omit the registry and `library/`, which the container runtime adds. A node that has
    the same image from two registries may report the registry to which short names do not resolve.
    Then no pod can pull the digest, and `spec.image` must include the registry.
    """
    folder, slash, last = image.partition("@")[0].rpartition("/")
    name = folder + slash + last.partition(":")[0]
    if _has_registry(name):
        return full == name
    path = full.partition("/")[2] if _has_registry(full) else full
    return name in (path, path.removeprefix("library/"))


def _has_registry(name: str) -> bool:
    first, slash, _ = name.partition("/")
    return bool(slash) and ("." in first or ":" in first or first == "localhost")
