"""The operator's chart, rendered by Helm."""

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


class HelmRefused(Exception):
    """Helm's message about values or templates that it does not take."""


@dataclass(frozen=True)
class Chart:
    """A chart on this machine."""

    helm: Path
    folder: Path

    def lint(self, values: Mapping[str, Any]) -> str:
        """Return Helm's findings. Raises HelmRefused when there is an error among them."""
        return self._helm("lint", str(self.folder), "--strict", values=values)

    def render(
        self, values: Mapping[str, Any] | None = None, *options: str, release: str = RELEASE
    ) -> list[Manifest]:
        """Return all objects. Raises HelmRefused."""
        text = self._helm(
            "template", release, str(self.folder), "--namespace", NAMESPACE,
            "--kube-version", KUBE_VERSION, *options, values=values or {},
        )  # fmt: skip
        return [each for each in yaml.safe_load_all(text) if each]

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
            raise HelmRefused(ended.stderr + ended.stdout)
        return ended.stdout


def of_kind(manifests: Sequence[Manifest], kind: str) -> list[Manifest]:
    """Return the objects of one kind."""
    return [each for each in manifests if each["kind"] == kind]


def one(manifests: Sequence[Manifest], kind: str, name: str = "") -> Manifest:
    """Return the only object of a kind, or of this name."""
    [found] = [m for m in of_kind(manifests, kind) if name in ("", m["metadata"]["name"])]
    return found
