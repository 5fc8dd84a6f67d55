"""Rules on paths and the volumes that contain them. Does not access the file system."""

from collections.abc import Callable, Iterator, Sequence

from raggrpo_api.spec.checkpoint import DEFAULT_PATH
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import Placement, Volume
from raggrpo_operator.core.spec.path_fields import is_within, path_fields, volume_of
from raggrpo_operator.core.spec.violation import Reason, Violation

from .base.cel import is_filled, specified
from .base.rule_input import RuleInput, warning
from .base.spec_rule import spec_rule

PATH = "checkpoint.path"
CHECKPOINT = f"spec.{PATH}"
MAX_SHOWN_MOUNTS = 4


def checkpoint_path_condition(condition: Callable[[str], str]) -> str:
    """Return a CEL condition on checkpoint.path, or on its default if it is unspecified.

    `condition` returns the condition on the path in a CEL expression. The API server cannot bound
    the length of the text that `orValue` returns.
    """
    of_specified, of_default = map(condition, (f"self.{PATH}", repr(DEFAULT_PATH)))
    return f"({specified(PATH)} ? {of_specified} : {of_default})"


def _is_on(volume: str, path: str) -> str:
    """Return a CEL condition that a path is on a volume."""
    place = f"{volume}.mountPath"
    return f"({path} + '/').startsWith({place}.endsWith('/') ? {place} : {place} + '/')"


def _is_on_a_volume(path: str) -> str:
    """Return a CEL condition that a path is on any volume."""
    return f"self.volumes.exists(v, {_is_on('v', path)})"


def _is_read_only(path: str) -> str:
    """Return a CEL condition that the innermost volume of a path is read-only."""
    return (
        f"self.volumes.exists(v, has(v.readOnly) && v.readOnly && {_is_on('v', path)} && "
        f"!self.volumes.exists(w, {_is_on('w', path)} && size(w.mountPath) > size(v.mountPath)))"
    )


@spec_rule(
    "spec",
    field="checkpoint.path",
    reason=Reason.CHECKPOINT_NOT_ON_VOLUME,
    message="the path is not on a volume: checkpoints would be lost with the pod",
    values=lambda spec: f"{spec.checkpoint.path}, volumes: {_mounts(spec.volumes) or 'none'}",
    remedy="specify a folder below the mountPath of a volume, or omit both path and volumes",
    cel=f"!({specified('volumes')}) || size(self.volumes) == 0 || "
    + checkpoint_path_condition(_is_on_a_volume),
    applies=lambda inputs: inputs.in_pods or bool(inputs.spec.volumes),
)
def checkpoint_is_on_a_volume(spec: JobSpec) -> bool:
    """Reject checkpoints on the pod's ephemeral disk."""
    return volume_of(spec.checkpoint.path, spec.volumes) is not None


@spec_rule(
    "spec",
    field="checkpoint.path",
    reason=Reason.CHECKPOINT_READ_ONLY,
    message="the path is on a read-only volume",
    values=lambda spec: spec.checkpoint.path,
    remedy="use another volume, or set readOnly: false",
    cel=f"!({specified('volumes')}) || !{checkpoint_path_condition(_is_read_only)}",
)
def checkpoint_is_writable(spec: JobSpec) -> bool:
    """Require a writable volume for checkpoints."""
    volume = volume_of(spec.checkpoint.path, spec.volumes)
    return volume is None or not volume.read_only


@spec_rule(
    "spec.volumes[]",
    reason=Reason.ONE_SOURCE_OF_VALUE,
    message="exactly one of claimName and claimTemplate is required",
    remedy="specify an existing claim, or claimTemplate: {size: 50Gi} to create one",
    cel=f"{is_filled('claimName')} != has(self.claimTemplate)",
    as_specified=True,
)
def volume_has_one_source(volume: Volume) -> bool:
    """Require either a claim or a template."""
    return bool(volume.claim_name) != (volume.claim_template is not None)


def index_path_is_writable(inputs: RuleInput) -> Iterator[Violation]:
    """Require a separate writable folder for a retriever's index, if the job has volumes."""
    volumes = inputs.spec.volumes
    for number, endpoint in enumerate(inputs.spec.retrieval.endpoints):
        managed = endpoint.managed
        if managed is None or not managed.embeds or not volumes:
            continue
        path = managed.index_path
        field = f"spec.retrieval.endpoints[{number}].managed.indexPath"
        message = volume_problem(path, volumes)
        volume = volume_of(path, volumes)
        if volume is not None and not message and is_within(volume.mount_path, path):
            message = f"{path} is the root of volume {volume.name}; the index needs a folder"
        if message:
            remedy = "specify a folder on a writable volume, or omit indexPath"
            yield Violation(field, Reason.INDEX_PATH_UNFIT, message, remedy)


def other_paths_are_on_volumes(inputs: RuleInput) -> Iterator[Violation]:
    """Warn about other paths outside volumes, which exist only if the image contains them."""
    volumes = inputs.spec.volumes
    for field, path in path_fields(inputs.job.spec):
        is_other = field != CHECKPOINT and not field.startswith("spec.volumes")
        is_other = is_other and not field.endswith(".managed.indexPath")
        if volumes and is_other and volume_of(path, volumes) is None:
            message = f"{path} is not on a volume (mounted: {_mounts(volumes)})"
            remedy = "mount a volume there, unless the image contains the path"
            yield warning(field, Reason.PATH_NOT_ON_VOLUME, message, remedy)


def volumes_reach_all_pods(inputs: RuleInput) -> Iterator[Violation]:
    """Warn that claims need ReadWriteMany if pods may run on several nodes."""
    resources, volumes = inputs.spec.resources, inputs.spec.volumes
    is_many = resources.nodes > 1 or resources.placement is Placement.DISAGGREGATED
    if is_many and volumes:
        message = "pods on several nodes may mount the claims, which ReadWriteOnce does not allow"
        claims = ", ".join(volume.claim_name for volume in volumes)
        remedy = f"use access mode ReadWriteMany for {claims}"
        yield warning("spec.volumes", Reason.NEEDS_READ_WRITE_MANY, message, remedy)


def volume_problem(path: str, volumes: Sequence[Volume]) -> str:
    """Return why a path is not on a writable volume, or ""."""
    volume = volume_of(path, volumes)
    if volume is None:
        return f"{path} is not on a volume (mounted: {_mounts(volumes)})"
    return f"{path} is on volume {volume.name}, which is read-only" if volume.read_only else ""


def _mounts(volumes: Sequence[Volume]) -> str:
    shown = ", ".join(volume.mount_path for volume in volumes[:MAX_SHOWN_MOUNTS])
    return shown if len(volumes) <= MAX_SHOWN_MOUNTS else f"{shown} and others"
