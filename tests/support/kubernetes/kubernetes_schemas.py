"""Kubernetes' own schemas for tests of manifests; a field that they do not name is an error."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import kubernetes_validate

VERSIONS = ("1.32", "1.36", "1.37")
"""The oldest that the chart takes, that of the test clusters, the newest with schemas."""
WITHOUT_SCHEMA: Mapping[str, str] = {
    "RayCluster": "KubeRay's own; tests/api creates it where KubeRay's CRD is, pods follow as Pods",
    "ServiceMonitor": "the Prometheus Operator's own; a test of the chart looks at its selector",
    "PodMonitor": "the Prometheus Operator's own; a test of the chart looks at its selector",
    "PrometheusRule": "the Prometheus Operator's own; a test of the chart looks at its expressions",
}
"""Kinds that are not Kubernetes', and what looks at them instead."""


def violations_of_schemas(
    manifests: Iterable[Mapping[str, Any]], versions: Sequence[str] = VERSIONS
) -> list[str]:
    """Return what any of the versions objects to.

    Raises:
        kubernetes_validate.SchemaNotFoundError: a kind has no schema and is not excused above.
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
        assert used == version  # an unknown version is replaced by an older one in silence
