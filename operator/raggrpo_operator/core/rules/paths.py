"""Rules about paths and the volumes they are on. Does not touch the file system."""

from collections.abc import Iterator, Sequence

from raggrpo_api.spec.resources import Placement, Volume
from raggrpo_operator.core.spec.path_fields import lies_in, path_fields
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput, warning

CHECKPOINT = "spec.checkpoint.path"
SHOWN_MOUNTS = 4


def checkpoint_lies_on_a_volume(given: RuleInput) -> Iterator[Violation]:
    """Keep checkpoints off the pod's own disk, which vanishes with it."""
    volumes, path = given.spec.volumes, given.spec.checkpoint.path
    if not volumes:
        message = "none: fine on one machine, but in a cluster checkpoints are lost with the pod"
        remedy = "volumes: [{name, claimName, mountPath}] for data and checkpoints"
        yield warning("spec.volumes", Reason.NO_VOLUME, message, remedy)
        return
    volume = _volume_of(path, volumes)
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


def other_paths_lie_on_volumes(given: RuleInput) -> Iterator[Violation]:
    """Warn of other paths on no volume: they exist only if they are part of the image."""
    volumes = given.spec.volumes
    for place, path in path_fields(given.job.spec):
        is_other = place != CHECKPOINT and not place.startswith("spec.volumes")
        if volumes and is_other and _volume_of(path, volumes) is None:
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


def _volume_of(path: str, volumes: Sequence[Volume]) -> Volume | None:
    """Return the volume that `path` is on: the one with the longest mount path above it."""
    holding = [volume for volume in volumes if lies_in(path, volume.mount_path)]
    return max(holding, key=lambda volume: len(volume.mount_path.rstrip("/")), default=None)


def _mounts(volumes: Sequence[Volume]) -> str:
    shown = ", ".join(volume.mount_path for volume in volumes[:SHOWN_MOUNTS])
    return shown if len(volumes) <= SHOWN_MOUNTS else f"{shown} and others"
