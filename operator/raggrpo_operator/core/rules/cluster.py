"""Rules about what a cluster would refuse in a pod: image, GPU resource, scheduling."""

import re
from collections.abc import Iterator

from raggrpo_api.fields import kubernetes_names
from raggrpo_operator.core.spec.violation import Reason, Violation

from .rule_input import RuleInput


def image_is_a_name(given: RuleInput) -> Iterator[Violation]:
    """Reject the digest of an image without its name, which the kubelet takes for a mistake."""
    if re.fullmatch(kubernetes_names.BARE_DIGEST, given.spec.image):
        message, remedy = "a digest alone names no image", "image: name@sha256:digest"
        yield Violation("spec.image", Reason.IMAGE_NOT_A_NAME, message, remedy)


def gpu_resource_is_extended(given: RuleInput) -> Iterator[Violation]:
    """Reject resources that Kubernetes keeps to itself: pods could not be created."""
    name = given.spec.resources.gpu_resource_name
    is_native = kubernetes_names.NATIVE_RESOURCES in name
    if is_native or name.startswith(kubernetes_names.QUOTA_RESOURCES):
        path, message = "spec.resources.gpuResourceName", f"{name} is no extended resource"
        remedy = "an extended resource such as nvidia.com/gpu"
        yield Violation(path, Reason.NOT_AN_EXTENDED_RESOURCE, message, remedy)


def priority_class_is_not_the_clusters(given: RuleInput) -> Iterator[Violation]:
    """Reject the classes that keep a cluster alive."""
    name = given.spec.scheduling.priority_class_name
    if name.startswith(kubernetes_names.SYSTEM_PRIORITY):
        path, message = "spec.scheduling.priorityClassName", f"{name} belongs to the cluster"
        yield Violation(path, Reason.RESERVED_NAME, message, "a PriorityClass for jobs, or none")


def tolerations_are_whole(given: RuleInput) -> Iterator[Violation]:
    """Require a key of Equal, and no value of Exists."""
    for index, each in enumerate(given.spec.scheduling.tolerations):
        path = f"spec.scheduling.tolerations[{index}]"
        if each.operator == "Equal" and not each.key:
            message, remedy = "Equal compares a key, and none is given", "key: nvidia.com/gpu"
            yield Violation(f"{path}.key", Reason.TOLERATION_FORM, message, remedy)
        if each.operator == "Exists" and each.value:
            message, remedy = "Exists takes no value", "remove value, or operator: Equal"
            yield Violation(f"{path}.value", Reason.TOLERATION_FORM, message, remedy)
