"""Image pinning: all attempts run the same image, even if its tag moves. Pure.

From the second Ray cluster of a job on, pods specify the image by digest. An image that was loaded
onto nodes has no registry digest: pods specify its name, and the operator compares the image IDs.
"""

from dataclasses import replace

from raggrpo_api.names import ANNOTATION_RETRY
from raggrpo_api.status.job_status import Pinned
from raggrpo_operator.core.lifecycle.observed import ClusterObserved
from raggrpo_operator.core.spec.images import are_different


def with_image_id(pinned: Pinned, image: str, cluster: ClusterObserved) -> Pinned:
    """Return `pinned` with the reported image ID of the head, unless an ID is pinned already."""
    if cluster.image_ids and pinned.image == image and not pinned.image_id:
        return replace(pinned, image_id=cluster.image_ids[0])
    return pinned


def is_digest_pending(
    pinned: Pinned, cluster: ClusterObserved, *, is_by_digest: bool, in_pods: bool
) -> bool:
    """Return whether the image ID or Ray version needed for the comparison is not reported yet."""
    if pinned.ray_version and not cluster.ray_version and in_pods:
        return True
    return bool(pinned.image_id) and not is_by_digest and not cluster.image_ids


def change_message(
    pinned: Pinned, image: str, cluster: ClusterObserved, *, is_by_digest: bool
) -> str:
    """Return a message if the image or Ray version differs from the pinned one, else ""."""
    ray = cluster.ray_version
    if ray and pinned.ray_version and ray != pinned.ray_version:
        return (
            f"image {image} now has Ray {ray}, but the job started with {pinned.ray_version}: set "
            f"spec.image to an image with Ray {pinned.ray_version} and change the annotation "
            f"{ANNOTATION_RETRY}, or create a new job"
        )
    if is_by_digest:  # the digest rules out another image
        return ""
    expected = pinned.image_id or next(iter(cluster.image_ids), "")
    other = next((each for each in cluster.image_ids if are_different(expected, each)), "")
    if not other:
        return ""
    return (
        f"image {image} is {other} on a node, but the job started with {expected}: set spec.image "
        f"to the original image, or change the annotation {ANNOTATION_RETRY} to continue with "
        "this one"
    )
