"""Container images by name and by content: what a node says it runs, as something to ask for. Pure.

A kubelet tells `imageID` as `registry/name@sha256:…`, with Docker after `docker-pullable://`. An
image that was loaded onto the node and never pulled has no such name in any registry: its id is a
bare `sha256:…` or has a name of the loader's own.
"""

import re

from raggrpo_api.status.job_status import Pinned

_ID = re.compile(r"(?:[a-z-]+://)?((?:[^@\s/][^@\s]*@)?sha\d{3}:[0-9a-f]{64,128})")


def image_id(told: str) -> str:
    """Return an `imageID` without its scheme; empty if it names no digest."""
    found = _ID.fullmatch(told)
    return found.group(1) if found else ""


def differs(one: str, other: str) -> bool:
    """Return whether two ids are certainly of different images.

    A registry's digest and a bare one are hashes of different things, which no one can compare.
    """
    if ("@" in one) != ("@" in other):
        return False
    return one.rpartition("@")[2] != other.rpartition("@")[2]


def pin_digest(image: str, pinned: Pinned) -> str:
    """Return the image with the pinned digest, or as it is where no registry has that digest.

    The tag stays for people (and for admission rules about names); nodes pull by the digest.
    """
    name, _, digest = pinned.image_id.rpartition("@")
    if image != pinned.image or "@" in image or not _is_of(name, image):
        return image
    return f"{image}@{digest}"


def _is_of(full: str, image: str) -> bool:
    """Return whether a node's name without a digest is this image's.

    Short names leave out the registry and `library/`, which each node's runtime adds. A node that
    has the same image from two registries may tell the one that short names do not lead to: then
    no pod can pull it, and the job's image needs its registry's name.
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
