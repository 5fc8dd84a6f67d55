"""Validation of manifests with the Kubernetes schemas; unknown fields are errors."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import kubernetes_validate

VERSIONS = ("1.32", "1.36", "1.37")
"""Oldest version supported by the chart, version of the test clusters, newest with schemas."""
WITHOUT_SCHEMA: Mapping[str, str] = {
    "RayCluster": "validated by KubeRay's CRD in tests/api; its pods are validated as Pods",
    "ServiceMonitor": "of the Prometheus Operator; tests/chart checks its selector",
    "PodMonitor": "of the Prometheus Operator; tests/chart checks its selector",
    "PrometheusRule": "of the Prometheus Operator; tests/chart checks its expressions",
}
"""Kinds of other APIs, and what validates them instead."""


def violations_of_schemas(
    manifests: Iterable[Mapping[str, Any]], versions: Sequence[str] = VERSIONS
) -> list[str]:
    """Return the violations in any of the versions.

    Raises:
        kubernetes_validate.SchemaNotFoundError: a kind has no schema and is not in WITHOUT_SCHEMA.
    """
    return [line for each in manifests for version in versions for line in _of(each, version)]


def _of(manifest: Mapping[str, Any], version: str) -> Iterator[str]:
    kind, name = manifest["kind"], manifest["metadata"].get("name", "")
    try:
        used = kubernetes_validate.validate(dict(manifest), version, strict=True)
    except kubernetes_validate.SchemaNotFoundError:
        if kind not in WITHOUT_SCHEMA:
            raise
    except kubernetes_validate.ValidationError as error:
        place = ".".join(str(part) for part in error.path)
        yield f"{kind} {name}: {place}: {error.message} ({version})"
    else:
        assert used == version  # an unknown version silently falls back to an older one
