"""Rules about paths and the volumes they are on. Does not touch the file system."""

from collections.abc import Iterator, Sequence

from raggrpo_api.spec.resources import Placement, Volume
from raggrpo_operator.core.spec.path_fields import is_within, path_fields, volume_of
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning

CHECKPOINT = "spec.checkpoint.path"
SHOWN_MOUNTS = 4


def checkpoint_lies_on_a_volume(given: RuleInput) -> Iterator[Violation]:
    """Keep checkpoints off the pod's own disk, which vanishes with it."""
    volumes, path = given.spec.volumes, given.spec.checkpoint.path
    if not volumes:
        if given.in_pods:
            message = f"{path} lies on no volume (there is none): it is lost with the pod"
            remedy = "volumes: [{name, claimName, mountPath}] with mountPath above it"
            yield Violation(CHECKPOINT, Reason.CHECKPOINT_NOT_ON_VOLUME, message, remedy)
        return
    volume = volume_of(path, volumes)
    if volume is None:
        yield Violation(
            CHECKPOINT,
            Reason.CHECKPOINT_NOT_ON_VOLUME,
            f"{path} lies on no volume ({_mounts(volumes)})",
            f"a folder below a volume, such as {volumes[-1].mount_path}/{given.job.metadata.name}",
        )
    elif volume.read_only:
        message = f"{path} lies on volume {volume.name}, which is read-only"
        remedy = "another volume, or readOnly: false"
        yield Violation(CHECKPOINT, Reason.CHECKPOINT_READ_ONLY, message, remedy)


def index_can_be_kept(given: RuleInput) -> Iterator[Violation]:
    """Require a writable folder of its own for a retriever's index, if the job has volumes."""
    volumes = given.spec.volumes
    for number, endpoint in enumerate(given.spec.retrieval.endpoints):
        managed = endpoint.managed
        if managed is None or not managed.embeds or not volumes:
            continue
        path = managed.index_path
        place = f"spec.retrieval.endpoints[{number}].managed.indexPath"
        volume = volume_of(path, volumes)
        if volume is None:
            message = f"{path} lies on no volume ({_mounts(volumes)})"
        elif volume.read_only:
            message = f"{path} lies on volume {volume.name}, which is read-only"
        elif is_within(volume.mount_path, path):
            message = f"{path} is all of volume {volume.name}, the retriever may write one folder"
        else:
            continue
        remedy = "a folder below a volume that can be written, or leave it out"
        yield Violation(place, Reason.INDEX_PATH_UNFIT, message, remedy)


def other_paths_lie_on_volumes(given: RuleInput) -> Iterator[Violation]:
    """Warn of other paths on no volume: they exist only if they are part of the image."""
    volumes = given.spec.volumes
    for place, path in path_fields(given.job.spec):
        is_other = place != CHECKPOINT and not place.startswith("spec.volumes")
        is_other = is_other and not place.endswith(".managed.indexPath")
        if volumes and is_other and volume_of(path, volumes) is None:
            message = f"{path} lies on no volume ({_mounts(volumes)})"
            remedy = "mount a volume there, unless the image holds it"
            yield warning(place, Reason.PATH_NOT_ON_VOLUME, message, remedy)


def volumes_reach_all_pods(given: RuleInput) -> Iterator[Violation]:
    """Ask for claims that can be shared if pods may run on several nodes."""
    resources, volumes = given.spec.resources, given.spec.volumes
    many = resources.nodes > 1 or resources.placement is Placement.DISAGGREGATED
    if many and volumes:
        message = "trainer pods can land on several nodes"
        remedy = f"claims with ReadWriteMany: {', '.join(volume.claim_name for volume in volumes)}"
        yield warning("spec.volumes", Reason.NEEDS_READ_WRITE_MANY, message, remedy)


def _mounts(volumes: Sequence[Volume]) -> str:
    shown = ", ".join(volume.mount_path for volume in volumes[:SHOWN_MOUNTS])
    return shown if len(volumes) <= SHOWN_MOUNTS else f"{shown} and others"
