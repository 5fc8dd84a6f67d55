"""CEL rules about what a job's pods run on and get: resources, places, volumes, environment."""

from collections.abc import Mapping

from raggrpo_api.fields.kubernetes_names import (
    NATIVE_RESOURCES,
    QUALIFIED_NAME,
    QUOTA_RESOURCES,
    SYSTEM_PRIORITY,
)
from raggrpo_api.names import RESERVED_ENV, RESERVED_MOUNTS, SECRET_ENV_PREFIX
from raggrpo_api.spec.resources import CPU_RANGE, MEMORY_RANGE, SHM_RANGE

from .rule import CelRule, if_given, is_one_of, matches, within
from .secrets import NO_SECRET_IN_VALUE, NO_SECRET_NAME

_OF_A_POD = "|".join(sorted(path.removeprefix("/") for path in RESERVED_MOUNTS))
_ABOVE = {path.rpartition("/")[0].removeprefix("/") for path in RESERVED_MOUNTS}
_MOUNTS = f"^/(({_OF_A_POD})(/.*)?|({'|'.join(sorted(_ABOVE))})/?)$"
"""Folders of a pod, what lies in them, and folders that would hide them."""
_ON_CPU = is_one_of("device", "CPU")
_APART = is_one_of("placement", "Disaggregated")

OF_PODS: Mapping[str, tuple[CelRule, ...]] = {
    "spec.resources": (
        CelRule(
            f"!has(self.gpusPerNode) || self.gpusPerNode > 0 || {_ON_CPU}",
            "resources.gpusPerNode: 1 or more, or resources.device: CPU",
            ".gpusPerNode",
        ),
        CelRule(
            f"{_ON_CPU} || !has(self.rolloutGpus) || self.rolloutGpus == 0 || {_APART}",
            "resources.rolloutGpus needs placement Disaggregated",
            ".rolloutGpus",
        ),
        CelRule(
            f"{_ON_CPU} || !{_APART} || (has(self.rolloutGpus) && self.rolloutGpus > 0)",
            "placement Disaggregated needs resources.rolloutGpus: 1 or more",
            ".rolloutGpus",
        ),
        CelRule(
            if_given(
                ("shmSize", "memory"),
                "size(self.shmSize) == 0 || size(self.memory) == 0 || "
                "quantity(self.shmSize).isLessThan(quantity(self.memory))",
            ),
            "resources.shmSize must be below resources.memory, to which it is charged; "
            "empty values are sized",
            ".shmSize",
        ),
        within("cpu", CPU_RANGE, of="resources."),
        within("memory", MEMORY_RANGE, of="resources."),
        within("shmSize", SHM_RANGE, of="resources."),
        CelRule(
            f"!has(self.gpuResourceName) || !(self.gpuResourceName.contains('{NATIVE_RESOURCES}')"
            f" || self.gpuResourceName.startsWith('{QUOTA_RESOURCES}'))",
            "resources.gpuResourceName: give an extended resource such as nvidia.com/gpu",
            ".gpuResourceName",
        ),
    ),
    "spec.scheduling": (
        CelRule(
            "!has(self.nodeSelector) || self.nodeSelector.all(k, size(k) <= 253 && "
            f"{matches('k', QUALIFIED_NAME)})",
            "nodeSelector: write keys of labels such as nvidia.com/gpu.product",
            ".nodeSelector",
        ),
        CelRule(
            "!has(self.priorityClassName) || "
            f"!self.priorityClassName.startsWith('{SYSTEM_PRIORITY}')",
            "priorityClassName: this class belongs to the cluster, give one for jobs",
            ".priorityClassName",
        ),
    ),
    "spec.scheduling.tolerations[]": (
        CelRule(
            "!has(self.operator) || self.operator != 'Equal' || "
            "(has(self.key) && size(self.key) > 0)",
            "tolerations: Equal compares a key, give key, or operator: Exists",
        ),
        CelRule(
            "(has(self.operator) && self.operator == 'Equal') || !has(self.value) || "
            "size(self.value) == 0",
            "tolerations: Exists takes no value, remove it, or give operator: Equal",
        ),
    ),
    "spec.volumes": (
        CelRule(
            "self.all(v, self.exists_one(w, w.mountPath == v.mountPath || "
            "w.mountPath == v.mountPath + '/' || w.mountPath + '/' == v.mountPath))",
            "volumes: a mountPath is given twice, give each volume its own",
        ),
    ),
    "spec.volumes[]": (
        CelRule(
            f"!{matches('self.mountPath', _MOUNTS)}",
            "mountPath: this folder belongs to the image or the pod, mount it elsewhere, "
            "such as /mnt/data",
            ".mountPath",
        ),
        CelRule(
            "!self.mountPath.contains(':')",
            "mountPath: no mount may have a colon, take it out",
            ".mountPath",
        ),
    ),
    "spec.env[]": (
        CelRule(
            "!(has(self.value) && size(self.value) > 0 && has(self.secretKeyRef))",
            "give value or secretKeyRef, not both",
        ),
        NO_SECRET_NAME,
        *NO_SECRET_IN_VALUE,
        CelRule(
            f"!(self.name in {sorted(RESERVED_ENV)}) && !self.name.startsWith("
            f"'{SECRET_ENV_PREFIX}')",
            "name: this variable is set by the operator, remove it",
            ".name",
        ),
    ),
}
"""Place in the schema → its rules."""
