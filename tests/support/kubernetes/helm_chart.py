"""The operator's chart rendered by Helm, and values for tests."""

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

RELEASE, NAMESPACE = "raggrpo-operator", "raggrpo-system"
KUBE_VERSION = "1.36.3"
Manifest = dict[str, Any]

EVERYTHING: dict[str, Any] = {
    "replicas": 2,
    "imagePullSecrets": [{"name": "registry"}],
    "image": {"digest": "sha256:" + "0" * 64},
    "rbac": {"aggregateToDefaultRoles": True, "delegateToNamespaceAdmins": True},
    "admissionPolicies": {"enabled": True, "addedMetadata": ["example.com/"]},
    "jobPolicy": {
        "allowedNamespaces": ["team-a"],
        "allowedImages": ["mirror.example.com/raggrpo/"],
        "allowedPriorityClasses": ["research"],
        "allowedTolerationKeys": ["example.com/research"],
        "allowedClaims": ["work"],
        "allowedSecrets": ["wandb"],
        "allowedEndpoints": ["https://rag.example.com/"],
        "validations": [{"expression": "object.spec.model.path != ''", "message": "spec.model"}],
    },
    "serviceAccount": {"name": "operator", "annotations": {"a": "b"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy:3128"}],
    "priorityClassName": "high",
    "nodeSelector": {"pool": "system"},
    "tolerations": [{"key": "system", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "topologySpreadConstraints": [
        {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}
    ],
    "podAnnotations": {"a": "b"},
    "podLabels": {"team": "ml"},
    "metrics": {
        "scrapeFrom": ["monitoring"],
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "prometheusRule": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    },
}
MATRIX: Mapping[str, dict[str, Any]] = {
    "defaults": {},
    "everything": EVERYTHING,
    "namespaced": {"watchNamespaces": ["team-a", "team-b"]},
    "namespaced everything": EVERYTHING | {"watchNamespaces": ["team-a"]},
    "minimal": {
        "crds": {"install": False},
        "rbac": {"create": False},
        "serviceAccount": {"create": False},
        "networkPolicy": {"enabled": False},
        "installationKey": {"existingSecret": "own-key"},
    },
}


class HelmRejected(Exception):
    """Helm rejected values or templates."""


@dataclass(frozen=True)
class Chart:
    """A chart in a local folder."""

    helm: Path
    folder: Path

    def lint(self, values: Mapping[str, Any]) -> str:
        """Return the output of `helm lint`. Raises HelmRejected if it reports an error."""
        return self._helm("lint", str(self.folder), "--strict", values=values)

    def render(
        self, values: Mapping[str, Any] | None = None, *options: str, release: str = RELEASE
    ) -> list[Manifest]:
        """Return all rendered objects. Raises HelmRejected."""
        text = self._helm(
            "template", release, str(self.folder), "--namespace", NAMESPACE,
            "--kube-version", KUBE_VERSION, *options, values=values or {},
        )  # fmt: skip
        return [each for each in yaml.safe_load_all(text) if each]

    def notes(self, values: Mapping[str, Any] | None = None) -> str:
        """Return the rendered NOTES.txt."""
        dry = ("--dry-run=client", "--namespace", NAMESPACE)
        text = self._helm("install", RELEASE, str(self.folder), *dry, values=values or {})
        return text.partition("NOTES:")[2]

    def _helm(self, *arguments: str, values: Mapping[str, Any]) -> str:
        ended = subprocess.run(
            [self.helm, *arguments, "--values", "-"],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        if ended.returncode != 0:
            raise HelmRejected(ended.stderr + ended.stdout)
        return ended.stdout


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] == kind]


def one(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only object of a kind, or the one with this name."""
    [manifest] = [m for m in of_kind(manifests, kind) if name in ("", m["metadata"]["name"])]
    return manifest
