"""Rules on values that a cluster would reject in a pod: image, GPU resource, scheduling."""

import re

from raggrpo_api.fields import kubernetes_names
from raggrpo_api.spec.agent import AgentContainer
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.spec.resources import ResourcesSpec, SchedulingSpec, Toleration
from raggrpo_operator.core.spec.violation import Reason

from .base.cel import matches
from .base.spec_rule import spec_rule

_NATIVE, _QUOTA = kubernetes_names.NATIVE_RESOURCES, kubernetes_names.QUOTA_RESOURCES


@spec_rule(
    "spec",
    "spec.rollout.agent.container",
    field="image",
    reason=Reason.IMAGE_NOT_A_NAME,
    message="a digest without a name is not an image reference",
    remedy="write image: name@sha256:digest",
    cel=f"!has(self.image) || !{matches('self.image', kubernetes_names.BARE_DIGEST)}",
)
def image_is_a_name(block: JobSpec | AgentContainer) -> bool:
    """Reject an image that is only a digest, because the kubelet requires a name."""
    return re.fullmatch(kubernetes_names.BARE_DIGEST, block.image) is None


@spec_rule(
    "spec.resources",
    field="gpuResourceName",
    reason=Reason.NOT_AN_EXTENDED_RESOURCE,
    message="the resource is not an extended resource",
    values=lambda resources: resources.gpu_resource_name,
    remedy="specify an extended resource such as nvidia.com/gpu",
    cel=f"!has(self.gpuResourceName) || !(self.gpuResourceName.contains('{_NATIVE}')"
    f" || self.gpuResourceName.startsWith('{_QUOTA}'))",
)
def gpu_resource_is_extended(resources: ResourcesSpec) -> bool:
    """Reject resource names that Kubernetes reserves, because pods could not request GPUs."""
    name = resources.gpu_resource_name
    return _NATIVE not in name and not name.startswith(_QUOTA)


@spec_rule(
    "spec.scheduling",
    field="priorityClassName",
    reason=Reason.RESERVED_NAME,
    message="the PriorityClass is reserved for the cluster's own pods",
    values=lambda scheduling: scheduling.priority_class_name,
    remedy="specify a PriorityClass for jobs, or omit it",
    cel="!has(self.priorityClassName) || "
    f"!self.priorityClassName.startsWith('{kubernetes_names.SYSTEM_PRIORITY}')",
)
def priority_class_is_not_reserved(scheduling: SchedulingSpec) -> bool:
    """Reject the priority classes of the cluster's own pods."""
    return not scheduling.priority_class_name.startswith(kubernetes_names.SYSTEM_PRIORITY)


@spec_rule(
    "spec.scheduling.tolerations[]",
    field="key",
    reason=Reason.TOLERATION_FORM,
    message="operator Equal requires a key",
    remedy="add a key such as nvidia.com/gpu, or set operator: Exists",
    cel="!has(self.operator) || self.operator != 'Equal' || (has(self.key) && size(self.key) > 0)",
)
def toleration_equal_has_key(toleration: Toleration) -> bool:
    """Require a key for operator Equal."""
    return toleration.operator != "Equal" or bool(toleration.key)


@spec_rule(
    "spec.scheduling.tolerations[]",
    field="value",
    reason=Reason.TOLERATION_FORM,
    message="operator Exists takes no value",
    remedy="remove value, or set operator: Equal",
    cel="(has(self.operator) && self.operator == 'Equal') || !has(self.value) || "
    "size(self.value) == 0",
)
def toleration_exists_has_no_value(toleration: Toleration) -> bool:
    """Reject a value for operator Exists."""
    return toleration.operator != "Exists" or not toleration.value
