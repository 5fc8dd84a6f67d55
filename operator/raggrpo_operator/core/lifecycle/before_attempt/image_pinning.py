"""A job keeps the very image that its first attempt began with, not only the name. Pure.

Later Ray clusters ask for it by its digest. Where no registry has that digest, as with images that
were loaded onto nodes, the name is all there is to ask for, and what comes is compared.
"""

from dataclasses import replace

from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.core.lifecycle.round import Round
from raggrpo_operator.core.spec.images import are_different


def pin_image(this: Round, cluster: ClusterObserved) -> None:
    """Keep the image that the head runs, unless it is known or no node has told."""
    pinned = this.status.pinned
    if cluster.image_ids and pinned.image == this.image and not pinned.image_id:
        this.status = replace(this.status, pinned=replace(pinned, image_id=cluster.image_ids[0]))


def is_digest_pending(this: Round, cluster: ClusterObserved) -> bool:
    """Return whether nodes and head have yet to tell what has to be compared."""
    pinned, is_by_digest = this.status.pinned, this.pod_image != this.image
    if pinned.ray_version and not cluster.ray_version and this.observed.in_pods:
        return True
    return bool(pinned.image_id) and not is_by_digest and not cluster.image_ids


def changed(this: Round, cluster: ClusterObserved) -> str:
    """Return how the cluster's image is not the one that the job began with, else ""."""
    pinned, ray = this.status.pinned, cluster.ray_version
    if ray and pinned.ray_version and ray != pinned.ray_version:
        return (
            f"image {this.image} has Ray {ray} now, this job began with {pinned.ray_version}: "
            f"set spec.image to one with Ray {pinned.ray_version} and give {ANNOTATION_RETRY} a "
            "new value, or begin a new job"
        )
    if this.pod_image != this.image:  # asked for by digest: nodes run nothing else
        return ""
    known = pinned.image_id or next(iter(cluster.image_ids), "")
    other = next((each for each in cluster.image_ids if are_different(known, each)), "")
    if not other:
        return ""
    return (
        f"image {this.image} is {other} on a node, this job began with {known}: name another in "
        f"spec.image, unless the job is to go on with this one, and give {ANNOTATION_RETRY} a new "
        "value"
    )
