"""Generate the CRD from models and rules: `python -m raggrpo_operator.crd [--check]`.

The command is for development and CI. Field descriptions are read from the source files.
"""

import argparse
import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from raggrpo_api import names
from raggrpo_api.spec.job_spec import JobSpec
from raggrpo_api.status.job_status import JobStatus
from raggrpo_api.trainer.config import TrainerConfig, schema_digest
from raggrpo_api.trainer.schemas import FILE as SCHEMAS_FILE
from raggrpo_api.trainer.schemas import with_release
from raggrpo_operator.core.rules import validations
from raggrpo_operator.core.spec.presets import TABLE
from raggrpo_operator.core.spec.structural import Schema, structural

_ROOT = Path(__file__).parents[2]
CRD_FILE = _ROOT / "crds" / "raggrpojobs.yaml"
CHART_FILE = _ROOT / "helm" / "raggrpo-operator" / "files" / "raggrpojobs.yaml"
"""The CRD in the chart; Helm does not delete the CRD when a release is uninstalled."""
KEEP = {"helm.sh/resource-policy": "keep"}

PRESET_FIELDS = frozenset({row.path for row in TABLE} | {"algorithm.groupSize"})
"""Fields whose defaults come from the preset, including groupSize, which equals rollout.n."""

_UNITS = {"Seconds": "seconds", "Gib": "GiB", "maxTokens": "tokens"}
"""Part of a field name → unit of the field, as shown by `kubectl explain`."""

_MAP_LISTS = {
    "spec.retrieval.endpoints": "name",
    "spec.volumes": "name",
    "spec.env": "name",
    "status.conditions": "type",
}
"""Path of a list → field that identifies an item; the API server rejects duplicate items."""

_BARE_N: Schema = {
    "description": 'Not a field: YAML 1.1 parses an unquoted n as false. Write "n": 3.',
    "type": "integer",
    "format": "int64",
    "minimum": 1,
    "maximum": 256,
}
"""Schema of the key `false`, declared so that a CEL rule can explain the error to the user."""

_COLUMNS: tuple[tuple[str, str, str, int], ...] = (
    ("Phase", "string", ".status.phase", 0),
    ("Step", "string", ".status.progress.stepOfTotal", 0),
    ("%", "integer", ".status.progress.progressPercentage", 0),
    ("Reward", "string", '.status.progress.metrics[?(@.name=="reward_mean")].value', 0),
    ("Ckpt", "integer", ".status.checkpoint.step", 0),
    ("Restarts", "integer", ".status.restarts.total", 0),
    ("Preset", "string", ".status.preset", 0),
    ("GPUs", "integer", ".status.sizing.gpus", 0),
    ("Age", "date", ".metadata.creationTimestamp", 0),
    ("ETA", "integer", ".status.progress.estimatedRemainingSeconds", 1),
    ("S/Step", "number", ".status.progress.secondsPerStep", 1),
    ("Tokens/s", "string", '.status.progress.metrics[?(@.name=="tokens_per_second")].value', 1),
    ("Stage", "string", ".status.progress.stage", 1),
    ("Lost", "integer", ".status.restarts.lostSteps", 1),
    ("Warnings", "integer", ".status.warningCount", 1),
    ("Cluster", "string", ".status.cluster.name", 1),
    ("Reason", "string", '.status.conditions[?(@.type=="Ready")].reason', 1),
)


def crd_manifest(annotations: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Return the CustomResourceDefinition as a dict."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{names.PLURAL}.{names.GROUP}",
            "labels": {"app.kubernetes.io/part-of": "raggrpo"},
            **({"annotations": dict(annotations)} if annotations else {}),
        },
        "spec": {
            "group": names.GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.KIND.lower(),
                "shortNames": ["rgj"],
                "categories": ["all", "ml"],
            },
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        dict(zip(("name", "type", "jsonPath", "priority"), column, strict=True))
                        for column in _COLUMNS
                    ],
                    "selectableFields": [
                        {"jsonPath": ".spec.suspend"},
                        {"jsonPath": ".status.phase"},
                    ],
                    "schema": {"openAPIV3Schema": job_schema()},
                }
            ],
        },
    }


def job_schema() -> Schema:
    """Return the structural schema of a whole job, with its CEL rules."""
    schema: Schema = {
        "description": "A declarative, retrieval-augmented GRPO post-training job.",
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": structural(JobSpec, _describe_default),
            "status": structural(JobStatus, lambda _place, _default: ""),
        },
    }
    _at(schema, "spec.rollout")["properties"]["false"] = _BARE_N
    for place, key in _MAP_LISTS.items():
        _at(schema, place).update(
            {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
        )
    for place, rules in validations().items():
        _at(schema, place)["x-kubernetes-validations"] = rules
    return schema


def crd_yaml(annotations: Mapping[str, str] | None = None) -> str:
    """Return the CustomResourceDefinition as the text of a YAML file."""
    manifest = crd_manifest(annotations)
    text = yaml.dump(manifest, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=100)
    return f"# Generated by `make generate` from the models; do not edit.\n{text}"


def main(arguments: list[str] | None = None) -> None:
    """Write the generated files; with --check, write nothing and fail if a file is out of date."""
    parser = argparse.ArgumentParser(prog="python -m raggrpo_operator.crd", description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if a file is out of date"
    )
    parser.add_argument("--output", type=Path, help="write only this file")
    options = parser.parse_args(arguments)
    texts = {CRD_FILE: crd_yaml(), CHART_FILE: crd_yaml(KEEP), SCHEMAS_FILE: _schemas()}
    if options.output:
        texts = {options.output: crd_yaml()}
    for path, text in texts.items():
        if not options.check:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            raise SystemExit(f"{path} is out of date; run python -m raggrpo_operator.crd")


def _schemas() -> str:
    version = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]["version"]
    schema = TrainerConfig.model_json_schema(by_alias=True)
    return with_release(SCHEMAS_FILE.read_text(), version, schema_digest(), schema)


class _Plain(yaml.SafeDumper):
    """YAML dumper without aliases; it quotes y and n, which kubectl and Helm read as booleans."""

    def ignore_aliases(self, _data: Any) -> bool:
        return True


_Plain.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^[yYnN]$"), list("yYnN"))


def _describe_default(place: str, default: Any) -> str:
    if place in PRESET_FIELDS:
        return "Default: from preset."
    if default in ("", [], None) and not isinstance(default, bool | int):
        return ""
    if isinstance(default, dict) or (isinstance(default, list) and isinstance(default[0], dict)):
        return ""
    text = default if isinstance(default, str) and default.isalnum() else json.dumps(default)
    return f"Default: {text}{_unit(place)}."


def _unit(place: str) -> str:
    """Return a space and the unit of a field, or "" if its name contains no unit."""
    return next((f" {unit}" for part, unit in _UNITS.items() if part in place), "")


def _at(schema: Schema, place: str) -> Schema:
    """Return the subschema at a path such as `spec.env[]`, or the root for an empty path."""
    for name in filter(None, place.replace("[]", ".[]").split(".")):
        schema = schema["items"] if name == "[]" else schema["properties"][name]
    return schema


if __name__ == "__main__":
    main()
