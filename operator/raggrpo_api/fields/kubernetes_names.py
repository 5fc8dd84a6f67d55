"""Field types for names, labels and images as Kubernetes requires them.

Values that the API server or the kubelet would reject in a pod are rejected in the job. The
patterns are valid in RE2, Rust and Python, and are part of the CRD.
"""

import re
from typing import Annotated, Final

from pydantic import StringConstraints

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_NAME_PART: Final = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_HOST: Final = _LABEL.replace("a-z", "a-zA-Z")
_REPOSITORY: Final = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"

NAMESPACE: Final = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
"""Pattern of a namespace's name without anchors: use `fullmatch`."""
NAMESPACE_NAME: Final = f"^{_LABEL}$"
OBJECT_NAME: Final = f"^{_SUBDOMAIN}$"
OPTIONAL_OBJECT_NAME: Final = f"^({_SUBDOMAIN})?$"
QUALIFIED_NAME: Final = f"^({_SUBDOMAIN}/)?{_NAME_PART}$"
OPTIONAL_QUALIFIED_NAME: Final = f"^(({_SUBDOMAIN}/)?{_NAME_PART})?$"
RESOURCE_NAME: Final = f"^{_SUBDOMAIN}/{_NAME_PART}$"
_LABEL_PAIR: Final = f"({_SUBDOMAIN}/)?{_NAME_PART}=({_NAME_PART})?"
POD_SELECTOR: Final = f"^{_LABEL_PAIR}(,{_LABEL_PAIR})*$"
LABEL_VALUE: Final = f"^({_NAME_PART})?$"
DATA_KEY: Final = r"^\.?[-_A-Za-z0-9][-._A-Za-z0-9]*$"
IMAGE: Final = (
    rf"^((({_HOST}(\.{_HOST})*|\[[0-9a-fA-F:]+\])(:[0-9]{{1,5}})?/)?{_REPOSITORY}(/{_REPOSITORY})*"
    r"(:[A-Za-z0-9_][-A-Za-z0-9_.]{0,127})?(@sha256:[0-9a-f]{64})?)?$"
)
BARE_DIGEST: Final = "^[0-9a-f]{64}$"
"""Pattern of a digest without a name, which matches IMAGE but is rejected by the kubelet."""
MAX_IMAGE: Final = 255 - 18
"""Maximum characters; the kubelet adds a registry and `library/`, and its limit is 255."""
NATIVE_RESOURCES: Final = "kubernetes.io/"
QUOTA_RESOURCES: Final = "requests."
"""Prefix of resource names that Kubernetes reserves for quotas."""
SYSTEM_PRIORITY: Final = "system-"
"""Prefix of the names of priority classes that Kubernetes reserves for system pods."""

ObjectName = Annotated[str, StringConstraints(pattern=OBJECT_NAME, min_length=1, max_length=253)]
"""Name of an object, such as a Secret: a DNS subdomain."""

OptionalObjectName = Annotated[str, StringConstraints(pattern=OPTIONAL_OBJECT_NAME, max_length=253)]
"""Name of an object, or ""."""

NamespaceName = Annotated[str, StringConstraints(pattern=NAMESPACE_NAME, max_length=63)]
"""Name of a namespace."""

QualifiedName = Annotated[
    str, StringConstraints(pattern=QUALIFIED_NAME, min_length=1, max_length=253)
]
"""Key of a label, such as `nvidia.com/gpu.product`."""

OptionalQualifiedName = Annotated[
    str, StringConstraints(pattern=OPTIONAL_QUALIFIED_NAME, max_length=253)
]
"""Key of a taint, or ""."""

LabelValue = Annotated[str, StringConstraints(pattern=LABEL_VALUE, max_length=63)]
"""Value of a label, or ""."""

PodSelector = Annotated[str, StringConstraints(pattern=POD_SELECTOR, max_length=512)]
"""Labels of pods, joined by commas as for `kubectl --selector`."""

ResourceName = Annotated[str, StringConstraints(pattern=RESOURCE_NAME, max_length=128)]
"""Name of an extended resource, such as `nvidia.com/gpu`."""

DataKey = Annotated[str, StringConstraints(pattern=DATA_KEY, min_length=1, max_length=253)]
"""Key within a Secret."""

Image = Annotated[str, StringConstraints(pattern=IMAGE, max_length=MAX_IMAGE)]
"""Reference to a container image, or ""."""
